"""Use cases of usage: tokens, turns and money, added up."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.domain.views import By, UsageReport, UsageRow, UsageSum
from kapelle.engine.parts import Parts
from kapelle.store import runs, tasks, usage
from kapelle.store.database import Connection
from kapelle.store.usage import Filters

_EPOCH = date(1970, 1, 1)
_ONE_DAY = timedelta(days=1)


class Usages:
    def __init__(self, parts: Parts) -> None:
        self._db = parts.db

    async def report(
        self,
        by: By,
        since: str | None = None,
        until: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        project: str | None = None,
        task: str | None = None,
        run: str | None = None,
    ) -> UsageReport:
        """What attempts used, by one property; times are of their start."""
        filters = Filters(
            since=_moment(since, "since") if since else None,
            until=_moment(until, "until", ends=True) if until else None,
            agent=agent,
            model=model,
            project=project,
            task_id=await self._db.read(tasks.resolve, task) if task else None,
            run_ids=await self._db.read(_family, run) if run else None,
        )
        found = await self._db.read(usage.grouped, by, filters)
        rows = sorted((_row(by, dict(mapping)) for mapping in found), key=_order(by))
        return UsageReport(by=by, rows=rows, total=_total(rows))


def _family(connection: Connection, text: str) -> list[str]:
    """A run with those inside it."""
    return runs.family(connection, runs.resolve(connection, text))


def _row(by: By, values: dict[str, Any]) -> UsageRow:
    if by == "day":
        values["key"] = (_EPOCH + timedelta(days=values["key"])).isoformat()
    return UsageRow.model_validate(values)


def _order(by: By) -> Any:
    """Time goes forward; of everything else the dearest comes first."""
    if by in {"day", "task"}:
        return lambda row: row.key
    return lambda row: (-(row.cost_usd or 0), -row.input_tokens - row.output_tokens, row.key or "")


def _total(rows: Sequence[UsageRow]) -> UsageSum:
    known = [row.cost_usd for row in rows if row.cost_usd is not None]
    counters = set(UsageSum.model_fields) - {"cost_usd"}
    sums = {name: sum(getattr(row, name) for row in rows) for name in counters}
    return UsageSum(cost_usd=sum(known) if known else None, **sums)


def _moment(text: str, name: str, *, ends: bool = False) -> datetime:
    """An ISO time, or a date, which stands for its beginning or end in UTC."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return _instant(text, name)
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return start + _ONE_DAY if ends and day < date.max else start


def _instant(text: str, name: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{name}: {text!r} is neither a date nor a time.",
            hint="Write it like 2026-11-01 or 2026-11-01T12:00:00Z.",
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
