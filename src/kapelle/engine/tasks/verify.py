"""Verify the work of an ended agent: its own report first, then the checks."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kapelle.agents.base import AgentAdapter, AgentVerdict, Summary
from kapelle.agents.failures import classify
from kapelle.domain.answers import UnreadableAnswer, require_json
from kapelle.domain.errors import (
    Conflict,
    ConflictMarkersLeft,
    KapelleError,
    Tampered,
    WorkspaceError,
)
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.outcome import Evidence
from kapelle.domain.specs import CheckKind, CheckSpec
from kapelle.domain.task import ANSWER_CHECK, CheckResult
from kapelle.domain.text import format_files
from kapelle.engine.delivery import await_ci
from kapelle.engine.parts import CHECK_STARTED
from kapelle.engine.processes.output import (
    MAX_OUTPUT,
    SideLog,
    attempt_usage,
    check_facts,
    highest_usage,
    output_tail,
    read_output,
    session_counters,
    total_usage,
)
from kapelle.engine.processes.proof import Subject
from kapelle.engine.questions import end
from kapelle.engine.tasks.attempt import CHECKS, ActiveAttempt, require_claim, task_diff
from kapelle.engine.tasks.browser import keep_pictures, stop_application
from kapelle.engine.tasks.consult import consulting_usage
from kapelle.engine.tasks.watch import recorded_cause, usage_before
from kapelle.runner.output import read_lines
from kapelle.runner.redaction import redact
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import attempts, events, questions, steps, tasks
from kapelle.store.database import Connection

_SHOWN_LINE = 500
# Failure classes by the code of the error.
_FAILURES = {
    "tampered": FailureClass.TAMPERED,
    "unfiltered": FailureClass.CHECKS,
    "unreadable": FailureClass.TASK,
    "unresolved": FailureClass.CHECKS,
}
_ERROR = re.compile(
    r"^(?:\S*(?:error|exception)|fatal|panic)\b\s*[:\[(!]|^Traceback \(most recent call last\)",
    re.IGNORECASE | re.MULTILINE,
)


async def verify(attempt: ActiveAttempt, evidence: Evidence) -> Evidence:
    """Judge the agent's report, commit its work, and run the checks on the commit.

    After a crash, the commit and the recorded checks are not repeated.
    """
    summary, tail, verdict = await asyncio.to_thread(_examine, attempt, evidence)
    verdict, unanswered = await _apply_reports(attempt, evidence, verdict)
    try:
        await _warn_of_repository(attempt)
    except WorkspaceError as error:
        problem = Failure(_failure_class(error), error.message)
        verdict = replace(verdict, success=False, reason=error.with_hint, failure=problem)
    if attempt.task["browser"]:
        await stop_application(attempt)
        await asyncio.to_thread(keep_pictures, attempt)
    if attempt.is_read_only:
        await attempt.parts.workspaces.remove_copy(attempt.owner)
    before = await usage_before(attempt)
    model = summary.model or attempt.row["model"] or await _model_of_session(attempt)
    success = verdict.success and not evidence.timed_out
    reason = verdict.reason
    failure = verdict.failure
    if not success and not verdict.question:
        failure, reason = _explain_failure(attempt, evidence, verdict, summary, tail)
    elif success and not await attempt.stop_requested():
        try:
            commit = await _commit(attempt)
            await _require_resolved(attempt)
            failed_checks = await _check(attempt, commit)
            # A check may have moved the branch away from what was checked.
            await _require_unmoved(attempt, commit)
            unreadable = await _find_unreadable(attempt, verdict.result, commit)
            await _remove_files_of_checks(attempt, commit)
            if failed_checks:
                reason = f"failed its check: {', '.join(failed_checks)}"
                failure = Failure(FailureClass.CHECKS, ", ".join(failed_checks))
            elif unreadable:
                reason = f"its answer is unusable: {unreadable}"
                failure = Failure(FailureClass.CHECKS, unreadable)
        except (WorkspaceError, Conflict, Tampered) as error:
            success = False
            reason = error.with_hint
            failure = Failure(_failure_class(error), error.message)
        if attempt.is_worktree:
            await attempt.parts.workspaces.bring_back(attempt.owner)
    own = attempt_usage(summary, before, model, attempt.settings)
    if own is None or evidence.exit.kind == "tampered":
        # The log may have been emptied; the usage that was counted during the run still holds.
        own = highest_usage(own, attempt.counted_usage)
    consulting = await consulting_usage(attempt)
    return replace(
        evidence,
        success=success,
        reason=reason,
        result=verdict.result,
        claimed=verdict.claimed,
        question=unanswered or (None if evidence.timed_out else verdict.question),
        failure=failure,
        session_id=summary.session_id,
        model=model,
        usage=total_usage([own, *consulting]),
        session_usage=session_counters(summary),
        can_nudge=attempt.settings.health.on_stall == "nudge",
    )


async def _remove_files_of_checks(attempt: ActiveAttempt, commit: str | None) -> None:
    """Remove files that the checks left: neither this agent nor the next one made them."""
    if commit is not None and attempt.checks and not attempt.shares_files:
        await attempt.parts.workspaces.remove_new(attempt.owner)


async def _model_of_session(attempt: ActiveAttempt) -> str | None:
    """Return the model of a resumed session; some agents name it only at its start."""
    session_id = attempt.row["started_from"]
    if session_id is None:
        return None
    return await attempt.parts.db.read(attempts.load_session_model, session_id)


def _failure_class(error: KapelleError) -> FailureClass:
    return _FAILURES.get(error.code, FailureClass.ENVIRONMENT)


async def _apply_reports(
    attempt: ActiveAttempt, evidence: Evidence, verdict: AgentVerdict
) -> tuple[AgentVerdict, str | None]:
    """Return the verdict with the handed-in result, and the open question of the agent."""
    if evidence.exit.kind == "tampered":
        return verdict, None
    claim = await attempt.parts.db.glance(require_claim, attempt.id, attempt.parts.performer)
    if claim["handed_in"]:
        verdict = _with_handed_in(verdict, claim["handed_in"])
    if claim["asks"]:
        unanswered = await attempt.write(_settle_questions, attempt, verdict)
    else:
        unanswered = None
    if unanswered:
        reason = f"It asks: {unanswered}"
        verdict = replace(verdict, success=False, reason=reason, question=unanswered)
    return verdict, unanswered


def _with_handed_in(verdict: AgentVerdict, handed_in: dict[str, Any]) -> AgentVerdict:
    """Return the verdict with the handed-in result, which can make it worse but never better."""
    result = handed_in["result"]
    if isinstance(result, str):
        text = result
    else:
        text = json.dumps(result, ensure_ascii=False)
    verdict = replace(verdict, result=text or verdict.result)
    if handed_in["success"] or not verdict.success:
        return verdict
    reason = f"the agent reported a failure: {text[:_SHOWN_LINE]}"
    failure = Failure(FailureClass.TASK, reason)
    return replace(verdict, success=False, reason=reason, claimed="failure", failure=failure)


def _settle_questions(
    connection: Connection, attempt: ActiveAttempt, verdict: AgentVerdict
) -> str | None:
    """Return the first question that needs an answer.

    The questions of successful work end with their defaults.
    """
    for question in questions.list_unsent(connection, attempt.id):
        if not verdict.success or question.default is None:
            return question.text
        if question.status == "open":
            end(connection, question, "expired", question.default)
        questions.mark_sent(connection, [question.token])
    return None


async def _warn_of_repository(attempt: ActiveAttempt) -> None:
    """Warn if the user's own repository changed while the agent worked."""
    if before := attempt.row["repository"]:
        directory = Path(attempt.task["directory"])
        if changes := await attempt.parts.workspaces.changes_of(directory, before):
            names = ", ".join(changes)
            text = f"Your repository changed during the work, by the agent or you: {names}."
            await attempt.warn("repository", f"{text} Check that nothing runs there unexpectedly.")


