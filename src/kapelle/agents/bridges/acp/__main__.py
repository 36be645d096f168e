"""Runs an Agent Client Protocol agent for one attempt and prints Kapelle's events.

    python -m kapelle.agents.bridges.acp --job FILE -- COMMAND…

The prompt comes by standard input, and the working directory is the workspace. The exit code is 0
with a result or a question, 1 with an error, and 128 and the signal's number when stopped.
"""

import asyncio
import signal
import sys
from pathlib import Path

from kapelle.agents.bridges.acp.errors import Problem
from kapelle.agents.bridges.acp.job import Job
from kapelle.agents.bridges.acp.process import AgentProcess
from kapelle.agents.bridges.acp.turn import Turn

_CANCELLING_S = 2.0


def main() -> int:
    option, path, dashes, *command = sys.argv[1:]
    if (option, dashes) != ("--job", "--") or not command:
        sys.exit(__doc__)
    job = Job.of_text(Path(path).read_text("utf-8"))
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    return asyncio.run(_perform(job, prompt, command))


async def _perform(job: Job, prompt: str, command: list[str]) -> int:
    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _note, stopped, number)
    try:
        process = await AgentProcess.start(command)
    except OSError as error:
        Problem(f"{command[0]} cannot be started: {error.strerror}", "environment").tell()
        return 1
    try:
        return await _follow(Turn(process, job, prompt), stopped)
    finally:
        await process.close()


async def _follow(turn: Turn, stopped: asyncio.Future[int]) -> int:
    """Until the turn has ended, or until a signal has ended it."""
    work = asyncio.create_task(turn.run())
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        return work.result()
    await turn.stop()
    await asyncio.wait({work}, timeout=_CANCELLING_S)
    work.cancel()
    await asyncio.wait({work})
    return 128 + stopped.result()


def _note(stopped: asyncio.Future[int], number: int) -> None:
    if not stopped.done():
        stopped.set_result(number)


if __name__ == "__main__":
    sys.exit(main())
