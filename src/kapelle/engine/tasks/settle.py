"""The end of an attempt, written in one transaction over attempt, task, account and history."""

import asyncio
import os
import random
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any

from kapelle.domain.errors import KapelleError
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.outcome import AttemptOutcome, Evidence, History, decide, reset
from kapelle.domain.question import QuestionSpec
from kapelle.domain.specs import CheckKind, CheckSpec, RetrySpec
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.engine.messages import MessageDelivery, folder_of, settle_messages
from kapelle.engine.parts import Parts
from kapelle.engine.questions import collect_answers, format_answers
from kapelle.engine.tasks.accounts import AgentCandidate, candidates, given_up, of_model
from kapelle.engine.tasks.attempt import ClaimLost, claimed
from kapelle.settings.models import FailuresSettings
from kapelle.store import accounts, attempts, events, messages, questions, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row

# Failures of an agent that was let work, whatever became of it.
_WORKED = (FailureClass.TASK, FailureClass.TIMEOUT)


async def conclude(parts: Parts, attempt_id: str, evidence: Evidence) -> None:
    """The end of an attempt in the database; nothing happens the second time."""
    others: list[AgentCandidate] = []
    failures = FailuresSettings()
    if evidence.failure is not None:
        attempt = await parts.db.glance(attempts.row, attempt_id)
        task = await parts.db.glance(tasks.row, attempt["task_id"])
        settings = None
        with suppress(KapelleError):  # a broken configuration has the defaults
            settings = parts.settings(task["directory"])
            failures = settings.failures
        others = candidates(parts, task, settings)

    folder = folder_of(parts, attempt_id)
    delivery = await asyncio.to_thread(MessageDelivery.of, folder)

    def settle(connection: Connection) -> None:
        attempt, task = claimed(connection, attempt_id, parts.performer)
        said = settle_messages(connection, task["id"], attempt_id, delivery)
        if evidence.failure is not None:
            # Nobody knows whether what it was answered arrived, unless it went on after that.
            printed_at = 0.0
            with suppress(OSError):
                printed_at = os.stat(parts.process_directory(attempt_id) / "out.log").st_mtime
            moment = datetime.fromtimestamp(printed_at, UTC)
            lost = questions.told_since(connection, attempt_id, moment)
            said = "\n\n".join(filter(None, [said, format_answers(lost)])) or None
        _Settlement(connection, attempt, task, evidence, others, failures, said).write()

    with suppress(ClaimLost):
        await parts.db.write(settle)
        if os.path.lexists(folder):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


