"""What an ended agent's work is worth: its own report first, then the checks."""

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
from kapelle.domain.task import CheckResult
from kapelle.domain.text import counted_files
from kapelle.engine.delivery import await_ci
from kapelle.engine.output import (
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
from kapelle.engine.parts import CHECK_STARTED
from kapelle.engine.proof import Subject
from kapelle.engine.questions import end
from kapelle.engine.tasks.attempt import CHECKS, ActiveAttempt, require_claim, task_diff
from kapelle.engine.tasks.browser import keep_pictures, stop
from kapelle.engine.tasks.consult import consulting_usage
from kapelle.engine.tasks.watch import recorded_cause, usage_before
from kapelle.runner.output import lines_of
from kapelle.runner.redaction import redact
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import attempts, events, questions, tasks
from kapelle.store.database import Connection

_SHOWN_LINE = 500
# By the codes of errors.
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
    """Judge what the agent reported, commit its work, and make the checks on what is committed."""
    summary, tail, verdict = await asyncio.to_thread(_examine, attempt, evidence)
    verdict, unanswered = await _told(attempt, evidence, verdict)
    try:
        await _look_around(attempt)
    except WorkspaceError as error:
        problem = Failure(_failure_class(error), error.message)
        verdict = replace(verdict, success=False, reason=error.with_hint, failure=problem)
    if attempt.task["browser"]:
        await stop(attempt)
        await asyncio.to_thread(keep_pictures, attempt)
    if attempt.is_read_only:
        await attempt.parts.workspaces.remove_copy(attempt.owner)
    before = await usage_before(attempt)
    model = summary.model or attempt.row["model"] or await _model_of_session(attempt)
    success = verdict.success and not evidence.timed_out
    reason = verdict.reason
    failure = verdict.failure
    if not success and not verdict.question:
        failure, reason = _failed(attempt, evidence, verdict, summary, tail)
    elif success and not await attempt.stop_requested():
        try:
            commit = await _commit(attempt)
            await _require_resolved(attempt)
            failed = await _check(attempt, commit)
            await _require_unmoved(attempt, commit)
            await _remove_what_checks_left(attempt, commit)
            if failed:
                reason = f"failed its check: {', '.join(failed)}"
                failure = Failure(FailureClass.CHECKS, ", ".join(failed))
        except (WorkspaceError, Conflict, Tampered) as error:
            success = False
            reason = error.with_hint
            failure = Failure(_failure_class(error), error.message)
        if attempt.is_worktree:
            await attempt.parts.workspaces.bring_back(attempt.owner)
    own = attempt_usage(summary, before, model, attempt.settings)
    if own is None or evidence.exit.kind == "tampered":
        # The log may have been emptied; what was counted while it ran stands.
        own = highest_usage(own, attempt.counted)
    asked = await consulting_usage(attempt)
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
        usage=total_usage([own, *asked]),
        session_usage=session_counters(summary),
        can_nudge=attempt.settings.health.on_stall == "nudge",
    )


async def _remove_what_checks_left(attempt: ActiveAttempt, commit: str | None) -> None:
    """Remove what the checks left behind: it is neither this agent's work nor the next one's."""
    if commit is not None and attempt.checks and not attempt.shares_files:
        await attempt.parts.workspaces.remove_new(attempt.owner)


async def _model_of_session(attempt: ActiveAttempt) -> str | None:
    """The model that the resumed session named before: some agents name it at its start only."""
    session_id = attempt.row["started_from"]
    if session_id is None:
        return None
    return await attempt.parts.db.read(attempts.session_model, session_id)


def _failure_class(error: KapelleError) -> FailureClass:
    return _FAILURES.get(error.code, FailureClass.ENVIRONMENT)


async def _told(
    attempt: ActiveAttempt, evidence: Evidence, verdict: AgentVerdict
) -> tuple[AgentVerdict, str | None]:
    """The verdict with what the agent handed in, and what it asked and did not wait for."""
    if evidence.exit.kind == "tampered":
        return verdict, None
    told = await attempt.parts.db.glance(require_claim, attempt.id, attempt.parts.performer)
    if told["handed_in"]:
        verdict = _with_handed_in(verdict, told["handed_in"])
    else:
        verdict = verdict
    if told["asks"]:
        unanswered = await attempt.write(_unanswered, attempt, verdict)
    else:
        unanswered = None
    if unanswered:
        said = f"It asks: {unanswered}"
        verdict = replace(verdict, success=False, reason=said, question=unanswered)
    return verdict, unanswered


def _with_handed_in(verdict: AgentVerdict, handed_in: dict[str, Any]) -> AgentVerdict:
    """The verdict with what the agent handed in; that can make it worse, but never better."""
    given = handed_in["result"]
    if isinstance(given, str):
        text = given
    else:
        text = json.dumps(given, ensure_ascii=False)
    verdict = replace(verdict, result=text or verdict.result)
    if handed_in["success"] or not verdict.success:
        return verdict
    said = f"it says that it failed: {text[:_SHOWN_LINE]}"
    failure = Failure(FailureClass.TASK, said)
    return replace(verdict, success=False, reason=said, claimed="failure", failure=failure)


