"""Settle an attempt: write attempt, task, account and history in one transaction."""

import asyncio
import logging
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
from kapelle.domain.outcome import AttemptOutcome, Evidence, History, decide, estimate_reset
from kapelle.domain.question import QuestionSpec
from kapelle.domain.specs import CheckKind, CheckSpec, RetrySpec
from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.engine.messages import MessageDelivery, folder_of, settle_messages
from kapelle.engine.parts import Parts
from kapelle.engine.questions import collect_answers, format_answers
from kapelle.engine.tasks.accounts import (
    AgentCandidate,
    list_candidates,
    list_failed_agents,
    model_account_of,
)
from kapelle.engine.tasks.attempt import ClaimLost, load_claim
from kapelle.settings.models import FailuresSettings
from kapelle.store import accounts, attempts, events, messages, questions, tasks
from kapelle.store.database import Connection
from kapelle.store.query import Row

_log = logging.getLogger("kapelle.attempts")
# Failures of an agent that could work: the provider did not refuse it.
_WORKED = (FailureClass.TASK, FailureClass.TIMEOUT)


async def conclude(parts: Parts, attempt_id: str, evidence: Evidence) -> None:
    """Write the end of an attempt to the database. A repetition after a crash does nothing."""
    others: list[AgentCandidate] = []
    failures = FailuresSettings()
    if evidence.failure is not None:
        attempt = await parts.db.glance(attempts.load_row, attempt_id)
        task = await parts.db.glance(tasks.load_row, attempt["task_id"])
        settings = None
        with suppress(KapelleError):  # with a broken configuration, the defaults apply
            settings = parts.settings(task["directory"])
            failures = settings.failures
        others = list_candidates(parts, task, settings)

    # Not looked for: it may be packed, or not be there where no agent was started.
    output = str(parts.process_directory(attempt_id) / "out.log")
    folder = folder_of(parts, attempt_id)
    delivery = await asyncio.to_thread(MessageDelivery.of, folder)

    def settle(connection: Connection) -> None:
        attempt, task = load_claim(connection, attempt_id, parts.performer)
        unread = settle_messages(connection, task["id"], attempt_id, delivery)
        if evidence.failure is not None:
            # An answer certainly arrived only if the agent printed something after it.
            printed_at = 0.0
            with suppress(OSError):
                printed_at = os.stat(parts.process_directory(attempt_id) / "out.log").st_mtime
            moment = datetime.fromtimestamp(printed_at, UTC)
            unconfirmed = questions.list_sent_since(connection, attempt_id, moment)
            unread = "\n\n".join(filter(None, [unread, format_answers(unconfirmed)])) or None
        _Settlement(connection, attempt, task, evidence, others, failures, output, unread).write()

    # A lost claim means that the attempt is settled, or that another performer settles it.
    with suppress(ClaimLost):
        await parts.db.write(settle)
        if os.path.lexists(folder):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


