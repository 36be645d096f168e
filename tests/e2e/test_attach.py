"""Interactive agents: typed into over restarts, from several places, and by their owner alone."""

import asyncio
import contextlib
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

from kapelle.api.routes.terminals import TerminalSockets
from kapelle.api.security import Principal
from kapelle.domain.ids import make_attempt_token
from kapelle.service.sessions import SessionService
from tests.e2e.support.instance import Instance, UnixConnection
from tests.e2e.support.terminal import Terminal

LEAVE = "\x1d"


def opened(
    terminals: list[Terminal], kapelle: Instance, *arguments: str, cwd: Path | None = None
) -> Terminal:
    terminals.append(Terminal(kapelle, *arguments, cwd=cwd))
    return terminals[-1]


def begun(terminals: list[Terminal], kapelle: Instance, cwd: Path, *more: str) -> Terminal:
    terminal = opened(terminals, kapelle, "run", "-i", "-a", "rehearsal", *more, cwd=cwd)
    terminal.read_until("rehearsal> ")
    return terminal


def newest(kapelle: Instance) -> Any:
    return kapelle.get("/tasks")["tasks"][0]


def test_a_terminal_is_typed_into_across_a_death_of_the_daemon(
    kapelle: Instance, repository: Path, terminals: list[Terminal]
) -> None:
    terminal = begun(
        terminals, kapelle, repository, "the first words", "--check", "test -e made.txt"
    )
    terminal.read_until("You said: the first words")
    terminal.type("echo said be''fore\r")
    terminal.read_until("said before")
    task = newest(kapelle)
    assert (task["status"], task["interactive"]) == ("running", True)
    kapelle.kill()
    kapelle.start()
    terminal.type("echo something > made.txt\r")
    terminal.type("echo said af''ter\r")
    terminal.read_until("said after")
    assert terminal.shown.count("said before") == 1
    # A second one has the whole scrollback, and both see what is typed in either.
    other = opened(terminals, kapelle, "attach", task["id"])
    other.read_until("said after")
    assert "said before" in other.shown
    other.type("echo said else''where\r")
    for each in (terminal, other):
        each.read_until("said elsewhere")
    other.type(LEAVE)
    assert other.finish() == 0
    assert "`kapelle attach " in other.shown
    terminal.type("exit\r")
    assert terminal.finish() == 0
    ended = kapelle.task(task["id"])
    assert (ended["status"], [check["passed"] for check in ended["checks"]]) == (
        "completed",
        [True],
    )
    assert "made.txt" in kapelle.get(f"/tasks/{task['id']}/diff")["stat"]
    shown = kapelle.cli("logs", task["id"]).stdout
    assert "said after" in shown
    assert "\x1b" not in shown
    refused = opened(terminals, kapelle, "attach", task["id"])
    assert refused.finish() == 2
    assert "`kapelle resume " in refused.shown


def test_the_size_reaches_the_program_and_every_way_out_restores_the_terminal(
    kapelle: Instance, repository: Path, terminals: list[Terminal]
) -> None:
    terminal = Terminal(kapelle, "run", "-i", "-a", "rehearsal", cwd=repository)
    terminals.append(terminal)
    before = terminal.modes()
    terminal.read_until("rehearsal> ")
    assert terminal.modes() != before
    terminal.type("stty size\r")
    terminal.read_until("30 120")
    # The quotation marks keep what is typed from being what is waited for.
    terminal.type(
        "sh -c \"trap 'stty size; exit' WINCH; echo wait''ing; while :; do sleep 0.1; done\"\r"
    )
    terminal.read_until("waiting")
    terminal.resize(101, 41)
    terminal.process.send_signal(signal.SIGWINCH)
    terminal.read_until("41 101")
    terminal.process.terminate()
    terminal.finish()
    assert terminal.modes() == before
    assert "\x1b[?1049l" in terminal.shown
    task = newest(kapelle)
    assert task["status"] == "running"
    again = opened(terminals, kapelle, "attach", cwd=repository)
    again.read_until("41 101")
    again.type("exit 3\r")
    assert again.finish() == 1
    assert again.modes()[3] == before[3]
    assert kapelle.task(task["id"])["reason"] == "The agent exited with code 3."


