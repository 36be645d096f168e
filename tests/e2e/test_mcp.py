"""Kapelle's tools as an MCP client uses them, over HTTP and through the bridge on stdin."""

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from docs.services import idle_router
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent, Tool

from kapelle.api.mcp.tools import Tools
from kapelle.cli.mcp import READS
from kapelle.domain.errors import InvalidInput
from kapelle.domain.ids import make_attempt_token
from tests.e2e.support.ensembles import YES, rule, with_playbook
from tests.e2e.support.ensembles import answer as replies
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git
from tests.e2e.test_teams import one

WORK = '```rehearsal\n[[do]]\nwrite = "a.txt"\ncontent = "made\\n"\n[[do]]\nsay = "made it"\n```'
# Of the core set, and of all tools, for clients that are told to list them: as JSON.
MOST_OF_CORE, MOST_OF_ALL = 20_000, 64_000
PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"


@asynccontextmanager
async def connected(
    kapelle: Instance,
    place: Path,
    way: str,
    mode: str,
    token: str | None = None,
    tools: str = "core",
) -> AsyncIterator[Client]:
    if way == "stdio":
        program = str(Path(sys.executable).with_name("kapelle"))
        server = StdioServerParameters(
            command=program, args=["mcp", "--tools", tools], env=kapelle.env, cwd=str(place)
        )
        async with Client(server, mode=mode) as client:
            yield client
        return
    url = json.loads(kapelle.home.info.read_text(encoding="utf-8"))["url"] + "/mcp"
    bearer = {"Authorization": f"Bearer {token}"} if token else kapelle.bearer
    headers = bearer | {"X-Kapelle-Directory": str(place), "X-Kapelle-Tools": tools}
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
            spec = {"prompt": "x", "agent": "rehearsal"}
            for trigger in ({"every_s": 3600}, {"at": "2h"}, {"at": "18:30"}, {"every_s": "2h"}):
                given = {"kind": "task", "spec": spec, **trigger}
                called = {"name": "schedule_create", "arguments": given}
                later = await answer(client, "tool_call", **called)
                assert later["directory"] == str(repository)
                await answer(client, "schedule_cancel", schedule_id=later["id"])


