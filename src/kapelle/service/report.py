"""The use case of a report: what was asked for, done, proven and delivered, and what needs whom."""

from datetime import UTC, datetime, timedelta
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.domain.ids import body
from kapelle.domain.report import group_of, markdown, next_commands
from kapelle.domain.run import Run
from kapelle.domain.task import CheckResult, Task
from kapelle.domain.views import ReportEntry, ReportFilter, ReportPart, ReportView, UsageFilter
from kapelle.engine.parts import Parts
from kapelle.service.runs import Runs
from kapelle.service.tasks import Tasks
from kapelle.service.usage import Usages, moment
from kapelle.store import events, query, steps
from kapelle.store.database import Connection

_DEFAULT = timedelta(hours=24)
_MOST = 500


class Reports:
    def __init__(self, parts: Parts, tasks: Tasks, runs: Runs, usage: Usages) -> None:
        self._db, self._tasks, self._runs, self._usage = parts.db, tasks, runs, usage

    async def report(self, wanted: ReportFilter) -> ReportView:
        """What was asked for, done, proven, delivered and spent in a time, by default the last 24
        hours, what needs a person, and all of it as Markdown."""
        until = moment(wanted.until, "until", ends=True) if wanted.until else datetime.now(UTC)
        since = moment(wanted.since, "since") if wanted.since else until - _DEFAULT
        if wanted.until and until < since:
            hint = "Name an earlier --since, or a later --until."
            raise InvalidInput("until is before since: nothing lies between them.", hint=hint)
        found = await self._db.read(query.touched, since, until, wanted.project)
        entries = []
        for work_id in sorted(found[:_MOST], key=body):
            work = await (self._tasks if work_id.startswith("task") else self._runs).get(work_id)
            entries.append(await self._db.read(_entry, work))
        times = {"since": since.isoformat(), "until": until.isoformat()}
        spent = await self._usage.report(UsageFilter(by="day", project=wanted.project, **times))
        left_out = len(found) - len(entries)
        report = ReportView(
            since=since, until=until, entries=entries, cost=spent.total, left_out=left_out,
            markdown="",
        )  # fmt: skip
        text = markdown(report.model_dump(mode="json"))
        return report.model_copy(update={"markdown": text})


def _entry(connection: Connection, work: Task | Run) -> ReportEntry:
    item = work.model_dump(mode="json")
    parts: list[ReportPart] = []
    if isinstance(work, Task):
        made, pattern, asked = work.checks, None, work.prompt
        costs = [attempt.usage.cost_usd for attempt in work.attempts if attempt.usage]
        known = [cost for cost in costs if cost is not None]
        cost, attempts = sum(known) if known else None, len(work.attempts)
    else:
        found = steps.shown(connection, work.id)
        parts = [_part(step.model_dump(mode="json")) for step in found if step.subject]
        checks = [step.result for step in found if step.kind == "check" and step.result]
        made = [CheckResult.model_validate(check) for check in (checks or [[]])[-1]]
        pattern, asked = work.pattern, work.title
        cost, attempts = work.spent.cost_usd, work.spent.agent_calls
    following = [{"command": one, "does": does} for one, does in next_commands(item)]
    into = events.merged_into(connection, work.id) if work.merged_at else None
    same = {name: item[name] for name in ReportEntry.model_fields if name in item}
    return ReportEntry.model_validate(
        {
            **same, "asked": asked, "pattern": pattern, "group": group_of(item), "parts": parts,
            "base": into or work.workspace.base, "branch": work.workspace.branch,
            "merged": work.merged_at is not None, "evidence": made, "cost_usd": cost,
            "attempts": attempts, "next": following,
        }
    )  # fmt: skip


def _part(step: dict[str, Any]) -> ReportPart:
    """A task or run that a run began; of one that goes on, that it does."""
    result = step["result"] or {}
    ended = "failed" if step["ended_at"] else "running"
    return ReportPart(
        id=step["subject"],
        title=step["label"],
        status=result.get("status", ended),
        reason=step["error"] or result.get("reason"),
        cost_usd=result.get("cost_usd"),
        verified=result.get("verified"),
        next=f"kapelle logs {step['subject']}",
    )