@dataclass(frozen=True)
class _Settlement:
    """How an attempt ended, and what follows; others are the agents that may take over."""

    connection: Connection
    attempt: Row
    task: Row
    evidence: Evidence
    others: Sequence[AgentCandidate]
    failures: FailuresSettings
    said: str | None  # by people, and not read by the agent
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def failure(self) -> Failure | None:
        """Why the attempt failed, unless it was stopped."""
        if self.task["stop"]:
            return None
        return self.evidence.failure

    def write(self) -> None:
        """Record how the attempt ended and move its task."""
        connection = self.connection
        attempt = self.attempt
        task = self.task
        exit = self.evidence.exit
        if task["stop"] is None:
            self._charge_account()
        retry = RetrySpec.model_validate(task["retry"])
        if task["stop"]:
            by_person = {"stop": task["stop"], "detail": task["reason"]}
        else:
            by_person = {}
        evidence = replace(self.evidence, agent=attempt["agent"], **by_person)
        outcome = decide(evidence, retry, self._history(), self.now, random.random())
        if outcome.waiting_for == "input":
            outcome = self._asking(outcome)
        elif self.said and outcome.task is TaskStatus.COMPLETED:
            # A person had more to say: it is done when it was heard.
            again = {"task": TaskStatus.QUEUED, "reason": "a person said something meanwhile"}
            outcome = replace(outcome, **again, next_mode="resume", spends_a_try=False)  # type: ignore[arg-type]
        elif outcome.task is TaskStatus.QUEUED and self._failed_ci():
            outcome = replace(outcome, next_mode="resume")
        reason = self._reason(outcome)
        ended_at = max(self.now, attempt["started_at"])
        ended = {"status": outcome.attempt, "reason": reason, "ended_at": ended_at}
        attempts.update(connection, attempt["id"], **self._found(), **ended)
        events.append(
            connection, f"attempt.{outcome.attempt}", task["id"], attempt["id"],
            number=attempt["number"], agent=attempt["agent"], reason=reason,
            failure=self.failure.kind if self.failure else None, code=exit.code, signal=exit.signal,
        )  # fmt: skip
        self._move_task(outcome, reason)

    def _failed_ci(self) -> bool:
        """Whether its CI alone failed: what that said can be learnt from nothing but its log."""
        checks = [CheckSpec.model_validate(one) for one in self.task["check_specs"]]
        names = {check.label for check in checks if check.kind is CheckKind.CI}
        return self.failure is not None and self.failure.evidence in names

    def _found(self) -> dict[str, Any]:
        """What the attempt came to, for its row."""
        found = self.evidence
        failure = self.failure
        exit = self.evidence.exit
        # The session that it went on with, where it died before it could name it.
        lost = failure is not None and failure.kind is FailureClass.SESSION_LOST
        resumes = self.attempt["mode"] == "resume" and not lost
        return {
            "exit_kind": exit.kind,
            "exit_code": exit.code,
            "exit_signal": exit.signal,
            "claimed": found.claimed,
            "question": found.question,
            "failure": failure.kind if failure else None,
            "evidence": failure.evidence if failure else None,
            "session_id": found.session_id or (self.attempt["started_from"] if resumes else None),
            "session_usage": found.session_usage or None,
            "model": found.model or self.attempt["model"],
            "output_bytes": found.output_bytes,
            **(found.usage.model_dump() if found.usage else {}),
        }

    def _past(self) -> list[dict[str, Any]]:
        """The task's attempts, the last one first, and this one as what it is known to be now."""
        own = self.attempt["id"]
        if self.failure:
            failure = self.failure.kind
        else:
            failure = None
        rows = map(dict, reversed(attempts.of_task(self.connection, self.task["id"])))
        return [row | {"failure": failure} if row["id"] == own else row for row in rows]

    def _charge_account(self) -> None:
        """Pause, count or clear the account that the attempt worked under."""
        connection = self.connection
        account = self.attempt["account"]
        failure = self.failure
        agent = self.attempt["agent"]
        if account is None:
            return
        if failure is None or failure.kind is FailureClass.CHECKS:
            accounts.succeeded(connection, account, self._model_account, self.now)
        elif failure.kind is FailureClass.AUTHENTICATION:
            accounts.update(connection, account, verified_at=None)
        elif failure.kind is FailureClass.RATE_LIMIT:
            if not self._refused_alone():
                until = reset(failure.retry_at, self.now)
                if failure.of_model:
                    scope = f" for {self.attempt['model'] or 'its model'}"
                else:
                    scope = ""
                self._pause_account(until, f"{agent} is rate-limited{scope}", failure.of_model)
        elif failure.kind in _WORKED:
            accounts.end_trial(connection, account, self._model_account, self.now)
        elif failure.policy.trips and self.evidence.exit.kind != "not_started":
            # The circuit breaker: failures in a row that are the environment's pause the account.
            most = self.failures.breaker
            if accounts.failed_again(connection, account) >= most:
                until = self.now + timedelta(seconds=self.failures.breaker_s)
                self._pause_account(until, f"{agent} failed {most} times in a row")
                accounts.update(connection, account, failures_in_a_row=0)

    @property
    def _model_account(self) -> str:
        return of_model(self.attempt["account"], self.attempt["model"])

    def _refused_alone(self) -> bool:
        """Whether others succeeded under the account since this task was refused before."""
        before = self._refusals()[1:2]
        known = accounts.of_ids(self.connection, [self.attempt["account"]]).values()
        success = next((row["verified_at"] for row in known), None)
        return bool(before and success and success > before[0]["ended_at"])

    def _refusals(self) -> list[dict[str, Any]]:
        """The attempts in a row that met a limit of this agent, the last one first."""
        own = (row for row in self._past() if row["agent"] == self.attempt["agent"])
        return list(takewhile(lambda row: row["failure"] == FailureClass.RATE_LIMIT, own))

    def _pause_account(self, until: datetime, reason: str, of_model: bool = False) -> None:
        attempt = self.attempt
        if of_model:
            account = self._model_account
        else:
            account = attempt["account"]
        accounts.pause(self.connection, account, until, reason)
        events.append(
            self.connection, "account.paused", attempt["task_id"], attempt["id"],
            account=account, agent=attempt["agent"], until=until.isoformat(), reason=reason,
        )  # fmt: skip

    def _history(self) -> History:
        """What happened to the task before, this attempt included."""
        attempt = self.attempt
        task = self.task
        if self.evidence.failure is None:
            return History(task["tries"], uncounted=task["uncounted"])
        past = self._past()
        overloaded = list(takewhile(lambda row: row["failure"] == FailureClass.OVERLOADED, past))
        paused = accounts.paused(self.connection, self.now)
        failed = given_up(self.connection, task["id"]) | {attempt["agent"]}
        able = [other for other in self.others if other.agent not in failed]
        pauses = [pause[0] for other in able if (pause := other.pause(paused))]
        refusals = self._refusals()
        return History(
            tries=task["tries"],
            uncounted=task["uncounted"],
            refusals=len(refusals),
            refused_since=(refusals[-1]["ended_at"] or self.now) if refusals else None,
            overloads=len(overloaded),
            # It may have worked for hours before it met the first.
            overloaded_since=(overloaded[-1]["ended_at"] or self.now) if overloaded else None,
            nudges=sum(row["failure"] == FailureClass.STALLED for row in past) - 1,
            can_nudge=self.evidence.can_nudge,
            can_switch=len(pauses) < len(able),
            others_free_at=min(pauses, default=None),
            had_session=attempt["started_from"] is not None,
        )

    def _asking(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """It waits for a person, unless that was answered when the agent had just ended."""
        asked = questions.untold(self.connection, self.attempt["id"])
        if not asked:
            spec = QuestionSpec.model_construct(text=self.evidence.question or "")
            questions.ask(self.connection, self.task["id"], spec)
        elif all(question.status != "open" for question in asked):
            message = collect_answers(self.connection, self.attempt)
            queued = {"task": TaskStatus.QUEUED, "waiting_for": None}
            return replace(outcome, **queued, next_message=message)  # type: ignore[arg-type]
        return outcome

    def _reason(self, outcome: AttemptOutcome) -> str | None:
        """The outcome's reason, with what the supervisor had to say beside it and what helps."""
        reason = outcome.reason
        detail = self.evidence.detail
        # Such as who survived the kill.
        if detail is not None and detail not in (reason or ""):
            if reason:
                reason = f"{reason}; {detail}"
            else:
                reason = detail
        if self.evidence.failure:
            fix = self.evidence.failure.policy.fix
        else:
            fix = None
        if fix and outcome.task is TaskStatus.FAILED:
            fix = fix.format(agent=self.attempt["agent"], task=self.task["id"])
            return f"{reason} → {fix}"
        return reason

    def _move_task(self, outcome: AttemptOutcome, reason: str | None) -> None:
        task = self.task
        waits = outcome.waiting_for == "input"
        # What a person said to an attempt that came to nothing is said to the next one.
        was_read = outcome.attempt is AttemptStatus.COMPLETED or task["stop"]
        was_read = was_read or self.evidence.question
        if was_read:
            heard = None
        else:
            heard = self.attempt["message"]
        unread = "\n\n".join(filter(None, [heard, self.said]))
        merges = self.attempt["mode"] == "merge"  # it ended before its base was in
        if (unread or merges) and outcome.task is TaskStatus.QUEUED and not task["stop"]:
            outcome = replace(outcome, next_mode="merge" if merges else "resume")
        is_uncounted = not outcome.spends_a_try and not self.said
        values: dict[str, Any] = {
            "waiting_for": outcome.waiting_for,
            "question": self.evidence.question if waits else None,
            "not_before": outcome.not_before,
            "tries": task["tries"] if outcome.spends_a_try else max(0, task["tries"] - 1),
            "uncounted": task["uncounted"] + 1 if is_uncounted else task["uncounted"],
            "next_mode": outcome.next_mode,
            "next_message": "\n\n".join(filter(None, [unread, outcome.next_message])) or None,
            "stop": None,
        }
        if outcome.task in {TaskStatus.COMPLETED, TaskStatus.FAILED}:
            values["result"] = self.evidence.result
        if task["stop"] == "requeue":
            messages.end_waiting(self.connection, task["id"])
            values |= {
                "tries": 0,
                "uncounted": 0,
                "workspace_base_commit": None,
                "starting_tree": None,
            }
        if outcome.task is TaskStatus.QUEUED and reason != "requeued":
            reason = f"tries again after: {reason}"
        if task["status"] == TaskStatus.WAITING:  # its agent asked while it worked
            if waits:
                tasks.update(self.connection, task["id"], reason=reason, **values)
                return
            tasks.move(self.connection, task, TaskStatus.RUNNING)
            task = tasks.row(self.connection, task["id"])
        tasks.move(self.connection, task, outcome.task, reason, **values)