async def test_programs_are_looked_for_on_the_path_of_the_client(
    kapelle: Instance, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "tools" / "elsewhere"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (repository / ".kapelle").mkdir()
    config = repository / ".kapelle" / "config.toml"
    config.write_text('default_agent = "mine"\n[agents.mine]\ncommand = ["elsewhere"]\n')
    monkeypatch.setitem(kapelle.env, "PATH", f"{program.parent}:{os.environ['PATH']}")
    async with connected(kapelle, repository, "stdio", "auto") as client:
        listed = await answer(client, "tool_call", name="agent_list", arguments={"limit": 50})
        known = {one["name"]: one["status"] for one in listed["items"]}
        assert known["mine"] == "installed"
        asked = {"name": "agent_check", "arguments": {"name": "mine"}}
        assert (await answer(client, "tool_call", **asked))["usable"] is True
        examined = await answer(client, "tool_call", name="doctor")
        states = {one["name"]: one["state"] for one in examined["findings"]}
        assert states["default agent"] == "ok"


async def test_what_is_wrong_is_said_and_harms_nothing(kapelle: Instance, repository: Path) -> None:
    async with connected(kapelle, repository, "http", "auto") as client:
        assert "There is no tool task_make" in await refusal(client, "task_make")
        examined = await answer(client, "tool_call", name="doctor")
        states = {one["name"]: one["state"] for one in examined["findings"]}
        assert (states["repository"], states["config"], states["trust"]) == ("ok",) * 3
        (repository / ".kapelle").mkdir()
        config = repository / ".kapelle" / "config.toml"
        config.write_text("checks = 7\n", encoding="utf-8")
        examined = await answer(client, "tool_call", name="doctor")
        assert examined["ok"] is False
        assert "checks" in examined["findings"][-1]["text"]
        config.unlink()
        assert "prompt" in await refusal(client, "task_create", prmpt="x")
        assert "daemon" in await refusal(client, "task_get", task_id="../../daemon")
        assert "task_id" in await refusal(client, "task_get")
        assert "is not the id of a task or a run" in await refusal(client, "wait", ids=["0" * 26])
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
    other = kapelle.submit("another", repository, depends_on=[task])
    # Its worktree is still to be made, and the checkout of whoever asked for it is not that.
    workspace = kapelle.task(other)["workspace"]
    assert (workspace["kind"], workspace["path"]) == ("worktree", None)
    token = make_attempt_token(kapelle.home.token.read_text(encoding="ascii"), attempt)
    async with connected(kapelle, repository, "http", "auto", token) as client:
        assert (await answer(client, "task_get", task_id=task))["id"] == task
        made = await answer(client, "task_create", prompt=WORK)
        waited = await answer(client, "wait", ids=[made["id"]], timeout_s=50)
        assert [one["status"] for one in waited["resting"]] == ["completed"]
        await answer(client, "task_merge", task_id=made["id"])
        shown = {tool.name for tool in (await client.list_tools()).tools}
        assert {"task_create", "run_start", "wait"} <= shown
        for tool, arguments in (
            ("task_get", {"task_id": other}),
            ("task_cancel", {"task_id": task}),
            ("daemon_get", {}),
            ("schedule_list", {}),
        ):
            assert "may" in await refusal(client, tool, **arguments)
        assert not shown & {"daemon_get", "schedule_create", "agent_check", "question_list"}
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


def test_what_was_asked_before_the_end_of_input_is_answered(kapelle: Instance) -> None:
    asks = {"protocolVersion": "2025-06-18", "capabilities": {}}
    asks["clientInfo"] = {"name": "x", "version": "1"}
    first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": asks}
    calls = [
        {"jsonrpc": "2.0", "id": number, "method": "tools/call",
         "params": {"name": "note_watch", "arguments": {"keys": ["none"], "timeout_s": 1}}}
        for number in range(1, 6)
    ]  # fmt: skip
    done = subprocess.run(
        [str(Path(sys.executable).with_name("kapelle")), "mcp"],
        input="".join(f"{json.dumps(one)}\n" for one in [first, *calls]),
        env=kapelle.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert {json.loads(line)["id"] for line in done.stdout.splitlines()} == {0, 1, 2, 3, 4, 5}


def test_a_client_is_told_and_keeps_what_it_has(tmp_path: Path) -> None:
    for client in (
        "claude",
        "cline",
        "codex",
        "gemini",
        "opencode",
        "vscode",
        "windsurf",
        "project",
    ):
        install(Instance(tmp_path / client / "home"), tmp_path / client, client)


def install(kapelle: Instance, here: Path, client: str) -> None:
    here.mkdir()
    shown = kapelle.cli("mcp", "install", client, "--print", cwd=here)
    path = Path(shown.stderr.strip())
    assert not path.exists()
    assert kapelle.cli("mcp", "install", client, cwd=here, check=True).returncode == 0
    written = path.read_text(encoding="utf-8")
    # What others share names neither this machine's paths nor its home.
    is_shared = client in {"vscode", "project"}
    assert ("KAPELLE_HOME" in written, '"kapelle"' in written.partition("command")[2]) == (
        not is_shared, is_shared
    )  # fmt: skip
    again = kapelle.cli("mcp", "install", client, cwd=here, check=True)
    assert "already" in again.stderr
    assert path.read_text(encoding="utf-8") == written
    before, _, behind = written.rpartition('"mcp"')
    path.write_text(f'{before}"other"{behind}', encoding="utf-8")
    refused = kapelle.cli("mcp", "install", client, cwd=here)
    assert refused.returncode == 2
    assert "another server named kapelle" in refused.stderr
    path.write_text("[]", encoding="utf-8")
    assert "cannot be read as plain" in kapelle.cli("mcp", "install", client, cwd=here).stderr
    path.write_text("{ // a comment\n", encoding="utf-8")
    assert kapelle.cli("mcp", "install", client, cwd=here).returncode == 2
    assert path.read_text(encoding="utf-8") == "{ // a comment\n"


async def test_a_client_is_listed_few_tools_and_reaches_all(
    kapelle: Instance, repository: Path
) -> None:
    task = kapelle.play("[[do]]\nsleep = 60", repository)
    attempt = kapelle.wait_for_status(task, "running")["attempts"][0]["id"]
    token = make_attempt_token(kapelle.home.token.read_text(encoding="ascii"), attempt)
    for way, of_attempt, needed in (
        ("stdio", None, {"task_create", "loop_start", "wait", "task_merge"}),
        ("http", token, {"task_create", "wait", "question_ask", "note_set", "task_finish"}),
    ):
        async with connected(kapelle, repository, way, "auto", of_attempt) as client:
            tools = (await client.list_tools()).tools
            shown = [tool.model_dump(by_alias=True, exclude_none=True) for tool in tools]
            assert len(json.dumps(shown)) <= MOST_OF_CORE
            assert len(tools) <= 25
            names = {tool.name for tool in tools}
            assert needed <= names
            others = {one["name"] for one in (await answer(client, "tool_list"))["tools"]}
            assert {"note_delete", "best_of_start"} <= others
            assert not others & names
            schema = await answer(client, "tool_list", name="task_create")
            assert "system_prompt" in schema["inputSchema"]["properties"]
            called = {"name": "note_set", "arguments": {"key": way, "value": "v"}}
            assert (await answer(client, "tool_call", **called))["key"] == way
            made = {"name": "task_create", "arguments": {"prompt": WORK, "agent": "rehearsal"}}
            assert (await answer(client, "tool_call", **made))["directory"] == str(repository)
    async with connected(kapelle, repository, "stdio", "auto", tools="all") as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"note_delete", "best_of_start", "schedule_create"} <= names
        assert "tool_call" not in names
    kapelle.post(f"/tasks/{task}/cancel")


def test_the_list_of_tools_is_short_and_the_page_knows_it() -> None:
    tools = [tool.full for tool in Tools(idle_router()).by_name.values()]
    text = json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in tools])
    assert len(text) <= MOST_OF_ALL
    assert all(tool.description and tool.annotations for tool in tools)
    # What a program reads names no option of the command line.
    assert not re.search(r"(^|\W)--[a-z]", text)
    schedule = Tools(idle_router()).by_name["schedule_create"].full.input_schema["properties"]
    assert all(schedule[name]["description"] for name in ("kind", "spec", "at"))
    for tool in Tools(idle_router()).by_name.values():
        with pytest.raises(InvalidInput, match="has no argument 'lmit'"):
            tool.require_known({"lmit": 3})
        # Every argument that is listed is one that is taken.
        tool.require_known(tool.full.input_schema["properties"])
    named = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    assert {tool.name for tool in tools} <= named
    own = [row.tool for row in idle_router().list_operations() if row.tool]
    assert sorted({*own}) == sorted(own)
    told = {tool.name: tool for tool in tools}
    starts = [tool for name, tool in told.items() if name.endswith("_start") and name not in own]
    assert all({"deliver", "project"} <= tool.input_schema["properties"].keys() for tool in starts)
    # What reaches a forge or another service says so; what only reads may be asked again.
    marks = {name: tool.annotations for name, tool in told.items() if tool.annotations}
    outside = {name for name, mark in marks.items() if mark.open_world_hint}
    forges = {f"{kind}_pr{verb}" for kind in ("task", "run") for verb in ("", "_get")}
    assert outside == {*forges, "linear_query", "logs_query", "database_query", "ci_logs"}
    assert {name for name in told if READS.search(name)} == {
        name for name, mark in marks.items() if mark.read_only_hint
    }
    assert {name for name, tool in told.items() if tool.output_schema} == {
        "task_create", "task_get", "run_start", "run_get", "wait", "run_tail", "task_logs",
    }  # fmt: skip


