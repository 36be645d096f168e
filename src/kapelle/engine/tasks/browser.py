"""An agent's browser: the served application, the tools to look at it, and the screenshots."""

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
_APPLICATION = "1. Open the application at {url}. It runs from this workspace, for you alone.\n"
_INSTRUCTIONS = """

## Browser
{application}{number}. Use the tools of {server} to drive a browser.
{next_number}. Save a screenshot of everything that you verify in {place}.
   Use descriptive file names.
   Kapelle keeps these files as evidence."""


def tools(attempt: ActiveAttempt) -> dict[str, McpServer]:
    """Return the MCP server that drives a browser; its temporary directory receives screenshots."""
    if not attempt.task["browser"]:
        return {}
    settings = attempt.settings.browser
    command = ["npx", "-y", settings.package, *settings.args]
    return {settings.server: McpServer(command=command, env={"TMPDIR": str(_place(attempt))})}


def format_instructions(attempt: ActiveAttempt) -> str:
    """Return the section about the browser for the prompt of the agent."""
    if not attempt.task["browser"]:
        return ""
    port = _port(attempt)
    server = attempt.settings.browser.server
    application = ""
    number = 1
    if port:
        application = _APPLICATION.format(url=f"http://127.0.0.1:{port}")
        number = 2
    return _INSTRUCTIONS.format(
        application=application,
        number=number,
        next_number=number + 1,
        server=server,
        place=_place(attempt),
    )


async def start_application(attempt: ActiveAttempt) -> None:
    """Start the application in the agent's workspace on a free port, and wait until it answers.

    Raises WorkspaceError if it does not.
    """
    settings = attempt.settings.browser
    _place(attempt).mkdir(mode=0o700, exist_ok=True)
    if not settings.serve:
        return
    port = _port(attempt)
    # After a crash, the port is known from the name of the process.
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
    launch = await place.command(process, settings.serve, _LONGEST_S, label)
    attempt.serving = asyncio.ensure_future(attempt.execute(name, launch))
    try:
        async with asyncio.timeout(settings.ready_s):
            while not attempt.serving.done():
                if await _answers(port):
                    return
                await asyncio.sleep(_LOOK_S)
        problem = "ended before it answered"
    except TimeoutError:
        problem = f"did not answer on port {port} within {settings.ready_s:g} s"
    await stop_application(attempt)
    raise WorkspaceError(
        f"The application {problem}: {last_words(process)}",
        hint="browser.serve starts it, on the port that the variable PORT names.",
    )


def last_words(process: Process) -> str:
    """Return the end of the output of a failed command."""
    names = ("err.log", "out.log")
    return next(
        filter(None, (read_tail(process.directory / name, 500) for name in names)), ""
    ).strip()


async def stop_application(attempt: ActiveAttempt) -> None:
    """End the application, also one that an earlier daemon started."""
    for name, process in attempt.processes.items():
        if name.startswith(_SERVE):
            await attempt.parts.end_process(process, "its agent has ended")


def keep_pictures(attempt: ActiveAttempt) -> None:
    """Keep the screenshots of the agent under plain names, and delete everything else."""
    source = _place(attempt)
    count = 0
    for entry in sorted(source.iterdir()) if source.is_dir() else []:
        content = read_picture(entry, LARGEST)
        if content is not None and count < _MOST:
            count += 1
            attempt.files.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = re.sub(r"[^A-Za-z0-9.]+", "-", entry.name)[-100:]
            (attempt.files / f"{count}-{name}").write_bytes(content[1])
    shutil.rmtree(source, ignore_errors=True)


def read_picture(path: Path, most: int = 16) -> tuple[str, bytes] | None:
    """Return the media type and the beginning of a picture; None for any other file."""
    try:
        # The agent may have put a link or a pipe there, which must not be followed or waited for.
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
    """Return the private directory for screenshots.

    Its name cannot be guessed, and is short enough for the sockets that Chrome creates there.
    """
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
