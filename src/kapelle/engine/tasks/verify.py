"""What an ended agent's work is worth: its own report first, then the checks."""

import asyncio

from kapelle.agents.base import Summary, Verdict
from kapelle.agents.failures import classify
from kapelle.agents.registry import get as get_agent
from kapelle.domain.errors import Conflict, KapelleError, WorkspaceError
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import CheckKind
from kapelle.domain.task import CheckResult, Usage
from kapelle.engine.commands import run_check
from kapelle.engine.failpoints import failpoint
from kapelle.engine.parts import Parts
from kapelle.engine.tasks import consult
from kapelle.engine.tasks.consult import usage_of
from kapelle.engine.tasks.watch import noted
from kapelle.engine.tasks.work import Findings, Finish, Work, load_work
from kapelle.engine.usage import (
    attempt_usage,
    output_tail,
    read_output,
    session_counters,
    total_usage,
)
from kapelle.store import attempts, events, tasks
from kapelle.store.database import Connection


async def verify(parts: Parts, work: Work, finish: Finish) -> Findings:
    """Judge what the agent reported, commit its work, and make the checks on what is committed."""
    work = await load_work(parts, work.attempt_id)
    before = await usage_before(parts, work.attempt["started_from"])
    summary, tail, verdict, usage = await asyncio.to_thread(_examine, work, finish, before)
    ending = noted(work.process_dir)
    success = verdict.success and not finish.timed_out
    reason, failure = verdict.reason, verdict.failure
    if not success and not verdict.question:
        failure = _failure(work, finish, verdict, summary, tail)
        reason = _why(finish, verdict, failure, ending is not None)
    elif success and not await _stopped(parts, work):
        try:
            await _commit(parts, work)
            failed = await _check(parts, work)
            if failed:
                reason = f"failed its check: {', '.join(failed)}"
                failure = Failure(FailureClass.CHECKS, ", ".join(failed))
        except (WorkspaceError, Conflict) as error:
            success, reason = False, error.message
            failure = Failure(FailureClass.ENVIRONMENT, error.message)
    return Findings(
        success=success,
        reason=reason,
        result=verdict.result,
        claimed=verdict.claimed,
        question=None if finish.timed_out else verdict.question,
        failure=failure,
        session_id=summary.session_id,
        model=summary.model or work.attempt["model"],
        usage=usage,
        session_usage=session_counters(summary),
        can_nudge=work.settings.health.on_stall == "nudge",
    )


async def usage_before(parts: Parts, session_id: str | None) -> dict[str, float]:
    """What the session that an attempt goes on with had counted when it began."""
    return await parts.db.read(attempts.session_usage, session_id) if session_id else {}


def _examine(
    work: Work, finish: Finish, before: dict[str, float]
) -> tuple[Summary, str, Verdict, Usage | None]:
    """All that is read from the disk, at once and off the event loop."""
    tail = output_tail(work.process_dir)
    try:
        agent = get_agent(work.agent, work.settings)
    except KapelleError as error:
        return Summary(), tail, Verdict(False, error.message), _usage(work, Summary(), before)
    summary = read_output(agent, work.process_dir)
    if finish.exit.kind == "not_started":
        verdict = Verdict(False, finish.detail or "the agent could not be started")
    else:
        verdict = agent.judge(summary, finish.exit, tail)
    return summary, tail, verdict, _usage(work, summary, before)


def _usage(work: Work, summary: Summary, before: dict[str, float]) -> Usage | None:
    """What the attempt used, with what was asked of other agents for its sake."""
    settings, model = work.settings, summary.model or work.attempt["model"]
    parts = [attempt_usage(summary, before, model, settings)]
    if settings.difficulty.agent:
        parts.append(usage_of(work, consult.DIFFICULTY, settings.difficulty.agent))
    parts.append(usage_of(work, consult.DIAGNOSIS, settings.roles.judge or work.agent))
    return total_usage(parts)


def _failure(work: Work, finish: Finish, verdict: Verdict, summary: Summary, tail: str) -> Failure:
    if finish.timed_out:
        return Failure(FailureClass.TIMEOUT, finish.detail or "timed out")
    found = noted(work.process_dir) or verdict.failure
    if found is not None:
        return found
    found = classify(summary, finish.exit, tail, work.settings.failures.environment)
    if found.kind is FailureClass.CRASH and verdict.claimed == "failure":
        # An exit code is all that a plain command can say, and it said so.
        return Failure(FailureClass.TASK, found.evidence)
    return found


def _why(finish: Finish, verdict: Verdict, failure: Failure, ended_by_us: bool) -> str:
    if finish.exit.kind == "lost":
        return f"lost: {finish.detail or 'nobody saw how it ended'}"
    if finish.timed_out:
        return finish.detail or "timed out"
    return failure.evidence if ended_by_us else verdict.reason or finish.detail or failure.evidence


async def _stopped(parts: Parts, work: Work) -> bool:
    return await parts.db.glance(tasks.stop_requested, work.task_id) is not None


async def _commit(parts: Parts, work: Work) -> None:
    # After a crash amid the checks, what they left behind must not join the agent's work.
    if work.is_worktree and not (work.process_dir / "checks").exists():
        message = f"{work.task['title']}\n\nTask: {work.task_id}\nAgent: {work.agent}"
        commit = await parts.workspaces.commit(work.owner, message)
        await parts.db.write(tasks.update, work.task_id, workspace_commit=commit)


async def _check(parts: Parts, work: Work) -> list[str]:
    """Make the checks that are not recorded yet; the names of all that failed."""
    if not work.checks:
        return []
    known = await parts.db.read(attempts.recorded_checks, work.attempt_id)
    # Built-in checks look at the agent's work, which commands may add to: they come first.
    order = sorted(enumerate(work.checks), key=lambda item: item[1].kind is CheckKind.COMMAND)
    for position, check in order:
        if position in known:
            continue
        if await _stopped(parts, work):
            break
        failpoint("verify_before_check")
        known[position] = await run_check(parts, work, position, check)
        await parts.db.write(_record_check, work, position, known[position])
    return [result.name for _, result in sorted(known.items()) if not result.passed]


def _record_check(connection: Connection, work: Work, position: int, result: CheckResult) -> None:
    attempts.add_check(connection, work.attempt_id, position, result)
    kind = "check.passed" if result.passed else "check.failed"
    events.append(connection, kind, work.task_id, work.attempt_id, name=result.name)