def _examine(attempt: ActiveAttempt, evidence: Evidence) -> tuple[Summary, str, AgentVerdict]:
    """Return the summary of the output, its end as text, and the verdict about it."""
    tail = output_tail(attempt.process_dir)
    try:
        agent = attempt.agent()
    except KapelleError as error:
        return Summary(), tail, AgentVerdict(False, error.message)
    summary = read_output(agent, attempt.process_dir, SideLog.of_row(attempt.row))
    if evidence.exit.kind == "tampered":
        return summary, tail, AgentVerdict(False, evidence.detail)
    if evidence.exit.kind == "not_started":
        return (
            summary,
            tail,
            AgentVerdict(False, evidence.detail or "the agent could not be started"),
        )
    return summary, tail, agent.judge(summary, evidence.exit, tail)


def _explain_failure(
    attempt: ActiveAttempt, evidence: Evidence, verdict: AgentVerdict, summary: Summary, tail: str
) -> tuple[Failure, str]:
    """Return why an agent failed, as a failure and as a sentence."""
    # A forged end overrides every recorded cause.
    cause = None
    if evidence.exit.kind != "tampered":
        cause = recorded_cause(attempt.row)
    failure = cause or verdict.failure
    if evidence.timed_out:
        failure = Failure(FailureClass.TIMEOUT, evidence.detail or "timed out")
    elif failure is None:
        failure = classify(summary, evidence.exit, tail, attempt.settings.failures.environment)
        if failure.kind is FailureClass.CRASH and verdict.claimed == "failure":
            # A plain command reports a failure by its exit code alone.
            failure = Failure(FailureClass.TASK, failure.evidence)
    if evidence.exit.kind == "lost":
        return failure, f"lost: {evidence.detail or 'no record of its end'}"
    if evidence.timed_out or cause:
        return failure, failure.evidence
    return failure, verdict.reason or evidence.detail or failure.evidence


