"""What an ended agent's work is worth: its own report first, then the checks."""

import asyncio

from kapelle.agents.base import Summary, Verdict
from kapelle.agents.registry import get as get_agent
from kapelle.agents.summary import summarise
from kapelle.domain.errors import Conflict, KapelleError, WorkspaceError
from kapelle.domain.specs import CheckKind
from kapelle.domain.task import CheckResult
from kapelle.engine.checks import run_check
from kapelle.engine.failpoints import failpoint
from kapelle.engine.findings import Findings, Finish
from kapelle.engine.stage import Stage
from kapelle.engine.work import Work
from kapelle.runner.output import lines_of, tail_text
from kapelle.store import attempts, events, tasks
from kapelle.store.database import Connection

_TAIL = 10_000
_LAST_BYTES = 1 << 18


async def verify(stage: Stage, work: Work, finish: Finish) -> Findings:
    """Judge what the agent reported, commit its work, and make the checks on what is committed."""
    summary, tail = await asyncio.to_thread(_read_output, work)
    verdict = _judge(work, summary, finish, tail)
    success = verdict.success and not finish.timed_out
    reason = verdict.reason
    failed: list[str] = []
    if success and not await _stopped(stage, work):
        try:
            await _commit(stage, work)
            failed = await _check(stage, work)
        except (WorkspaceError, Conflict) as error:
            success, reason = False, error.message
    return Findings(
        success=success,
        reason=reason,
        result=verdict.result,
        claimed=verdict.claimed,
        waiting_for=verdict.waiting_for,
        retry_at=verdict.retry_at,
        failed_checks=tuple(failed),
        session_id=summary.session_id,
        usage=summary.usage,
    )


def _judge(work: Work, summary: Summary, finish: Finish, tail: str) -> Verdict:
    if finish.exit.kind == "not_started":
        return Verdict(False, finish.detail or "the agent could not be started")
    try:
        agent = get_agent(work.task["agent"], work.settings)
    except KapelleError as error:
        return Verdict(False, error.message)
    return agent.judge(summary, finish.exit, tail)


def _read_output(work: Work) -> tuple[Summary, str]:
    tail = tail_text(work.run_dir / "err.log", _TAIL // 2)
    tail = f"{tail_text(work.run_dir / 'out.log', _TAIL)}\n{tail}".strip()
    try:
        agent = get_agent(work.task["agent"], work.settings)
    except KapelleError:
        return Summary(), tail
    return summarise(
        agent, lines_of(work.run_dir / "out.log", None if agent.reads_whole_output else _LAST_BYTES)
    ), tail


async def _stopped(stage: Stage, work: Work) -> bool:
    return await stage.db.glance(tasks.wish, work.task_id) is not None


async def _commit(stage: Stage, work: Work) -> None:
    # After a crash amid the checks, what they left behind must not join the agent's work.
    if work.is_worktree and not (work.run_dir / "checks").exists():
        message = f"{work.task['title']}\n\nTask: {work.task_id}\nAgent: {work.task['agent']}"
        commit = await stage.workspaces.commit(work.task_id, message)
        await stage.db.write(tasks.update, work.task_id, workspace_commit=commit)


async def _check(stage: Stage, work: Work) -> list[str]:
    """Make the checks that are not recorded yet; the names of all that failed."""
    known = await stage.db.read(attempts.recorded_checks, work.attempt_id)
    # Built-in checks look at the agent's work, which commands may add to: they come first.
    order = sorted(enumerate(work.checks), key=lambda item: item[1].kind is CheckKind.COMMAND)
    for position, check in order:
        if position in known:
            continue
        if await _stopped(stage, work):
            break
        failpoint("verify_before_check")
        known[position] = await run_check(stage, work, position, check)
        await stage.db.write(_record_check, work, position, known[position])
    return [result.name for _, result in sorted(known.items()) if not result.passed]


def _record_check(connection: Connection, work: Work, position: int, result: CheckResult) -> None:
    attempts.add_check(connection, work.attempt_id, position, result)
    kind = "check.passed" if result.passed else "check.failed"
    events.append(connection, kind, work.task_id, work.attempt_id, name=result.name)