def _unanswered(
    connection: Connection, attempt: ActiveAttempt, verdict: AgentVerdict
) -> str | None:
    """What an agent asked and did not wait for; one that is done holds with its defaults."""
    for question in questions.untold(connection, attempt.id):
        if not verdict.success or question.default is None:
            return question.text
        if question.status == "open":
            end(connection, question, "expired", question.default)
        questions.tell(connection, [question.token])
    return None


async def _look_around(attempt: ActiveAttempt) -> None:
    """Say so when the user's own repository was changed while the agent worked beside it."""
    if before := attempt.row["repository"]:
        directory = Path(attempt.task["directory"])
        if found := await attempt.parts.workspaces.changes_of(directory, before):
            text = (
                f"Changed in your repository while it worked, by it or by you: {', '.join(found)}."
            )
            await attempt.warn("repository", f"{text} See that nothing runs there unasked.")


def _examine(attempt: ActiveAttempt, evidence: Evidence) -> tuple[Summary, str, AgentVerdict]:
    """What an agent said, the end of it as text, and what that means."""
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


def _failed(
    attempt: ActiveAttempt, evidence: Evidence, verdict: AgentVerdict, summary: Summary, tail: str
) -> tuple[Failure, str]:
    """Why an agent failed, and what is said of that."""
    # A forged end is the cause itself.
    if evidence.exit.kind == "tampered":
        cause = None
    else:
        cause = recorded_cause(attempt.row)
    found = cause or verdict.failure
    if evidence.timed_out:
        found = Failure(FailureClass.TIMEOUT, evidence.detail or "timed out")
    elif found is None:
        found = classify(summary, evidence.exit, tail, attempt.settings.failures.environment)
        if found.kind is FailureClass.CRASH and verdict.claimed == "failure":
            # An exit code is all that a plain command can say, and it said so.
            found = Failure(FailureClass.TASK, found.evidence)
    if evidence.exit.kind == "lost":
        return found, f"lost: {evidence.detail or 'nobody saw how it ended'}"
    if evidence.timed_out or cause:
        return found, found.evidence
    return found, verdict.reason or evidence.detail or found.evidence


async def _commit(attempt: ActiveAttempt) -> str | None:
    """Commit the agent's work, once; what the branch holds then, None for work in place."""
    if not attempt.is_worktree:
        return None
    # After a crash amid the checks, what they left behind must not join the agent's work.
    if attempt.row["checked_commit"] is None:
        title = attempt.task["title"]
        agent = attempt.agent_name
        message = f"{title}\n\nTask: {attempt.task_id}\nAgent: {agent}"
        writes = not attempt.is_read_only
        if writes:
            commit = await attempt.parts.workspaces.commit(attempt.owner, message)
        else:
            commit = None
        tip = commit or await attempt.parts.workspaces.tip(attempt.owner)

        def record(connection: Connection) -> None:
            tasks.update(connection, attempt.task_id, workspace_commit=commit)
            attempts.update(connection, attempt.id, checked_commit=tip)

        await attempt.write(record)
        attempt.row["checked_commit"], attempt.task["workspace_commit"] = tip, commit
    return str(attempt.row["checked_commit"])


async def _require_resolved(attempt: ActiveAttempt) -> None:
    """Raise ConflictMarkersLeft if conflicts of the base with the branch are left in files."""
    # Before the first attempt there was nothing to merge into.
    is_asked = attempt.mode == "resume" and attempt.is_worktree and not attempt.is_shared
    if is_asked and (left := await attempt.parts.workspaces.unresolved(attempt.owner)):
        raise ConflictMarkersLeft(f"conflicts are not resolved: {', '.join(left)}")


async def _require_unmoved(attempt: ActiveAttempt, commit: str | None) -> None:
    """Raise Tampered unless the branch still holds what the checks were made on."""
    tip = commit and await attempt.parts.workspaces.tip(attempt.owner)
    if tip != commit:
        raise Tampered(f"tampered: its branch was moved from {commit} to {tip} after the commit")


async def _check(attempt: ActiveAttempt, commit: str | None) -> list[str]:
    """Make the checks that are not recorded yet; the names of all that failed."""
    if not attempt.checks:
        return []
    known = await attempt.parts.db.read(attempts.recorded_checks, attempt.id)
    # Built-in checks look at the agent's work, which commands may add to: they come first.
    # What failed here is not pushed.
    later = {CheckKind.COMMAND: 1, CheckKind.CI: 2}
    order = sorted(enumerate(attempt.checks), key=lambda item: later.get(item[1].kind, 0))
    for position, check in order:
        if position in known:
            continue
        failed = not all(one.passed for one in known.values())
        if await attempt.stop_requested() or (check.kind is CheckKind.CI and failed):
            break
        failpoint("verify_before_check")
        if check.kind is CheckKind.COMMAND:
            result = await _run_command(attempt, position, check, commit)
        else:
            result = await _make_check(attempt, position, check)
        made_on = {"commit": commit, "directory": result.directory or str(attempt.directory)}
        known[position] = result.model_copy(update=made_on)
        await attempt.write(_record_check, attempt, position, known[position])
    await _warn(attempt, list(known.values()))
    return [result.verdict for _, result in sorted(known.items()) if not result.passed]