async def test_no_answer_is_too_long_and_no_unknown_argument_is_ignored(
    kapelle: Instance, repository: Path
) -> None:
    ids = with_much(kapelle, repository)
    async with connected(kapelle, repository, "http", "auto", tools="all") as client:
        tools = (await client.list_tools()).tools
        assert len(tools) > 50
        for tool in tools:
            needed = tool.input_schema.get("required", [])
            given = {name: given_for(tool, name, ids) for name in needed}
            if tool.input_schema["properties"].get("timeout_s", {}).get("minimum") == 0:
                given["timeout_s"] = 0
            found = await client.call_tool(tool.name, given)
            assert len(said(found)) <= MOST_OF_ANSWER, (tool.name, len(said(found)))
        for name in ("task_list", "run_tail", "wait", "pattern_list", "task_say"):
            assert "has no argument 'lmit'" in await refusal(client, name, lmit=3)
        assert "Did you mean limit?" in await refusal(client, "run_tail", lmit=3)
        for name, key in (("task_list", "tasks"), ("run_list", "runs")):
            rows = await answer(client, name, directory=str(repository))
            assert (len(rows[key]), bool(rows["next_cursor"])) == (20, True)
            assert all(
                len(json.dumps(row, ensure_ascii=False).encode()) <= 300 for row in rows[key]
            )
            assert {"id", "title", "status", "age", "repository"} <= rows[key][0].keys()
            more = await answer(client, name, cursor=rows["next_cursor"], limit=50)
            assert not {row["id"] for row in rows[key]} & {row["id"] for row in more[key]}
            assert (await answer(client, name, directory=str(repository.parent)))[key] == []
        assert "limit" in await refusal(client, "task_list", limit=51)
        listed = await answer(client, "pattern_list")
        assert len(json.dumps(listed)) < 2_000
        loop = await answer(client, "pattern_get", name="loop")
        assert "until" in loop["spec_schema"]["properties"]
        # What was cut is there in parts, and complete.
        task = await answer(client, "task_get", task_id=ids["task_id"])
        assert {"/prompt"} <= {one["field"] for one in task["cut"]}
        prompt = kapelle.task(ids["task_id"])["prompt"]
        assert await whole(client, "task_get", "/prompt", task_id=ids["task_id"]) == prompt
        patch = await whole(client, "task_diff", "/patch", task_id=ids["task_id"])
        assert patch == kapelle.get(f"/tasks/{ids['task_id']}/diff")["patch"]
        # A log is read by its cursor, and nothing of it is left out.
        texts, cursor, more = list[str](), "", True
        while more:
            wanted = {"task_id": ids["task_id"], "attempt": "1", "last_event_id": cursor}
            logs = await answer(client, "task_logs", **wanted)
            texts += [event["text"] for event in logs["events"] if event["kind"] == "text"]
            cursor, more = logs["cursor"], logs["more"]
        assert [text.split()[0] for text in texts if text.startswith("line-")] == LINES