def test_only_who_may_is_let_in_and_the_others_are_told_what_to_type(
    kapelle: Instance, repository: Path, terminals: list[Terminal]
) -> None:
    plain = kapelle.submit("hello", repository, agent="rehearsal")
    kapelle.wait(plain)
    told = opened(terminals, kapelle, "attach", plain)
    assert told.finish() == 2
    assert "`kapelle logs -f " in told.shown
    piped = kapelle.cli("run", "-i", "-a", "rehearsal", cwd=repository)
    task_id = piped.stdout.strip()
    assert kapelle.wait_for_status(task_id, "running")
    assert "are no terminal" in kapelle.cli("attach", task_id).stderr
    path = f"/tasks/{task_id}/terminal"
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }  # fmt: skip
    own = kapelle.bearer
    attempt = kapelle.task(task_id)["attempts"][0]["id"]
    of_attempt = make_attempt_token(kapelle.home.token.read_text(encoding="ascii"), attempt)
    for headers, status in (
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
        ({"Authorization": f"Bearer {of_attempt}"}, 403),
        ({**own, "Origin": "http://evil.example"}, 403),
        ({**own, "Origin": "null"}, 403),
    ):
        assert kapelle.request("GET", path, headers={**upgrade, **headers})[0].status == status
    missing = kapelle.request("GET", "/tasks/nothing/terminal", headers={**upgrade, **own})
    assert missing[0].status == 404
    no_retry = kapelle.cli("run", "-i", "-a", "rehearsal", "--retry", "same", cwd=repository)
    assert "--interactive cannot be combined" in no_retry.stderr
    assert f"kapelle attach {task_id}" in kapelle.cli("status", task_id).stdout
    kapelle.cli("cancel", task_id)
    assert kapelle.wait(task_id)["status"] == "cancelled"


def test_a_websocket_where_there_is_none_is_refused(kapelle: Instance) -> None:
    connection = UnixConnection(kapelle.home.socket, 20)
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }  # fmt: skip
    with contextlib.closing(connection):
        connection.request("GET", "/mcp", headers={**kapelle.bearer, **upgrade})
        assert connection.getresponse().status == 404


def quiet(
    sessions: SessionService, principal: Principal, said: Any, type_: Any = None
) -> tuple[Any, Any]:
    """A service, and a WebSocket to a terminal that shows nothing."""

    async def read() -> Any:
        await asyncio.Event().wait()
        yield b""

    attach = AsyncMock(return_value=SimpleNamespace(type=type_, read=read))
    service = SimpleNamespace(terminals=SimpleNamespace(attach=attach), sessions=sessions)
    socket = AsyncMock(receive=AsyncMock(side_effect=said), scope={"kapelle.principal": principal})
    return service, socket


async def attach(services: Any, socket: Any) -> None:
    await TerminalSockets(services).attach(socket, "task")


async def test_who_leaves_a_terminal_that_reads_nothing_leaves_nothing_behind() -> None:
    typed: list[bytes] = []

    async def type_(data: bytes) -> None:
        typed.append(data)
        await asyncio.Event().wait()

    said = [{"type": "websocket.receive", "bytes": b"a"}] * 3 + [{"type": "websocket.disconnect"}]
    quietly = quiet(SessionService(), Principal("owner"), said, type_)
    await asyncio.wait_for(attach(*quietly), 60)
    assert typed == [b"a"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_logging_out_closes_the_terminals_of_that_browser_alone() -> None:
    sessions, opened = SessionService(), asyncio.Semaphore(0)
    own, other = (sessions.log_in(sessions.new_code().code) for _ in range(2))

    async def silent() -> None:
        opened.release()
        await asyncio.Event().wait()

    mine, theirs = (
        asyncio.create_task(attach(*quiet(sessions, Principal("owner", session=session), silent)))
        for session in (own, other)
    )
    for _ in (own, other):
        await opened.acquire()
    sessions.log_out(own)
    await asyncio.wait_for(mine, 60)
    assert not theirs.done()
    sessions.log_out(other)
    await asyncio.wait_for(theirs, 60)
