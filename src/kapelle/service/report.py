"""Use cases of reports: the work of a period with its evidence, and the usage of a period."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.domain.ids import strip_kind
from kapelle.domain.report import find_group, has_no_changes, next_commands
from kapelle.domain.run import Run
from kapelle.domain.task import CheckResult, Task
from kapelle.domain.usage import ReportFilter, UsageFilter, UsageReport, UsageRow, UsageSum
from kapelle.domain.work_views import ReportEntry, ReportPart, ReportView
from kapelle.engine.parts import Parts
from kapelle.service.filters import parse_since, parse_until, resolve_repository
from kapelle.service.report_text import format_report
from kapelle.service.work import WorkService
from kapelle.store import events, learnings, needs, steps, usage
from kapelle.store import work as work_queries
from kapelle.store.database import Connection

_EPOCH = date(1970, 1, 1)
_DEFAULT_PERIOD = timedelta(hours=24)
_MAX_ENTRIES = 500


class ReportService:
    def __init__(self, parts: Parts, work: WorkService) -> None:
        self._db = parts.db
        self._work = work

    async def report(self, filter: ReportFilter) -> ReportView:
        """Report the work of a period with its evidence, delivery and cost, also as Markdown.

        The period is by default the last 24 hours. The report also has what needs a person now.
        """
        until = parse_until(filter.until) or datetime.now(UTC)
        since = parse_since(filter.since) or until - _DEFAULT_PERIOD
        if filter.until and until < since:
            hint = "Name an earlier --since, or a later --until."
            raise InvalidInput("until is before since, so the period is empty.", hint=hint)
        filter = resolve_repository(filter)
        ids = await self._db.read(
            work_queries.list_touched, since, until, filter.project, filter.repository
        )
        entries = []
        for work_id in sorted(ids[:_MAX_ENTRIES], key=strip_kind):
            entries.append(await self._db.read(_entry, await self._work.get(work_id)))
        usage_filter = UsageFilter(
            by="day",
            project=filter.project,
            repository=filter.repository,
            since=since.isoformat(),
            until=until.isoformat(),
        )
        report = ReportView(
            since=since,
            until=until,
            entries=entries,
            left_out=len(ids) - len(entries),
            learnings=await self._db.read(
                learnings.list_kept_of_agents, since, until, filter.project
            ),
            needs_total=len(await self._db.read(needs.list_needs, filter.project)),
            cost=(await self.usage(usage_filter)).total,
            markdown="",
        )
        text = format_report(report.model_dump(mode="json"))
        return report.model_copy(update={"markdown": text})

    async def usage(self, filter: UsageFilter) -> UsageReport:
        """Add up the usage of the attempts that started in a period.

        Rows are by agent, model, project, task, run, template, outcome or UTC day.
        """
        filter = resolve_repository(filter)
        since = parse_since(filter.since)
        until = parse_until(filter.until)
        groups = await self._db.read(usage.sum_by_key, filter, since, until)
        rows = [_usage_row(filter, dict(group)) for group in groups]
        rows.sort(key=_sort_key(filter))
        return UsageReport(by=filter.by, across=filter.across, rows=rows, total=_total(rows))


def _entry(connection: Connection, work: Task | Run) -> ReportEntry:
    item = work.model_dump(mode="json")
    base = work.workspace.base
    if work.merged_at:
        base = events.find_merged_branch(connection, work.id) or base
    changed = None
    if work.status == "completed":
        changed = not has_no_changes(item)
    commands = [{"command": command, "does": does} for command, does in next_commands(item)]
    if isinstance(work, Task):
        own_fields = _task_fields(work)
    else:
        own_fields = _run_fields(connection, work)
    shared_fields = {name: item[name] for name in ReportEntry.model_fields if name in item}
    return ReportEntry.model_validate(
        {
            **shared_fields,
            "group": find_group(item),
            "base": base,
            "branch": work.workspace.branch,
            "changed": changed,
            "merged": work.merged_at is not None,
            "next": commands,
            **own_fields,
        }
    )


def _task_fields(task: Task) -> dict[str, Any]:
    """Return the fields of an entry that come from the attempts of a task."""
    costs = [attempt.usage.cost_usd for attempt in task.attempts if attempt.usage]
    return {
        "asked": task.prompt,
        "pattern": None,
        "parts": [],
        "evidence": task.checks,
        "scores": [],
        "cost_usd": _add_costs(costs),
        "attempts": len(task.attempts),
    }


def _run_fields(connection: Connection, run: Run) -> dict[str, Any]:
    """Return the fields of an entry that come from the steps of a run."""
    run_steps = steps.list_steps(connection, run.id)
    evidence: list[CheckResult] = []
    scores: list[str] = []
    for step in run_steps:
        if step.kind == "check" and step.result:
            # The last checks are the evidence: each later step checks the whole work again.
            evidence = [CheckResult.model_validate(check) for check in step.result]
        elif step.kind == "score" and step.label not in scores:
            scores.append(step.label)
    return {
        "asked": run.title,
        "pattern": run.pattern,
        "parts": [_part(step.model_dump(mode="json")) for step in run_steps if step.subject],
        "evidence": evidence,
        "scores": scores,
        "cost_usd": run.spent.cost_usd,
        "attempts": run.spent.agent_calls,
    }


def _part(step: dict[str, Any]) -> ReportPart:
    """Return a task or run that a run started, by the step that started it."""
    result = step["result"] or {}
    if step["ended_at"]:
        default_status = "failed"
    else:
        default_status = "running"
    return ReportPart(
        id=step["subject"],
        title=step["label"],
        status=result.get("status", default_status),
        reason=step["error"] or result.get("reason"),
        cost_usd=result.get("cost_usd"),
        verified=result.get("verified"),
        next=f"kapelle logs {step['subject']}",
    )


def _usage_row(filter: UsageFilter, values: dict[str, Any]) -> UsageRow:
    for name, by in (("key", filter.by), ("across", filter.across)):
        if by == "day":
            values[name] = (_EPOCH + timedelta(days=values[name])).isoformat()
    return UsageRow.model_validate(values)


def _sort_key(filter: UsageFilter) -> Any:
    """Return the key to sort rows by.

    Pairs are sorted by their names, days and tasks by their keys, everything else by falling cost.
    """
    if filter.across:
        return lambda row: (row.key or "", row.across or "")
    if filter.by in {"day", "task"}:
        return lambda row: row.key
    return lambda row: (-(row.cost_usd or 0), -row.input_tokens - row.output_tokens, row.key or "")


def _total(rows: Sequence[UsageRow]) -> UsageSum:
    sums = dict.fromkeys(UsageSum.model_fields.keys() - {"cost_usd"}, 0)
    for row in rows:
        for name in sums:
            sums[name] += getattr(row, name)
    return UsageSum(cost_usd=_add_costs(row.cost_usd for row in rows), **sums)


def _add_costs(costs: Iterable[float | None]) -> float | None:
    """Return the sum of the known costs; None if none is known."""
    known_costs = [cost for cost in costs if cost is not None]
    if not known_costs:
        return None
    return sum(known_costs)