async def test_progress_tells_what_a_run_does(kapelle: Instance, repository: Path) -> None:
    told = list[tuple[float, float | None, str | None]]()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with connected(kapelle, repository, "stdio", "auto") as client:
        spec = {"prompt": WORK, "agent": "rehearsal", "until": ["test -e never"]}
        run = await answer(client, "loop_start", **spec, max_iterations=2)
        given = {"ids": [run["id"]], "timeout_s": 50}
        waited = await client.call_tool("wait", given, progress_callback=note)
        assert run["id"] in said(waited)
    values = [value for value, _, _ in told]
    assert values == sorted({*values})
    assert {total for _, total, message in told if "iteration" in (message or "")} == {2}
    messages = [message or "" for *_, message in told]
    assert any(message.startswith("iteration 2/2: checks fail") for message in messages)
    assert any(message.startswith("check test -e never failed") for message in messages)
    assert values[-1] <= 2.1


LINES = [f"line-{number}" for number in range(60)]
MOST_OF_ANSWER = 20_000


def with_much(kapelle: Instance, repository: Path) -> dict[str, str]:
    """A home with long texts and with 120 tasks and runs; the ids of some of it."""
    long = "A long story. " * 3_000
    told = "\n".join(f'[[do]]\nsay = "{line} {"x" * 1_000}"' for line in LINES)
    content = "many words\\n" * 9_000
    steps = f'[[do]]\nwrite = "long.txt"\ncontent = "{content}"\n{told}'
    task = kapelle.play(f'{steps}\n[[do]]\nresult = "{long}"', repository, context={"a": long})
    spec = {"prompt": long, "until": ["true"], "agent": "rehearsal", "directory": str(repository)}
    run = kapelle.post("/runs", {"pattern": "loop", "spec": spec})["id"]
    kapelle.wait(task)
    while kapelle.get(f"/runs/{run}")["status"] != "completed":
        kapelle.get(f"/runs/{run}/wait")
    with closing(sqlite3.connect(kapelle.home.database)) as database, database:
        copy_row(database, "tasks", task)
        copy_row(database, "runs", run)
    for number in range(30):
        kapelle.post("/notes", {"key": f"n{number}", "value": long, "scope": "global"})
        learning = {"title": f"Fact {number}", "content": f"{number} {long}"[:2_000]}
        kapelle.post("/learnings", {**learning, "directory": str(repository)})
    kapelle.post("/templates", {"name": "t", "guidelines": long})
    work = {"prompt": long, "agent": "rehearsal", "directory": str(repository)}
    schedule = kapelle.post("/schedules", {"kind": "task", "cron": "0 3 * * *", "spec": work})["id"]
    return {"task_id": task, "run_id": run, "schedule_id": schedule, "long": long}


