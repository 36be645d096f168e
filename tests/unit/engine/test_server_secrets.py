"""What MCP servers are given must not come back out."""

from kapelle.domain.specs import McpServer
from kapelle.engine.environment import secrets_in, server_secrets


def test_headers_of_mcp_servers_are_secrets_with_and_without_their_scheme() -> None:
    web = McpServer(
        url="https://x.example/mcp",
        headers={"Authorization": "Bearer abc-0123456789", "X": "y" * 9},
    )
    local = McpServer(command=["x"], env={"API_TOKEN": "t0ken-t0ken", "REGION": "eu-central"})
    found = secrets_in(*server_secrets([web, local]))
    assert {"Bearer abc-0123456789", "abc-0123456789", "y" * 9, "t0ken-t0ken"} <= set(found)
    assert "eu-central" not in found
