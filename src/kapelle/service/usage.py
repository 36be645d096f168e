"""Use cases of usage: tokens, turns and money, added up."""

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.domain.views import UsageFilter, UsageReport, UsageRow, UsageSum
from kapelle.engine.parts import Parts
from kapelle.store import usage

_EPOCH = date(1970, 1, 1)


class Usages:
    def __init__(self, parts: Parts) -> None:
        self._db = parts.db

    async def report(self, wanted: UsageFilter) -> UsageReport:
        """What attempts used that started in a time: by agent, model, project, task, run,
        template, outcome, UTC day."""
        since = moment(wanted.since, "since") if wanted.since else None
        until = moment(wanted.until, "until", ends=True) if wanted.until else None
        found = await self._db.read(usage.grouped, wanted, since, until)
        rows = [_row(wanted, dict(mapping)) for mapping in found]
        rows.sort(key=_order(wanted))
        return UsageReport(by=wanted.by, across=wanted.across, rows=rows, total=_total(rows))


def _row(wanted: UsageFilter, values: dict[str, Any]) -> UsageRow:
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


def moment(text: str, name: str, *, ends: bool = False) -> datetime:
    """An ISO time, or a date, which stands for its beginning or end in UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{name}: {text!r} is neither a date nor a time.",
            hint="Write it like 2026-11-01 or 2026-11-01T12:00:00Z.",
        ) from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    is_day = not re.search(r"[T: ]", text.upper())
    return at + timedelta(days=1) if ends and is_day and at.date() < date.max else at
