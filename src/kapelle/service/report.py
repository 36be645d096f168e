"""Use cases of reports: what was asked for, done, proven and delivered, and what needs whom; and
tokens, turns and money, added up."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.domain.ids import strip_kind
from kapelle.domain.report import (
    find_group,
    has_no_changes,
    next_commands,
)
from kapelle.domain.run import Run
from kapelle.domain.task import CheckResult, Task
from kapelle.domain.times import parse_date_or_time
from kapelle.domain.usage import ReportFilter, UsageFilter, UsageReport, UsageRow, UsageSum
from kapelle.domain.work_views import ReportEntry, ReportPart, ReportView
from kapelle.engine.parts import Parts
from kapelle.service.report_text import format_report
from kapelle.service.work import WorkService, of_repository
from kapelle.store import events, learnings, needs, steps, usage
from kapelle.store import work as work_queries
from kapelle.store.database import Connection

_EPOCH = date(1970, 1, 1)
_DEFAULT = timedelta(hours=24)
_MOST = 500


class ReportService:
    def __init__(self, parts: Parts, work: WorkService) -> None:
        self._db = parts.db
        self._work = work

    async def report(self, wanted: ReportFilter) -> ReportView:
        """What was asked for, done, proven, delivered and spent in a time, by default the last 24
        hours, what needs a person, and all of it as Markdown."""
        if wanted.until:
            until = parse_date_or_time(wanted.until, "until", ends=True)
        else:
            until = datetime.now(UTC)
        if wanted.since:
            since = parse_date_or_time(wanted.since, "since")
        else:
            since = until - _DEFAULT
        if wanted.until and until < since:
            hint = "Name an earlier --since, or a later --until."
            raise InvalidInput("until is before since: nothing lies between them.", hint=hint)
        wanted = of_repository(wanted)
        where = (wanted.project, wanted.repository)
        found = await self._db.read(work_queries.list_touched, since, until, *where)
        entries = []
        for work_id in sorted(found[:_MOST], key=strip_kind):
            entries.append(await self._db.read(_entry, await self._work.get(work_id)))
        times = {"since": since.isoformat(), "until": until.isoformat()}
        same = wanted.model_dump(include={"project", "repository"})
        spent = await self.used(UsageFilter(by="day", **same, **times))
        left_out = len(found) - len(entries)
        learned = await self._db.read(learnings.list_kept_of_agents, since, until, wanted.project)
        needing = await self._db.read(needs.list_needs, wanted.project)
        report = ReportView(
            since=since, until=until, entries=entries, cost=spent.total, left_out=left_out,
            learnings=learned, needs_total=len(needing), markdown="",
        )  # fmt: skip
        text = format_report(report.model_dump(mode="json"))
        return report.model_copy(update={"markdown": text})

    async def used(self, wanted: UsageFilter) -> UsageReport:
        """What attempts used that started in a time: by agent, model, project, task, run,
        template, outcome, UTC day."""
        wanted = of_repository(wanted)
        if wanted.since:
            since = parse_date_or_time(wanted.since, "since")
        else:
            since = None
        if wanted.until:
            until = parse_date_or_time(wanted.until, "until", ends=True)
        else:
            until = None
        found = await self._db.read(usage.sum_by_key, wanted, since, until)
        rows = [_usage_row(wanted, dict(mapping)) for mapping in found]
        rows.sort(key=_order(wanted))
        return UsageReport(by=wanted.by, across=wanted.across, rows=rows, total=_total(rows))


def _entry(connection: Connection, work: Task | Run) -> ReportEntry:
    item = work.model_dump(mode="json")
    parts: list[ReportPart] = []
    scores: list[str] = []
    if isinstance(work, Task):
        made = work.checks
        pattern = None
        asked = work.prompt
        costs = [attempt.usage.cost_usd for attempt in work.attempts if attempt.usage]
        known = [cost for cost in costs if cost is not None]
        cost = sum(known) if known else None
        attempts = len(work.attempts)
    else:
        found = steps.list_steps(connection, work.id)
        parts = [_part(step.model_dump(mode="json")) for step in found if step.subject]
        checks = [step.result for step in found if step.kind == "check" and step.result]
        made = [CheckResult.model_validate(check) for check in (checks or [[]])[-1]]
        scores = list(dict.fromkeys(step.label for step in found if step.kind == "score"))
        pattern = work.pattern
        asked = work.title
        cost = work.spent.cost_usd
        attempts = work.spent.agent_calls
    following = [{"command": one, "does": does} for one, does in next_commands(item)]
    if work.merged_at:
        into = events.find_merged_branch(connection, work.id)
    else:
        into = None
    same = {name: item[name] for name in ReportEntry.model_fields if name in item}
    return ReportEntry.model_validate(
        {
            **same, "asked": asked, "pattern": pattern, "group": find_group(item), "parts": parts,
            "base": into or work.workspace.base, "branch": work.workspace.branch,
            "changed": not has_no_changes(item) if work.status == "completed" else None,
            "merged": work.merged_at is not None, "evidence": made, "scores": scores,
            "cost_usd": cost, "attempts": attempts, "next": following,
        }
    )  # fmt: skip


def _part(step: dict[str, Any]) -> ReportPart:
    """A task or run that a run began; of one that goes on, that it does."""
    result = step["result"] or {}
    if step["ended_at"]:
        ended = "failed"
    else:
        ended = "running"
    return ReportPart(
        id=step["subject"],
        title=step["label"],
        status=result.get("status", ended),
        reason=step["error"] or result.get("reason"),
        cost_usd=result.get("cost_usd"),
        verified=result.get("verified"),
        next=f"kapelle logs {step['subject']}",
    )


def _usage_row(wanted: UsageFilter, values: dict[str, Any]) -> UsageRow:
    for name, by in (("key", wanted.by), ("across", wanted.across)):
        if by == "day":
            values[name] = (_EPOCH + timedelta(days=values[name])).isoformat()
    return UsageRow.model_validate(values)


def _order(wanted: UsageFilter) -> Any:
    """Time goes forward; of everything else the dearest comes first, of pairs all of a key."""
    if wanted.across:
        return lambda row: (row.key or "", row.across or "")
    if wanted.by in {"day", "task"}:
        return lambda row: row.key
    return lambda row: (-(row.cost_usd or 0), -row.input_tokens - row.output_tokens, row.key or "")


def _total(rows: Sequence[UsageRow]) -> UsageSum:
    known = [row.cost_usd for row in rows if row.cost_usd is not None]
    counters = set(UsageSum.model_fields) - {"cost_usd"}
    sums = {name: sum(getattr(row, name) for row in rows) for name in counters}
    return UsageSum(cost_usd=sum(known) if known else None, **sums)