async def _warn(attempt: ActiveAttempt, made: list[CheckResult]) -> None:
    """Say of passed checks why they are worth less than it seems."""
    doubted = [one for one in made if one.is_doubted]
    blind = [one for one in made if one.proved is False and one not in doubted]
    for what, results in (("doubted", doubted), ("blind", blind)):
        if results:
            await attempt.warn(what, " ".join(f"{one.name}: {one.proof}" for one in results))
    # A check that was proved for other work was not tried on these files.
    overlooked = [set(one.overlooks) for one in made if one.command]
    if overlooked:
        unseen = set.intersection(*overlooked)
    else:
        unseen = set()
    if unseen and not blind:
        await attempt.warn("overlooked", f"No check looks at {counted_files(sorted(unseen))}.")


async def _run_command(
    attempt: ActiveAttempt, position: int, check: CheckSpec, commit: str | None
) -> CheckResult:
    """Run a command as a check, and find out what its passing is worth where there is a commit."""
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
    with parts.register_check(attempt.id, check.label, command) as told:
        work = (attempt.task_id, attempt.id)
        await attempt.process(name, lambda c: events.append(c, CHECK_STARTED, *work, **told))
        process, ended = await attempt.execute_command(name, command, check.timeout_s, place)
    result = await place.judge_check(check, process, ended)
    if subject is None:
        return result
    result = result.model_copy(update={"commit": commit})
    changed = await subject.changed_during(ended, before)
    await _put_back(attempt, check)
    return await subject.examine(name, check, result, changed, policy)


async def _put_back(attempt: ActiveAttempt, check: CheckSpec) -> None:
    """Have the next check see what is committed, and not what this one made of it."""
    if changed := await attempt.parts.workspaces.put_back(attempt.owner):
        text = f"The check {check.label} changed {counted_files(changed)}, which was put back."
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
        raise Conflict("The check ci needs a branch, and this works in place.")

    async def pause(seconds: float) -> bool:
        with parts.db.watch(attempt.task_id) as changed:
            await changed.wait(seconds)
        return not await attempt.stop_requested()

    with parts.register_check(attempt.id, check.label, "") as told:
        await attempt.process(name, lambda c: events.append(c, CHECK_STARTED, *subject, **told))
        commit = attempt.row["checked_commit"]
        return await await_ci(parts, attempt.owner, commit, check, (attempt.id, name), pause)


async def _make_check(attempt: ActiveAttempt, position: int, check: CheckSpec) -> CheckResult:
    if check.kind is CheckKind.CI:
        return await _ci(attempt, f"{CHECKS}{position}", check)
    began = time.monotonic()
    if check.kind is CheckKind.DIFF_NOT_EMPTY:
        passed, output = await _diff_not_empty(attempt)
    else:
        error = await asyncio.to_thread(_first_error, attempt)
        passed = error is None
        output = (error or "")[:_SHOWN_LINE]
    seconds = round(time.monotonic() - began, 3)
    return CheckResult(name=check.label, passed=passed, output=output, duration_s=seconds)


async def _diff_not_empty(attempt: ActiveAttempt) -> tuple[bool, str]:
    parts = attempt.parts
    try:
        if began := attempt.task["starting_tree"]:
            diff = await parts.workspaces.diff_since(attempt.directory, began)
        elif attempt.is_worktree:
            diff = await task_diff(parts, attempt.task_id, attempt.workspace)
        else:
            return False, "This check needs a git repository, and the directory is in none."
    except KapelleError as error:
        return False, error.message
    if not diff.files:
        return False, "The agent changed nothing."
    redacted = redact(diff.stat.encode(), parts.spell_secrets([attempt.id], attempt.task_env))
    return True, redacted.decode("utf-8", "replace")[-MAX_OUTPUT:]


def _first_error(attempt: ActiveAttempt) -> str | None:
    """The first line of what an agent wrote that tells of an error."""
    agent = attempt.agent()
    for name in ("out.log", "err.log"):
        for text in _texts(agent, attempt.process_dir / name):
            found = _ERROR.search(text)
            if found:
                return text[found.start() :].split("\n", 1)[0]
    return None


def _texts(agent: AgentAdapter, path: Path) -> Iterator[str]:
    """What an agent wrote, as text and not in its own line format."""
    structured = agent.reads_whole_output and path.name == "out.log"
    for line in lines_of(path):
        if not structured:
            yield line
            continue
        for event in agent.parse(line):
            yield f"error: {event.text}" if event.kind == "error" else event.text
