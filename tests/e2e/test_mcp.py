"""Kapelle's tools as an MCP client uses them, over HTTP and through the bridge on stdin."""

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from kapelle.api.app import routes
from kapelle.api.mcp import TOOLS, Mcp
from kapelle.domain.ids import attempt_token
from tests.e2e.instance import Instance
from tests.e2e.repositories import git

WORK = '```rehearsal\n[[do]]\nwrite = "a.txt"\ncontent = "made\\n"\n[[do]]\nsay = "made it"\n```'
MOST_TOKENS = 13_500
PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"


@asynccontextmanager
async def connected(
    kapelle: Instance, place: Path, way: str, mode: str, token: str | None = None
) -> AsyncIterator[Client]:
    if way == "stdio":
        program = str(Path(sys.executable).with_name("kapelle"))
        server = StdioServerParameters(
            command=program, args=["mcp"], env=kapelle.env, cwd=str(place)
        )
        async with Client(server, mode=mode) as client:
            yield client
        return
    url = json.loads(kapelle.home.info.read_text(encoding="utf-8"))["url"] + "/mcp"
    bearer = {"Authorization": f"Bearer {token}"} if token else kapelle.bearer
    headers = bearer | {"X-Kapelle-Directory": str(place)}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def answer(client: Client, tool: str, **arguments: Any) -> Any:
    found = await client.call_tool(tool, arguments)
    assert not found.is_error, found.content
    assert json.loads(said(found)) == found.structured_content
    return found.structured_content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    found = await client.call_tool(tool, arguments)
    assert found.is_error
    return said(found)


def said(found: CallToolResult) -> str:
    [content] = found.content
    assert isinstance(content, TextContent)
    return content.text


async def test_work_is_handed_over_awaited_looked_at_and_merged(
    kapelle: Instance, repository: Path
) -> None:
    for way, mode in (("http", "auto"), ("http", "legacy"), ("stdio", "auto"), ("stdio", "legacy")):
        async with connected(kapelle, repository, way, mode) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"task_create", "loop_start", "wait"} <= names
            prompt = WORK.replace("a.txt", f"{way}-{mode}.txt")
            made = await answer(
                client, "task_create", prompt=prompt, agent="rehearsal", checks=["test -d ."]
            )
            assert made["directory"] == str(repository)
            waited = await answer(client, "wait", ids=[made["id"]], until="all", timeout_s=50)
            assert [one["status"] for one in waited["resting"]] == ["completed"]
            assert waited["resting"][0]["verified"] is True
            logs = await answer(client, "task_logs", task_id=made["id"])
            assert "made it" in [event.get("text") for event in logs["events"]]
            changed = await answer(client, "task_diff", task_id=made["id"])
            assert f"{way}-{mode}.txt" in changed["patch"]
            await answer(client, "task_merge", task_id=made["id"])
            assert f"{way}-{mode}.txt" in git(repository, "ls-tree", "--name-only", "main")


async def test_what_is_wrong_is_said_and_harms_nothing(kapelle: Instance, repository: Path) -> None:
    async with connected(kapelle, repository, "http", "auto") as client:
        assert "There is no tool task_make" in await refusal(client, "task_make")
        assert "prompt" in await refusal(client, "task_create", prmpt="x")
        assert "is no id" in await refusal(client, "task_get", task_id="../../daemon")
        assert "task_id" in await refusal(client, "task_get")
        assert "There is no task or run" in await refusal(client, "wait", ids=["0" * 26])
        assert (await answer(client, "task_list"))["tasks"] == []
    for body in (b"", b"{", b"[]", b'{"jsonrpc":"2.0"}', b"[" * 5000, b'{"jsonrpc":"2.0","id":1}'):
        done = raw(kapelle, body)
        assert 400 <= done < 500, (body[:20], done)
    async with connected(kapelle, repository, "http", "auto") as client:
        assert (await answer(client, "daemon_get"))["version"]


def raw(kapelle: Instance, body: bytes) -> int:
    url = json.loads(kapelle.home.info.read_text(encoding="utf-8"))["url"] + "/mcp"
    headers = kapelle.bearer | {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
    }
    return httpx2.post(url, content=body, headers=headers, timeout=30).status_code


async def test_an_attempts_token_is_no_owners(kapelle: Instance, repository: Path) -> None:
    task = kapelle.play("[[do]]\nsleep = 60", repository)
    attempt = kapelle.wait_for_status(task, "running")["attempts"][0]["id"]
    other = kapelle.submit("another", repository)
    token = attempt_token(kapelle.home.token.read_text(encoding="ascii"), attempt)
    async with connected(kapelle, repository, "http", "auto", token) as client:
        assert (await answer(client, "task_get", task_id=task))["id"] == task
        made = await answer(client, "task_create", prompt=WORK)
        waited = await answer(client, "wait", ids=[made["id"]], timeout_s=50)
        assert [one["status"] for one in waited["resting"]] == ["completed"]
        await answer(client, "task_merge", task_id=made["id"])
        shown = {tool.name for tool in (await client.list_tools()).tools}
        assert {"task_create", "loop_start", "wait"} <= shown
        for tool, arguments in (
            ("task_get", {"task_id": other}),
            ("task_cancel", {"task_id": task}),
            ("daemon_get", {}),
            ("schedule_list", {}),
        ):
            assert "may" in await refusal(client, tool, **arguments)
        assert not shown & {"daemon_get", "schedule_create", "agent_check", "run_answer"}
    kapelle.post(f"/tasks/{task}/cancel")


def test_a_line_that_is_no_json_does_not_end_the_bridge(kapelle: Instance) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("kapelle")), "mcp"],
        input="nonsense\n\n[1\n",
        env=kapelle.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert [json.loads(line)["error"]["code"] for line in done.stdout.splitlines()] == [-32700] * 2


def test_a_client_is_told_and_keeps_what_it_has(tmp_path: Path) -> None:
    for client in ("claude", "codex", "gemini", "opencode", "vscode", "project"):
        install(Instance(tmp_path / client / "home"), tmp_path / client, client)


def install(kapelle: Instance, here: Path, client: str) -> None:
    here.mkdir()
    shown = kapelle.cli("mcp", "install", client, "--print", cwd=here)
    path = Path(shown.stderr.strip())
    assert not path.exists()
    assert kapelle.cli("mcp", "install", client, cwd=here, check=True).returncode == 0
    written = path.read_text(encoding="utf-8")
    assert "kapelle" in written
    again = kapelle.cli("mcp", "install", client, cwd=here, check=True)
    assert "already" in again.stderr
    assert path.read_text(encoding="utf-8") == written
    before, _, behind = written.rpartition('"mcp"')
    path.write_text(f'{before}"other"{behind}', encoding="utf-8")
    refused = kapelle.cli("mcp", "install", client, cwd=here)
    assert refused.returncode == 2
    assert "another server named kapelle" in refused.stderr
    path.write_text("{ // a comment\n", encoding="utf-8")
    assert kapelle.cli("mcp", "install", client, cwd=here).returncode == 2
    assert path.read_text(encoding="utf-8") == "{ // a comment\n"


def test_the_list_of_tools_is_short_and_the_page_knows_it() -> None:
    tools = Mcp(routes()).listed
    text = json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in tools])
    # Four letters a token: what models make of such text, on the safe side.
    assert len(text) / 4 <= MOST_TOKENS
    assert all(tool.description and tool.annotations for tool in tools)
    named = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert {tool.name for tool in tools} <= named
    assert len({tool.name for tool in TOOLS}) == len(TOOLS)