async def _commit(attempt: ActiveAttempt) -> str | None:
    """Commit the agent's work once; return the tip of the branch, or None for work in place."""
    if not attempt.is_worktree:
        return None
    # After a crash during the checks, their leftovers must not join the agent's work.
    if attempt.row["checked_commit"] is None:
        title = attempt.task["title"]
        agent = attempt.agent_name
        message = f"{title}\n\nTask: {attempt.task_id}\nAgent: {agent}"
        commit = None
        if not attempt.is_read_only:
            commit = await attempt.parts.workspaces.commit(attempt.owner, message)
        tip = commit or await attempt.parts.workspaces.tip(attempt.owner)

        def record(connection: Connection) -> None:
            tasks.update(connection, attempt.task_id, workspace_commit=commit)
            attempts.update(connection, attempt.id, checked_commit=tip)

        await attempt.write(record)
        attempt.row["checked_commit"] = tip
        attempt.task["workspace_commit"] = commit
    return str(attempt.row["checked_commit"])


async def _find_unreadable(
    attempt: ActiveAttempt, result: str | None, commit: str | None
) -> str | None:
    """Return why a run cannot read the answer that it asked for, and record that as a check."""
    run_id = attempt.task["run_id"]
    if run_id is None or not await attempt.parts.db.read(
        steps.expects_json, run_id, attempt.task_id
    ):
        return None
    try:
        await asyncio.to_thread(require_json, result or "")
    except UnreadableAnswer as error:
        problem = str(error)
    else:
        return None
    position = len(attempt.checks)
    if position not in await attempt.parts.db.read(attempts.load_checks, attempt.id):
        check = CheckResult(
            name=ANSWER_CHECK, passed=False, output=problem, duration_s=0.0, commit=commit
        )
        await attempt.write(_record_check, attempt, position, check)
    return problem


