"""REST, server-sent events and MCP: the interface for programs and browsers."""
