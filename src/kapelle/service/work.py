"""Use cases that tasks and runs share: list them, wait for them, mark, archive and prune them."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field

from kapelle.domain.ids import is_id, strip_kind
from kapelle.domain.run import Run, RunFilter, WorkFilter, is_at_rest
from kapelle.domain.specs import Spec, WaitSeconds
from kapelle.domain.states import RunStatus, TaskStatus
from kapelle.domain.task import Task, TaskFilter
from kapelle.domain.views import PruneView
from kapelle.domain.work_views import RestingView, WaitView
from kapelle.engine.archive import Due, archive_run, archive_task, prune
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.actions import mark
from kapelle.service.caller import Caller, Callers, WorkKind
from kapelle.service.filters import parse_since, resolve_repository
from kapelle.service.runs import RunService
from kapelle.service.tasks import TaskService
from kapelle.store import events, filters, runs, tasks
from kapelle.store.ids import resolve_id

Ids = Annotated[list[str], Field(min_length=1, max_length=200, description="of tasks and runs")]
Until = Annotated[
    Literal["any", "all"], Field(description="whether one of them is enough, or all must rest")
]


class WorkPage(BaseModel):
    work: list[Task | Run]
    total: int  # on all pages
    next_cursor: str | None
    last_event: int


class MarkBody(Spec):
    """The marks to change; those that are left out stay as they are."""

    seen: bool = False
    flagged: bool = False
    snoozed_until: AwareDatetime | None = None

    @property
    def columns(self) -> dict[str, datetime | None]:
        """Return the columns that store the marks, with their new values."""
        now = datetime.now(UTC)
        columns: dict[str, datetime | None] = {}
        for name, value in self.model_dump(exclude_unset=True).items():
            if name == "snoozed_until":
                columns[name] = value
            else:
                columns[f"{name}_at"] = now if value else None
        return columns


class PruneBody(Spec):
    merged: bool = False
    older_s: Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)] | None = None
    dry_run: bool = False


@dataclass
class _MergedList:
    """One list out of the pages of several lists, all sorted by id, newest first."""

    items: list[Task | Run] = field(default_factory=list)
    total: int = 0
    # For each list that has a further page, the id at which it continues.
    continuations: list[str] = field(default_factory=list)

    def add(self, page: list[Task] | list[Run], total: int, cursor: str | None) -> None:
        """Add a page, the length of its whole list, and its cursor."""
        self.items += page
        self.total += total
        if cursor:
            self.continuations.append(strip_kind(cursor))

    def cut(self, limit: int) -> tuple[list[Task | Run], str | None]:
        """Return the first items and the cursor of the next page."""
        self.items.sort(key=_sort_key, reverse=True)
        # Behind the place where one list has a further page, items of that list are missing.
        end = max(self.continuations, default="")
        page = [item for item in self.items if _sort_key(item) >= end][:limit]
        if self.continuations or len(page) < len(self.items):
            return page, _sort_key(page[-1])
        return page, None


def _sort_key(work: Task | Run) -> str:
    return strip_kind(work.id)


class WorkService:
    def __init__(self, parts: Parts, tasks: TaskService, runs: RunService) -> None:
        self._parts = parts
        self._db = parts.db
        self._callers = Callers(parts.db)
        self._tasks = tasks
        self._runs = runs

    async def get(self, work_id: str) -> Task | Run:
        """Get a task or run by its id or any unique part of it."""
        id_ = await self._db.read(resolve_id, work_id, "task", "run")
        return await self._service_of(id_).get(id_)

    async def wait(
        self, ids: Ids, caller: Caller, until: Until = "any", timeout_s: WaitSeconds = 25
    ) -> WaitView:
        """Wait until one or all of several tasks and runs have ended or need a person.

        After timeout_s it returns those that have; call it again with the ids in pending.
        """
        await self._callers.require_own(caller, *ids, itself=False)
        full_ids = {text: await self._db.read(resolve_id, text, "task", "run") for text in ids}
        waits: dict[str, asyncio.Task[Any]] = {}
        for text, id_ in full_ids.items():
            waits[text] = asyncio.create_task(self._service_of(id_).wait(id_, timeout_s))
        if until == "all":
            return_when = asyncio.FIRST_EXCEPTION
        else:
            return_when = asyncio.FIRST_COMPLETED
        resting: dict[str, Task | Run] = {}
        try:
            await asyncio.wait(waits.values(), return_when=return_when)
            for text, wait in waits.items():
                if wait.done() and is_at_rest(wait.result()):
                    resting[text] = wait.result()
        finally:
            for wait in waits.values():
                wait.cancel()
        # Two of the texts may be the same id.
        works = {work.id: work for work in resting.values()}.values()
        return WaitView(
            resting=[RestingView.model_validate(work, from_attributes=True) for work in works],
            pending=[text for text in waits if text not in resting],
        )

    def _service_of(self, id_: str) -> TaskService | RunService:
        if is_id("run", id_):
            return self._runs
        return self._tasks

    async def page(self, query: WorkFilter) -> WorkPage:
        """List tasks and runs together, newest first; next_cursor leads to the next page.

        total counts all pages. With nested, the tasks and runs inside runs are listed, too.
        """
        last_event = await self._db.read(events.load_last_seq)
        since = parse_since(query.since)
        merged = _MergedList()
        for kind in ("task", "run"):
            await self._add_page(merged, kind, query, since)
        page, cursor = merged.cut(query.limit)
        return WorkPage(work=page, total=merged.total, next_cursor=cursor, last_event=last_event)

    async def _add_page(
        self, merged: _MergedList, kind: WorkKind, query: WorkFilter, since: datetime | None
    ) -> None:
        """Add the page of tasks or of runs that a filter selects."""
        statuses = list(TaskStatus) if kind == "task" else list(RunStatus)
        selected = [status for status in query.status or () if status in statuses]
        if query.status and not selected:
            return
        values = {
            **vars(query),
            "status": selected or None,
            "cursor": f"{kind}_{query.cursor}" if query.cursor else None,
            "parent_id": query.run_id,
            "nested": query.nested or bool(query.run_id),
        }
        conditions = await self._db.read(filters.build_conditions, kind, query, since)
        if kind == "task":
            task_filter = resolve_repository(TaskFilter.model_validate(values))
            task_page, cursor = await self._tasks.list_page(task_filter, None, conditions)
            total = await self._db.read(tasks.count_matches, task_filter, conditions)
            merged.add(task_page, total, cursor)
        else:
            run_filter = resolve_repository(RunFilter.model_validate(values))
            run_page, cursor = await self._runs.list_page(run_filter, None, conditions)
            total = await self._db.read(runs.count_matches, run_filter, conditions)
            merged.add(run_page, total, cursor)

    async def mark(self, work_id: str, body: MarkBody) -> Task | Run:
        """Mark a task or run as seen, flag it for attention, or snooze it until a given time."""
        id_ = await self._db.read(resolve_id, work_id, "task", "run")
        await self._db.write(mark, id_, body.columns)
        return await self.get(id_)

    async def archive_task(self, task_id: str) -> Task:
        """Archive an ended task: its worktree is removed, its commits are kept."""
        return await archive_task(self._parts, task_id)

    async def archive_run(self, run_id: str) -> Run:
        """Archive an ended run with its tasks: worktrees are removed, commits are kept."""
        return await archive_run(self._parts, run_id)

    async def prune(self, body: PruneBody | None = None) -> PruneView:
        """Archive ended work: by the settings, or what is merged, or what is older than older_s."""
        now = datetime.now(UTC)
        body = body or PruneBody()
        due = Due.by(self._parts.settings().upkeep, now)
        if body.merged or body.older_s is not None:
            moment = now - timedelta(seconds=body.older_s or 0)
            due = Due(moment) if body.merged else Due(moment, moment, moment)
        ids, attempts_packed, size, inodes = await prune(self._parts, due, body.dry_run)
        return PruneView(
            dry_run=body.dry_run,
            archived=ids,
            packed=attempts_packed,
            bytes=size,
            inodes=inodes,
        )