async def _require_resolved(attempt: ActiveAttempt) -> None:
    """Raise ConflictMarkersLeft if files still have conflict markers from a merged base."""
    # Only a resumed attempt may have had its base merged into its branch.
    may_have_markers = attempt.mode == "resume" and attempt.is_worktree and not attempt.is_shared
    if may_have_markers and (
        files := await attempt.parts.workspaces.find_unresolved(attempt.owner)
    ):
        raise ConflictMarkersLeft(f"conflicts are not resolved: {', '.join(files)}")


async def _require_unmoved(attempt: ActiveAttempt, commit: str | None) -> None:
    """Raise Tampered unless the branch still points to the checked commit."""
    tip = commit and await attempt.parts.workspaces.tip(attempt.owner)
    if tip != commit:
        raise Tampered(f"tampered: its branch was moved from {commit} to {tip} after the commit")


async def _check(attempt: ActiveAttempt, commit: str | None) -> list[str]:
    """Run the checks that are not recorded yet; return the names of all failed checks."""
    if not attempt.checks:
        return []
    results = await attempt.parts.db.read(attempts.load_checks, attempt.id)
    # Built-in checks come first, since commands may add files to the agent's work. The CI comes
    # last, since work that failed here is not pushed.
    later = {CheckKind.COMMAND: 1, CheckKind.CI: 2}
    order = sorted(enumerate(attempt.checks), key=lambda item: later.get(item[1].kind, 0))
    for position, check in order:
        if position in results:
            continue
        has_failed = not all(other.passed for other in results.values())
        if await attempt.stop_requested() or (check.kind is CheckKind.CI and has_failed):
            break
        failpoint("verify_before_check")
        if check.kind is CheckKind.COMMAND:
            result = await _run_command(attempt, position, check, commit)
        else:
            result = await _make_check(attempt, position, check)
        made_on = {"commit": commit, "directory": result.directory or str(attempt.directory)}
        results[position] = result.model_copy(update=made_on)
        # Recorded one by one, so that no check is repeated after a crash.
        await attempt.write(_record_check, attempt, position, results[position])
    await _warn(attempt, list(results.values()))
    return [result.verdict for _, result in sorted(results.items()) if not result.passed]


async def _warn(attempt: ActiveAttempt, results: list[CheckResult]) -> None:
    """Warn of passed checks that prove less than they seem to."""
    doubtful = [one for one in results if one.is_doubted]
    blind = [one for one in results if one.proved is False and one not in doubtful]
    for what, group in (("doubted", doubtful), ("blind", blind)):
        if group:
            await attempt.warn(what, " ".join(f"{one.name}: {one.proof}" for one in group))
    # A check that was proved with other work was not tried on these files.
    blind_spots = [set(one.overlooks) for one in results if one.command]
    unseen = set[str]()
    if blind_spots:
        unseen = set.intersection(*blind_spots)
    if unseen and not blind:
        await attempt.warn("overlooked", f"No check looks at {format_files(sorted(unseen))}.")


async def _run_command(
    attempt: ActiveAttempt, position: int, check: CheckSpec, commit: str | None
) -> CheckResult:
    """Run a command as a check, and prove it if there is a commit."""
    parts = attempt.parts
    name = f"{CHECKS}{position}"
    command = check.command or ""
    place = attempt.place.at(attempt.task["directory"], check.directory)
    subject = None
    before = None
    policy = check.prove or attempt.settings.tasks.prove
    if commit is not None:
        where = (attempt.owner, attempt.workspace, attempt.task["directory"], commit)
        subject = await Subject.load(place, *where, attempt.execute_command)
        commands = [one.kind is CheckKind.COMMAND for one in attempt.checks]
        is_first = position == commands.index(True)
        before = await subject.check_out(name, policy, is_first=is_first)
    with parts.register_check(attempt.id, check.label, command) as facts:
        work = (attempt.task_id, attempt.id)
        await attempt.process(name, lambda c: events.append(c, CHECK_STARTED, *work, **facts))
        process, process_end = await attempt.execute_command(name, command, check.timeout_s, place)
    result = await place.judge_check(check, process, process_end)
    if subject is None:
        return result
    result = result.model_copy(update={"commit": commit})
    changed = await subject.list_changes_during(process_end, before)
    await _put_back(attempt, check)
    return await subject.examine(name, check, result, changed, policy)


