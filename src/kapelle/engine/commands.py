"""Commands that judge work, run as processes: how they ended, what they printed, and the checks of
tasks, each of which decides from evidence whether the work is good.

A command is good if it ended by itself with exit code 0 within its time; whatever else happened is
said in one sentence. Its output is what it wrote to both streams, the end of it if it is long.
"""

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

from kapelle.agents.registry import get as get_agent
from kapelle.domain.errors import KapelleError
from kapelle.domain.specs import CheckKind, CheckSpec
from kapelle.domain.task import CheckResult
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.launch import launch_command
from kapelle.engine.tasks.work import Work, task_diff
from kapelle.runner.output import both_streams, lines_of
from kapelle.runner.redaction import redact
from kapelle.store.query import workspace_of

SHOWN_OUTPUT = 20_000
_SHOWN_LINE = 500
_ERROR = re.compile(
    r"^(?:\S*(?:error|exception)|fatal|panic)\b\s*[:\[(!]|^Traceback \(most recent call last\)",
    re.IGNORECASE | re.MULTILINE,
)


async def run_check(parts: Parts, work: Work, position: int, check: CheckSpec) -> CheckResult:
    """Make one check on an attempt whose agent has ended."""
    began = time.monotonic()
    match check.kind:
        case CheckKind.COMMAND:
            passed_, output = await _command(parts, work, position, check)
        case CheckKind.DIFF_NOT_EMPTY:
            passed_, output = await _diff_not_empty(parts, work)
        case CheckKind.NO_ERROR_IN_OUTPUT:
            passed_, output = await asyncio.to_thread(_no_error_in_output, work)
    seconds = round(time.monotonic() - began, 3)
    return CheckResult(name=check.label, passed=passed_, output=output, duration_s=seconds)


async def _command(parts: Parts, work: Work, position: int, check: CheckSpec) -> tuple[bool, str]:
    name = f"checks/{position}"
    launch = launch_command(parts, work, name, check.command or "", check.timeout_s)
    ended = await parts.execute(work.attempt_id, work.task_id, launch)
    output = await asyncio.to_thread(both_streams, launch.process_dir, SHOWN_OUTPUT)
    if ended.succeeded:
        return True, output
    return (
        False,
        f"{output}\n[{_ending(check, ended.ended_by, ended.exit.code, ended.detail)}]".lstrip(),
    )


def _ending(check: CheckSpec, ended_by: str | None, code: int | None, detail: str | None) -> str:
    if ended_by == "timeout":
        return f"timed out after {check.timeout_s:g} s"
    if ended_by == "stop":
        return "stopped"
    return f"exit code {code}" if code is not None else detail or "it did not end by itself"


async def _diff_not_empty(parts: Parts, work: Work) -> tuple[bool, str]:
    try:
        if work.starting_tree:
            diff = await parts.workspaces.diff_since(work.directory, work.starting_tree)
        elif work.is_worktree:
            diff = await task_diff(parts, work.task_id, workspace_of(work.task))
        else:
            return False, "This check needs a git repository, and the directory is in none."
    except KapelleError as error:
        return False, error.message
    redacted = redact(diff.stat.encode(), parts.redactions(work.attempt_id, work.task_env))
    if diff.files:
        return True, redacted.decode("utf-8", "replace")[-SHOWN_OUTPUT:]
    return False, "The agent changed nothing."


def _no_error_in_output(work: Work) -> tuple[bool, str]:
    for name in ("out.log", "err.log"):
        found = _first_error(_texts(work, work.process_dir / name))
        if found is not None:
            return False, found[:_SHOWN_LINE]
    return True, ""


def _texts(work: Work, path: Path) -> Iterator[str]:
    """What an agent wrote, as text and not in its own line format."""
    agent = get_agent(work.agent, work.settings)
    structured = agent.reads_whole_output and path.name == "out.log"
    for line in lines_of(path):
        if not structured:
            yield line
            continue
        for event in agent.parse(line):
            yield f"error: {event.text}" if event.kind == "error" else event.text


def _first_error(texts: Iterator[str]) -> str | None:
    for text in texts:
        found = _ERROR.search(text)
        if found:
            return text[found.start() :].split("\n", 1)[0]
    return None
