"""An agent's browser: the application, served for its workspace alone, the tools to look at it
with, and the pictures of what it saw."""

import asyncio
import hashlib
import os
import re
import shutil
import socket
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.domain.specs import McpServer
from kapelle.engine.tasks.attempt import ActiveAttempt
from kapelle.runner.output import read_tail
from kapelle.runner.process_dir import Process

_SERVE = "serve/"
_LOOK_S = 0.1
_LONGEST_S = 86_400.0
LARGEST = 10_000_000
_MOST = 100
_KINDS = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}
_APPLICATION = "The application runs at {url}, from this workspace and for you alone. "
_TOLD = """

## Browser
{application}The tools of {server} drive a browser. Save a screenshot of all that you verify as a
file with a telling name in {place}: these are kept as evidence."""


def tools(attempt: ActiveAttempt) -> dict[str, McpServer]:
    """The MCP server that drives a browser; its temporary files are where pictures go."""
    if not attempt.task["browser"]:
        return {}
    wanted = attempt.settings.browser
    command = ["npx", "-y", wanted.package, *wanted.args]
    return {wanted.server: McpServer(command=command, env={"TMPDIR": str(_place(attempt))})}


def told(attempt: ActiveAttempt) -> str:
    """What its agent is told of that."""
    if not attempt.task["browser"]:
        return ""
    port = _port(attempt)
    server = attempt.settings.browser.server
    if port:
        application = _APPLICATION.format(url=f"http://127.0.0.1:{port}")
    else:
        application = ""
    return _TOLD.format(application=application, server=server, place=_place(attempt))


async def serve(attempt: ActiveAttempt) -> None:
    """Start the application in the agent's workspace, on a port of its own, and wait for it."""
    wanted = attempt.settings.browser
    _place(attempt).mkdir(mode=0o700, exist_ok=True)
    if not wanted.serve:
        return
    port = _port(attempt)
    if port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
    name = f"{_SERVE}{port}"
    process = await attempt.process(name)
    directory = attempt.task["directory"]
    place = attempt.agent_place.at(
        directory, attempt.settings.directory_of("browser.serve", directory)
    )
    place = replace(place, env=attempt.env | {"PORT": str(port)})
    label = f"the application of {attempt.task_id}"
    launch = await place.command(process, wanted.serve, _LONGEST_S, label)
    attempt.serving = asyncio.ensure_future(attempt.execute(name, launch))
    try:
        async with asyncio.timeout(wanted.ready_s):
            while not attempt.serving.done():
                if await _answers(port):
                    return
                await asyncio.sleep(_LOOK_S)
        problem = "ended before it answered"
    except TimeoutError:
        problem = f"did not answer on port {port} within {wanted.ready_s:g} s"
    await stop(attempt)
    raise WorkspaceError(
        f"The application {problem}: {last_words(process)}",
        hint="browser.serve starts it, on the port that the variable PORT names.",
    )


def last_words(process: Process) -> str:
    """The end of what a command said that failed."""
    names = ("err.log", "out.log")
    return next(
        filter(None, (read_tail(process.directory / name, 500) for name in names)), ""
    ).strip()


async def stop(attempt: ActiveAttempt) -> None:
    """End the application, whoever started it."""
    for name, process in attempt.processes.items():
        if name.startswith(_SERVE):
            await attempt.parts.end_process(process, "its agent has ended")


def keep_pictures(attempt: ActiveAttempt) -> None:
    """Keep the pictures that its agent saved, under plain names, and nothing else."""
    source = _place(attempt)
    kept = 0
    for entry in sorted(source.iterdir()) if source.is_dir() else []:
        found = picture(entry, LARGEST)
        if found is not None and kept < _MOST:
            kept += 1
            attempt.files.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = re.sub(r"[^A-Za-z0-9.]+", "-", entry.name)[-100:]
            (attempt.files / f"{kept}-{name}").write_bytes(found[1])
    shutil.rmtree(source, ignore_errors=True)


def picture(path: Path, most: int = 16) -> tuple[str, bytes] | None:
    """The media type and the beginning of a regular file that is a picture and not too large."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
            return None
        data = os.read(descriptor, most)
    finally:
        os.close(descriptor)
    kinds = (kind for start, kind in _KINDS.items() if data.startswith(start))
    return next(((kind, data) for kind in kinds), None)


def _place(attempt: ActiveAttempt) -> Path:
    """Where its agent saves pictures: a private directory with a name that nobody can guess, short
    enough for the sockets that Chrome makes there."""
    name = f"kapelle-{hashlib.sha256(attempt.token.encode()).hexdigest()[:12]}"
    return Path(tempfile.gettempdir()) / name


def _port(attempt: ActiveAttempt) -> int | None:
    names = [name for name in attempt.processes if name.startswith(_SERVE)]
    if names:
        return int(names[-1].removeprefix(_SERVE))
    return None


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