async def _put_back(attempt: ActiveAttempt, check: CheckSpec) -> None:
    """Restore the commit after a check that changed files, for the next check."""
    if paths := await attempt.parts.workspaces.put_back(attempt.owner):
        text = f"The check {check.label} changed {format_files(paths)}, which was put back."
        await attempt.warn("checks", text)


def _record_check(
    connection: Connection, attempt: ActiveAttempt, position: int, result: CheckResult
) -> None:
    attempts.add_check(connection, attempt.id, position, result)
    if result.passed:
        kind = "check.passed"
    else:
        kind = "check.failed"
    events.append(connection, kind, attempt.task_id, attempt.id, **check_facts(result))


async def _ci(attempt: ActiveAttempt, name: str, check: CheckSpec) -> CheckResult:
    parts = attempt.parts
    subject = (attempt.task_id, attempt.id)
    if not attempt.is_worktree:
        raise Conflict("The check ci needs a branch, and this task works in place.")

    async def pause(seconds: float) -> bool:
        with parts.db.watch(attempt.task_id) as changed:
            await changed.wait(seconds)
        return not await attempt.stop_requested()

    with parts.register_check(attempt.id, check.label, "") as facts:
        await attempt.process(name, lambda c: events.append(c, CHECK_STARTED, *subject, **facts))
        commit = attempt.row["checked_commit"]
        return await await_ci(parts, attempt.owner, commit, check, (attempt.id, name), pause)


async def _make_check(attempt: ActiveAttempt, position: int, check: CheckSpec) -> CheckResult:
    if check.kind is CheckKind.CI:
        return await _ci(attempt, f"{CHECKS}{position}", check)
    began = time.monotonic()
    if check.kind is CheckKind.DIFF_NOT_EMPTY:
        has_passed, output = await _diff_not_empty(attempt)
    else:
        error = await asyncio.to_thread(_first_error, attempt)
        has_passed = error is None
        output = (error or "")[:_SHOWN_LINE]
    seconds = round(time.monotonic() - began, 3)
    return CheckResult(name=check.label, passed=has_passed, output=output, duration_s=seconds)


async def _diff_not_empty(attempt: ActiveAttempt) -> tuple[bool, str]:
    parts = attempt.parts
    try:
        if tree := attempt.task["starting_tree"]:
            diff = await parts.workspaces.diff_since(attempt.directory, tree)
        elif attempt.is_worktree:
            diff = await task_diff(parts, attempt.task_id, attempt.workspace)
        else:
            return False, "This check needs a git repository, and the directory is not in one."
    except KapelleError as error:
        return False, error.message
    if not diff.files:
        return False, "The agent changed nothing."
    text = redact(diff.stat.encode(), parts.secrets_of(attempt.task, [attempt.id]))
    return True, text.decode("utf-8", "replace")[-MAX_OUTPUT:]


def _first_error(attempt: ActiveAttempt) -> str | None:
    """Return the first line of the agent's output that reports an error."""
    agent = attempt.agent()
    for name in ("out.log", "err.log"):
        for text in _texts(agent, attempt.process_dir / name):
            match = _ERROR.search(text)
            if match:
                return text[match.start() :].split("\n", 1)[0]
    return None


def _texts(agent: AgentAdapter, path: Path) -> Iterator[str]:
    """Yield an agent's output as text, not in its own line format."""
    is_structured = agent.reads_whole_output and path.name == "out.log"
    for line in read_lines(path):
        if not is_structured:
            yield line
            continue
        for event in agent.parse(line):
            yield f"error: {event.text}" if event.kind == "error" else event.text