@dataclass(frozen=True)
class _Settlement:
    """The end of an attempt and its consequences; others are the agents that may take over."""

    connection: Connection
    attempt: Row
    task: Row
    evidence: Evidence
    others: Sequence[AgentCandidate]
    failures: FailuresSettings
    output_path: str
    unread: str | None  # messages of people that the agent has not read
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def failure(self) -> Failure | None:
        """The failure of the attempt; None if it was stopped."""
        if self.task["stop"]:
            return None
        return self.evidence.failure

    def write(self) -> None:
        """Record how the attempt ended, and move its task."""
        connection = self.connection
        attempt = self.attempt
        task = self.task
        exit = self.evidence.exit
        if task["stop"] is None:
            self._charge_account()
        retry = RetrySpec.model_validate(task["retry"])
        by_person = {}
        if task["stop"]:
            by_person = {"stop": task["stop"], "detail": task["reason"]}
        evidence = replace(self.evidence, agent=attempt["agent"], **by_person)
        outcome = decide(evidence, retry, self._history(), self.now, random.random())
        if outcome.waiting_for == "input":
            outcome = self._asking(outcome)
        elif self.unread and outcome.task is TaskStatus.COMPLETED:
            # The agent has to read the message of a person before the task is complete.
            again = {"task": TaskStatus.QUEUED, "reason": "a person sent a message meanwhile"}
            outcome = replace(outcome, **again, next_mode="resume", spends_a_try=False)  # type: ignore[arg-type]
        elif outcome.task is TaskStatus.QUEUED and self._failed_ci():
            outcome = replace(outcome, next_mode="resume")
        reason = self._reason(outcome)
        ended_at = max(self.now, attempt["started_at"])
        values = {"status": outcome.attempt, "reason": reason, "ended_at": ended_at}
        attempts.update(connection, attempt["id"], **self._result_values(), **values)
        events.append(
            connection,
            f"attempt.{outcome.attempt}",
            task["id"],
            attempt["id"],
            number=attempt["number"],
            agent=attempt["agent"],
            reason=reason,
            failure=self.failure.kind if self.failure else None,
            code=exit.code,
            signal=exit.signal,
            output_path=self.output_path,
        )
        # Reasons may quote an agent, so they are left to the history, which masks secrets.
        cause = self.failure.kind.value if self.failure else "no failure"
        _log.debug(
            "%s ended %s (%s); %s is %s next, not before %s, with %d tries spent",
            attempt["id"],
            outcome.attempt.value,
            cause,
            task["id"],
            outcome.task.value,
            outcome.not_before,
            task["tries"],
        )
        self._move_task(outcome, reason)

    def _failed_ci(self) -> bool:
        """Return whether only the CI failed: then only its log tells the agent why."""
        checks = [CheckSpec.model_validate(one) for one in self.task["check_specs"]]
        names = {check.label for check in checks if check.kind is CheckKind.CI}
        return self.failure is not None and self.failure.evidence in names

    def _result_values(self) -> dict[str, Any]:
        """Return the result of the attempt as values for its row."""
        evidence = self.evidence
        failure = self.failure
        exit = self.evidence.exit
        # A resumed session remains known even if the agent died before it could name it.
        is_lost = failure is not None and failure.kind is FailureClass.SESSION_LOST
        is_resumed = self.attempt["mode"] == "resume" and not is_lost
        return {
            "exit_kind": exit.kind,
            "exit_code": exit.code,
            "exit_signal": exit.signal,
            "claimed": evidence.claimed,
            "question": evidence.question,
            "failure": failure.kind if failure else None,
            "evidence": failure.evidence if failure else None,
            "session_id": evidence.session_id
            or (self.attempt["started_from"] if is_resumed else None),
            "session_usage": evidence.session_usage or None,
            "model": evidence.model or self.attempt["model"],
            "output_bytes": evidence.output_bytes,
            **(evidence.usage.model_dump() if evidence.usage else {}),
        }

    def _past(self) -> list[dict[str, Any]]:
        """Return the task's attempts, newest first, with the present failure of this one."""
        own = self.attempt["id"]
        rows = [*map(dict, reversed(attempts.list_rows(self.connection, self.task["id"])))]
        for row in rows:
            if row["id"] == own:
                row["failure"] = self.failure.kind if self.failure else None
        return rows

    def _charge_account(self) -> None:
        """Pause, count or clear the account of the attempt."""
        connection = self.connection
        account = self.attempt["account"]
        failure = self.failure
        agent = self.attempt["agent"]
        if account is None:
            return
        if failure is None or failure.kind is FailureClass.CHECKS:
            accounts.record_success(connection, account, self._model_account, self.now)
        elif failure.kind is FailureClass.AUTHENTICATION:
            accounts.update(connection, account, verified_at=None)
        elif failure.kind is FailureClass.RATE_LIMIT:
            if not self._refused_alone():
                until = estimate_reset(failure.retry_at, self.now)
                scope = ""
                if failure.of_model:
                    scope = f" for {self.attempt['model'] or 'its model'}"
                self._pause_account(until, f"{agent} is rate-limited{scope}", failure.of_model)
        elif failure.kind in _WORKED:
            accounts.end_trial(connection, account, self._model_account, self.now)
        elif failure.policy.trips and self.evidence.exit.kind != "not_started":
            # Circuit breaker: repeated failures of the environment pause the account.
            most = self.failures.breaker
            if accounts.count_failure(connection, account) >= most:
                until = self.now + timedelta(seconds=self.failures.breaker_s)
                self._pause_account(until, f"{agent} failed {most} times in a row")
                accounts.update(connection, account, failures_in_a_row=0)

    @property
    def _model_account(self) -> str:
        return model_account_of(self.attempt["account"], self.attempt["model"])

    def _refused_alone(self) -> bool:
        """Return whether other tasks of the account have succeeded since the last refusal."""
        before = self._refusals()[1:2]
        rows = accounts.load_rows(self.connection, [self.attempt["account"]]).values()
        success = next((row["verified_at"] for row in rows), None)
        return bool(before and success and success > before[0]["ended_at"])

    def _refusals(self) -> list[dict[str, Any]]:
        """Return this agent's refused attempts in a row, newest first."""
        own = (row for row in self._past() if row["agent"] == self.attempt["agent"])
        return list(takewhile(lambda row: row["failure"] == FailureClass.RATE_LIMIT, own))

    def _pause_account(self, until: datetime, reason: str, is_for_model: bool = False) -> None:
        attempt = self.attempt
        if is_for_model:
            account = self._model_account
        else:
            account = attempt["account"]
        accounts.pause(self.connection, account, until, reason)
        events.append(
            self.connection,
            "account.paused",
            attempt["task_id"],
            attempt["id"],
            account=account,
            agent=attempt["agent"],
            until=until.isoformat(),
            reason=reason,
        )

    def _history(self) -> History:
        """Return the history of the task, including this attempt."""
        attempt = self.attempt
        task = self.task
        if self.evidence.failure is None:
            return History(task["tries"], uncounted=task["uncounted"])
        past = self._past()
        overloads = list(takewhile(lambda row: row["failure"] == FailureClass.OVERLOADED, past))
        pauses_by_account = accounts.load_pauses(self.connection, self.now)
        failed_agents = list_failed_agents(self.connection, task["id"]) | {attempt["agent"]}
        able_agents = [other for other in self.others if other.agent not in failed_agents]
        pauses = [
            pause[0] for other in able_agents if (pause := other.find_pause(pauses_by_account))
        ]
        refusals = self._refusals()
        return History(
            tries=task["tries"],
            uncounted=task["uncounted"],
            refusals=len(refusals),
            refused_since=(refusals[-1]["ended_at"] or self.now) if refusals else None,
            overloads=len(overloads),
            # Not since the start of the attempt: it may have worked for hours before.
            overloaded_since=(overloads[-1]["ended_at"] or self.now) if overloads else None,
            nudges=sum(row["failure"] == FailureClass.STALLED for row in past) - 1,
            can_nudge=self.evidence.can_nudge,
            can_switch=len(pauses) < len(able_agents),
            others_free_at=min(pauses, default=None),
            had_session=attempt["started_from"] is not None,
        )

    def _asking(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """Return the outcome of a question, which may have been answered in the meantime."""
        pending = questions.list_unsent(self.connection, self.attempt["id"])
        if not pending:
            spec = QuestionSpec.model_construct(text=self.evidence.question or "")
            questions.ask(self.connection, self.task["id"], spec)
        elif all(question.status != "open" for question in pending):
            message = collect_answers(self.connection, self.attempt)
            changes = {"task": TaskStatus.QUEUED, "waiting_for": None}
            return replace(outcome, **changes, next_message=message)  # type: ignore[arg-type]
        return outcome

    def _reason(self, outcome: AttemptOutcome) -> str | None:
        """Return the outcome's reason with the supervisor's detail and the advice for a failure."""
        reason = outcome.reason
        detail = self.evidence.detail
        # For example the processes that survived the kill.
        if detail is not None and detail not in (reason or ""):
            if reason:
                reason = f"{reason}; {detail}"
            else:
                reason = detail
        if self.evidence.failure and outcome.task is TaskStatus.FAILED:
            policy = self.evidence.failure.policy
            fix = policy.fix_for(self.attempt["agent"], self.task["id"])
            if fix is not None:
                return f"{reason} → {fix}"
        return reason

    def _move_task(self, outcome: AttemptOutcome, reason: str | None) -> None:
        """Move the task to its next status, and hand unread messages to the next attempt."""
        task = self.task
        waits = outcome.waiting_for == "input"
        # The message of an attempt without a result goes to the next attempt.
        was_read = outcome.attempt is AttemptStatus.COMPLETED or task["stop"]
        was_read = was_read or self.evidence.question
        message = None
        if not was_read:
            message = self.attempt["message"]
        unread = "\n\n".join(filter(None, [message, self.unread]))
        merges = self.attempt["mode"] == "merge"  # it ended before its base was merged
        if (unread or merges) and outcome.task is TaskStatus.QUEUED and not task["stop"]:
            outcome = replace(outcome, next_mode="merge" if merges else "resume")
        is_uncounted = not outcome.spends_a_try and not self.unread
        values: dict[str, Any] = {
            "waiting_for": outcome.waiting_for,
            "question": self.evidence.question if waits else None,
            "not_before": outcome.not_before,
            "tries": task["tries"] if outcome.spends_a_try else max(0, task["tries"] - 1),
            "uncounted": task["uncounted"] + 1 if is_uncounted else task["uncounted"],
            "next_mode": outcome.next_mode,
            "next_message": "\n\n".join(filter(None, [unread, outcome.next_message])) or None,
            "stop": None,
            "stopped_by": task["stopped_by"] if outcome.task is TaskStatus.CANCELLED else None,
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
        if outcome.task is TaskStatus.QUEUED and task["stop"] is None:
            reason = f"tries again after: {reason}"
        if task["status"] == TaskStatus.WAITING:  # the agent asked while it worked
            if waits:
                tasks.update(self.connection, task["id"], reason=reason, **values)
                return
            tasks.move(self.connection, task, TaskStatus.RUNNING)
            task = tasks.load_row(self.connection, task["id"])
        tasks.move(self.connection, task, outcome.task, reason, **values)