def copy_row(database: sqlite3.Connection, table: str, some_id: str) -> None:
    """Make 120 copies of a row, which is quicker than as many tasks."""
    cursor = database.execute(f"SELECT * FROM {table} WHERE id = ?", (some_id,))
    names = [column[0] for column in cursor.description]
    row = dict(zip(names, cursor.fetchone(), strict=True))
    row["title"] = "A title that is rather long " * 6
    for number in range(120):
        values = {**row, "id": f"{some_id[:-3]}{number:03}", "idempotency_key": None}
        places = ", ".join("?" * len(values))
        database.execute(f"INSERT INTO {table} VALUES ({places})", list(values.values()))


def given_for(tool: Tool, name: str, ids: dict[str, str]) -> Any:
    """A value for a required argument of a tool: real where the tool reads, long where it may."""
    named = {
        "ids": [ids["task_id"], ids["run_id"]], "query": "story", "pattern": "loop",
        "key": "n2" if tool.name == "note_delete" else "n1",
        "name": "loop" if tool.name.startswith("pattern") else "rehearsal", "token": "none",
        "spec": {"prompt": ids["long"], "until": ["true"], "agent": "rehearsal"},
        "paths": ["a"], "items": [ids["long"]] * 3, "steps": [ids["long"]] * 3,
    }  # fmt: skip
    kind = tool.input_schema["properties"].get(name, {}).get("type")
    return {**ids, **named}.get(name, [ids["long"]] if kind == "array" else ids["long"])


async def whole(client: Client, tool: str, field: str, **arguments: Any) -> str:
    """A text of an answer, read in parts."""
    found, offset = "", 0
    while offset is not None:
        part = await answer(client, tool, field=field, offset=offset, **arguments)
        found += part["text"]
        offset = part.get("next_offset")
    return found


OTHERS = {"autobeat": 27, "athena": 8, "autodev": 19}


def test_the_page_knows_the_tools_of_other_systems() -> None:
    """Each has its place here, or a reason why it has none."""
    names = set(Tools(idle_router()).by_name)
    text = PAGE.read_text(encoding="utf-8").partition("## Coming from another tool")[2]
    for system, count in OTHERS.items():
        part = text.partition(f"### {system}\n")[2].partition("\n#")[0]
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \| ?(.*?) ?\|$", part, re.MULTILINE)
        assert len({theirs for theirs, *_ in rows}) == len(rows) == count, system
        for theirs, ours, why in rows:
            assert set(re.findall(r"`(\w+)`", ours)) <= names, theirs
            assert (ours == "—") <= bool(why), theirs


