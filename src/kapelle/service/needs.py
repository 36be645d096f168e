"""Use cases of what needs a person, and of the sums of a day: both over all rows."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from kapelle.domain.ids import is_id
from kapelle.domain.needs import NeedKind
from kapelle.domain.run import NeedFilter, Run
from kapelle.domain.specs import Name
from kapelle.domain.task import MomentText, Task
from kapelle.domain.times import parse_date_or_time
from kapelle.domain.usage import UsageFilter, UsageSum
from kapelle.engine.parts import Parts
from kapelle.service.report import ReportService
from kapelle.service.work import of_repository
from kapelle.store import events, needs, sums

if TYPE_CHECKING:
    from kapelle.service.runs import RunService
    from kapelle.service.tasks import TaskService


class Need(BaseModel):
    """One thing that needs a person; of several with one cause, work is the newest."""

    key: str
    kind: NeedKind
    cause: str | None
    failure: str | None
    agent: str | None
    at: datetime
    blocked: int  # tasks that wait for it
    count: int
    repositories: list[str]
    work: Task | Run


class NeedPage(BaseModel):
    """What needs a person: total counts tasks and runs, rows what is listed of them once those of
    one cause are folded; next_due is when something snoozed comes back."""

    total: int
    rows: int
    needs: list[Need]
    next_offset: int | None
    next_due: datetime | None
    last_event: int


class SumsView(BaseModel):
    """Sums of a time over all work that is part of nothing else; cost is that of every attempt
    begun in it."""

    since: datetime
    started: int
    completed: int
    verified: int
    merged: int
    failed: int
    cancelled: int
    cost: UsageSum


class NeedService:
    def __init__(
        self, parts: Parts, tasks: "TaskService", runs: "RunService", reports: ReportService
    ) -> None:
        self._db = parts.db
        self._tasks = tasks
        self._runs = runs
        self._reports = reports

    async def page(self, wanted: NeedFilter) -> NeedPage:
        """Everything that needs a person, in order; those of one cause are one, unless the cause is
        named. next_offset leads to the next page."""
        last = await self._db.read(events.load_last_seq)
        wanted = of_repository(wanted)
        found = await self._db.read(needs.list_needs, wanted.project, wanted.repository)
        if wanted.cause is None:
            total = len(found)
            found = needs.fold(found)
        else:
            found = [need for need in found if need.cause == wanted.cause]
            total = len(found)
        end = wanted.offset + wanted.limit
        shown = found[wanted.offset : end]
        work = await self._work([need.ids[0] for need in shown])
        # What was deleted in this moment needs nobody.
        listed = [_need(need, work[need.ids[0]]) for need in shown if need.ids[0] in work]
        return NeedPage(
            total=total,
            rows=len(found),
            needs=listed,
            next_offset=end if end < len(found) else None,
            next_due=await self._db.read(needs.find_next_due),
            last_event=last,
        )

    async def sums(
        self, since: MomentText = None, project: Annotated[Name | None, Field()] = None
    ) -> SumsView:
        """How much work started, completed, was verified and merged, and failed since a moment, by
        default the beginning of the day in UTC, and what that cost."""
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if since:
            begin = parse_date_or_time(since, "since")
        else:
            begin = midnight
        counts = await self._db.read(sums.count_since, begin, project)
        spent = UsageFilter(by="day", project=project, since=begin.isoformat())
        cost = (await self._reports.used(spent)).total
        return SumsView(since=begin, cost=cost, **counts)

    async def _work(self, ids: list[str]) -> dict[str, Task | Run]:
        found: list[Task | Run] = []
        found += await self._tasks.rows([id_ for id_ in ids if is_id("task", id_)])
        found += await self._runs.rows([id_ for id_ in ids if is_id("run", id_)])
        return {work.id: work for work in found}


def _need(need: needs.FoundNeed, work: Task | Run) -> Need:
    return Need(
        key=need.key,
        kind=need.kind,
        cause=need.cause,
        failure=need.failure,
        agent=need.agent,
        at=need.at,
        blocked=need.blocked,
        count=len(need.ids),
        repositories=need.repositories,
        work=work,
    )
