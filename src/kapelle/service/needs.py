"""Use cases of what needs a person, and of sums such as those of a day, both over all work."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, Field

from kapelle.domain.ids import is_id
from kapelle.domain.needs import NeedKind
from kapelle.domain.run import NeedFilter, Run
from kapelle.domain.specs import Name
from kapelle.domain.task import MomentText, Task
from kapelle.domain.usage import UsageFilter, UsageSum
from kapelle.engine.parts import Parts
from kapelle.service.filters import parse_since, resolve_repository
from kapelle.service.report import ReportService
from kapelle.service.runs import RunService
from kapelle.service.tasks import TaskService
from kapelle.store import events, needs, sums


class Need(BaseModel):
    """Something that needs a person; `work` is the newest of those with the same cause."""

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
    """A page of what needs a person. `total` counts tasks and runs, `rows` the needs after those of
    one cause are folded into one; `next_due` is when the next snoozed task or run returns."""

    total: int
    rows: int
    needs: list[Need]
    next_offset: int | None
    next_due: datetime | None
    last_event: int


class SumsView(BaseModel):
    """Sums of a period over all work that is not part of other work; cost is that of every attempt
    that started in it."""

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
        self, parts: Parts, tasks: TaskService, runs: RunService, reports: ReportService
    ) -> None:
        self._db = parts.db
        self._tasks = tasks
        self._runs = runs
        self._reports = reports

    async def page(self, query: NeedFilter) -> NeedPage:
        """List what needs a person, most urgent first; next_offset leads to the next page.

        Needs with the same cause are listed as one, unless cause selects them.
        """
        last_event = await self._db.read(events.load_last_seq)
        query = resolve_repository(query)
        needs_found = await self._db.read(needs.list_needs, query.project, query.repository)
        if query.cause is None:
            total = len(needs_found)
            needs_found = needs.fold(needs_found)
        else:
            needs_found = [need for need in needs_found if need.cause == query.cause]
            total = len(needs_found)
        end = query.offset + query.limit
        page = needs_found[query.offset : end]
        works = await self._load_work([need.ids[0] for need in page])
        # A task or run that was deleted meanwhile needs nobody.
        views = [_view(need, works[need.ids[0]]) for need in page if need.ids[0] in works]
        return NeedPage(
            total=total,
            rows=len(needs_found),
            needs=views,
            next_offset=end if end < len(needs_found) else None,
            next_due=await self._db.read(needs.find_next_due),
            last_event=last_event,
        )

    async def sums(
        self, since: MomentText = None, project: Annotated[Name | None, Field()] = None
    ) -> SumsView:
        """Count the work that started, completed, was merged or failed since a moment.

        By default since midnight in UTC. `verified` counts verified results, `cost` adds up costs.
        """
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        begin = parse_since(since) or midnight
        counts = await self._db.read(sums.count_since, begin, project)
        period = UsageFilter(by="day", project=project, since=begin.isoformat())
        cost = (await self._reports.usage(period)).total
        return SumsView(since=begin, cost=cost, **counts)

    async def _load_work(self, ids: list[str]) -> dict[str, Task | Run]:
        """Return the tasks and runs of these ids, as far as they exist."""
        works: list[Task | Run] = []
        works += await self._tasks.rows([id_ for id_ in ids if is_id("task", id_)])
        works += await self._runs.rows([id_ for id_ in ids if is_id("run", id_)])
        return {work.id: work for work in works}


def _view(need: needs.FoundNeed, work: Task | Run) -> Need:
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