async def test_a_run_is_started_followed_by_cursor_answered_by_token_and_read(
    kapelle: Instance, repository: Path
) -> None:
    intake = {"success_criteria": ["done"], "questions": ["Which?", "How many?"]}
    with_playbook(
        kapelle,
        rule("You prepare", replies(intake))
        + rule("You plan[\\s\\S]*Which\\? one", replies(one()))
        + rule("You review", replies(YES))
        + rule("^WORK", {"write": "w.txt", "content": "1\n"}),
    )
    async with connected(kapelle, repository, "http", "auto") as client:
        asked_for = {"goal": "Build it", "agent": "rehearsal", "ask": True, "idempotency_key": "1"}
        began = await answer(client, "team_start", **asked_for)
        assert (await answer(client, "team_start", **asked_for))["id"] == began["id"]
        run_id, cursor, seen = began["id"], "0", list[str]()
        waited = await answer(client, "wait", ids=[run_id], timeout_s=50)
        assert [one["status"] for one in waited["resting"]] == ["waiting"]
        first = await answer(client, "run_tail", run_id=run_id, after=int(cursor), limit=2)
        assert (len(first["events"]), first["more"], first["running"]) == (2, True, False)
        assert first["cursor"] == str(first["events"][-1]["seq"])
        tail = await answer(client, "run_tail", run_id=run_id, after=int(cursor))
        assert tail["more"] is False
        seen += [event["kind"] for event in tail["events"]]
        asked = (await answer(client, "run_get", run_id=run_id))["questions"]
    # Another client goes on with what the first one was told.
    async with connected(kapelle, repository, "stdio", "auto") as client:
        for question in asked:
            ended = await answer(client, "question_answer", token=question["token"], answer="one")
            assert ended["status"] == "answered"
        while (await answer(client, "wait", ids=[run_id], timeout_s=50)).get("pending"):
            continue
        more = await answer(client, "run_tail", run_id=run_id, after=int(tail["cursor"]))
        assert more["events"]
        assert min(event["seq"] for event in more["events"]) > int(tail["cursor"])
        # Without news it stays where it was.
        for _ in "12":
            last = await answer(client, "run_tail", run_id=run_id, after=int(more["cursor"]))
            assert (last["events"], last["cursor"]) == ([], more["cursor"])
        # A daemon that dies amid a call that only reads is asked again.
        watching = asyncio.create_task(answer(client, "note_watch", keys=["none"], timeout_s=3))
        await asyncio.sleep(1)
        kapelle.kill()
        kapelle.start()
        assert "events" not in await watching
        run = await answer(client, "run_get", run_id=run_id)
        assert run["status"] == "completed"
        assert run["result"]["success_criteria"] == ["done"]
    assert "run.waiting" in seen


def test_whatever_is_sent_neither_ends_it_nor_reaches_another(kapelle: Instance) -> None:
    """Broken, huge and foreign messages are refused, each for itself; others go on beside them."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    named = {"name": "task_get", "arguments": {"task_id": "x"}}
    odd: list[Any] = [
        [call, call], [[]], None, 7, "text", {"jsonrpc": "1.0", "id": 1, "method": "ping"},
        {**call, "method": "no/such"}, {**call, "method": 7}, {**call, "id": {"a": 1}}, call,
        {**call, "params": []}, {**call, "params": {"name": 7}}, {**call, "params": {"name": "x"}},
        {**call, "params": {**named, "arguments": [1]}}, {**call, "params": {**named, "more": 1}},
        {**call, "params": {**named, "arguments": {"task_id": {"$ref": "#"}}}},
        {**call, "params": {"name": "task_list", "arguments": {"limit": "many"}}},
        {**call, "params": {"name": "wait", "arguments": {"ids": ["\u0000", "../.."]}}},
        {**call, "params": {"name": "task_get", "arguments": {"task_id": "x" * 1_000_000}}},
        {**call, "method": "initialize", "params": {"protocolVersion": "1999-01-01"}},
        {"jsonrpc": "2.0", "id": 1, "result": {}}, {"jsonrpc": "2.0", "method": "notifications/x"},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "m"}},
    ]  # fmt: skip
    url = json.loads(kapelle.home.info.read_text(encoding="utf-8"))["url"] + "/mcp"
    accepts = {"Accept": "application/json, text/event-stream"}
    headers = kapelle.bearer | accepts | {"Content-Type": "application/json"}
    versions: list[dict[str, str]] = [{}, {"MCP-Protocol-Version": "1999-01-01"}]
    versions += [{"Mcp-Session-Id": "somebody else's"}]
    good = {"jsonrpc": "2.0", "id": "mine", "method": "tools/call"}
    good["params"] = {"name": "daemon_get", "arguments": {}}  # type: ignore[assignment]
    with httpx2.Client(timeout=60) as http:
        for body in odd:
            for more in versions:
                found = http.post(url, content=json.dumps(body).encode(), headers=headers | more)
                assert found.status_code < 500, (body, found.text)
                assert '"structuredContent":{"version"' not in found.text
        huge = b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * 17_000_000 + b'"}'
        assert http.post(url, content=huge, headers=headers).status_code == 413
        mine = http.post(url, content=json.dumps(good).encode(), headers=headers)
        assert '"id":"mine"' in mine.text
        assert mine.status_code == 200
    assert kapelle.get("/daemon")["version"]
