"""Use cases that tasks and runs share: what one changed, merging it, and putting it away."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, Field

from kapelle.domain.errors import Conflict, Forbidden, InvalidInput
from kapelle.domain.ids import is_id, strip_kind
from kapelle.domain.run import NeedFilter, Run, RunFilter, WorkFilter, is_at_rest
from kapelle.domain.specs import MergeSpec, PullRequestSpec, Spec, UndoSpec, WaitSeconds
from kapelle.domain.states import RunStatus, TaskStatus
from kapelle.domain.task import Task, TaskFilter
from kapelle.domain.times import parse_date_or_time
from kapelle.domain.usage import ReportFilter, UsageFilter
from kapelle.domain.views import PruneView
from kapelle.domain.work_views import (
    DiffView,
    MergePreview,
    MergeView,
    PullRequestView,
    RestingView,
    UndoView,
    WaitView,
)
from kapelle.engine.archive import Due, archive_run, archive_task, prune
from kapelle.engine.delivery import last_checks, open_forge, refresh
from kapelle.engine.merge import (
    MergeQueue,
    diff_attempt,
    diff_work,
    require_ended,
    secrets_of,
    undone_merge,
)
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.actions import mark
from kapelle.engine.tasks.attempt import recall_worktree
from kapelle.runner.redaction import redact
from kapelle.service.caller import Caller, Callers, WorkKind
from kapelle.store import deliveries, events, filters, runs, tasks
from kapelle.store.database import Connection, Database
from kapelle.store.ids import resolve_id
from kapelle.workspaces import Diff, repository_of

if TYPE_CHECKING:
    from kapelle.service.runs import RunService
    from kapelle.service.tasks import TaskService

_log = logging.getLogger("kapelle.work")

# Whatever else wakes nobody is seen after this time.
_LOOK_S = 5.0


Against = Annotated[str | None, Field(max_length=100)]
AttemptNumber = Annotated[int | None, Field(ge=1, le=1_000_000)]
Into = Annotated[str | None, Field(min_length=1, max_length=200)]
Ids = Annotated[list[str], Field(min_length=1, max_length=200, description="of tasks and runs")]
Until = Annotated[
    Literal["any", "all"], Field(description="whether one of them is enough, or all must rest")
]


def _redact_text(text: str, known: tuple[bytes, ...]) -> str:
    return redact(text.encode("utf-8", "surrogateescape"), known).decode("utf-8", "replace")


class WorkPage(BaseModel):
    work: list[Task | Run]
    total: int  # on all pages
    next_cursor: str | None
    last_event: int


class MarkBody(Spec):
    """What a person marks work with; what is not named stays as it is."""

    seen: bool = False
    flagged: bool = False
    snoozed_until: AwareDatetime | None = None

    @property
    def values(self) -> dict[str, datetime | None]:
        now = datetime.now(UTC)
        named = self.model_dump(exclude_unset=True)
        if "snoozed_until" in named:
            until = {"snoozed_until": named.pop("snoozed_until")}
        else:
            until = {}
        return {f"{name}_at": now if is_so else None for name, is_so in named.items()} | until


class PruneBody(Spec):
    merged: bool = False
    older_s: Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)] | None = None
    dry_run: bool = False


class WorkService:
    def __init__(
        self, parts: Parts, merges: MergeQueue, tasks: "TaskService", runs: "RunService"
    ) -> None:
        self._parts = parts
        self._db = parts.db
        self._callers = Callers(parts.db)
        self._merges = merges
        self._tasks = tasks
        self._runs = runs

    async def get(self, work_id: str) -> Task | Run:
        """The task or the run of an id, or of any part of one that is unique."""
        id_ = await self._db.read(resolve_id, work_id, "task", "run")
        return await self._of(id_).get(id_)

    async def wait(
        self, ids: Ids, caller: Caller, until: Until = "any", timeout_s: WaitSeconds = 25
    ) -> WaitView:
        """Those of several tasks and runs that have ended or wait for a person, as soon as there
        are; after timeout_s, those that there are: then call again for what is pending."""
        await self._callers.require_own(caller, *ids, itself=False)
        found = {text: await self._db.read(resolve_id, text, "task", "run") for text in ids}
        waits: dict[str, asyncio.Task[Any]] = {
            text: asyncio.create_task(self._of(id_).wait(id_, timeout_s))
            for text, id_ in found.items()
        }
        if until == "all":
            when = asyncio.FIRST_EXCEPTION
        else:
            when = asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait(waits.values(), return_when=when)
            done = {text: wait.result() for text, wait in waits.items() if wait.done()}
        finally:
            for wait in waits.values():
                wait.cancel()
        resting = {t: work for t, work in done.items() if is_at_rest(work)}
        one_each = {work.id: work for work in resting.values()}.values()
        shown = [RestingView.model_validate(work, from_attributes=True) for work in one_each]
        return WaitView(resting=shown, pending=[text for text in waits if text not in resting])

    def _of(self, id_: str) -> "TaskService | RunService":
        if is_id("run", id_):
            return self._runs
        return self._tasks

    async def page(self, wanted: WorkFilter) -> WorkPage:
        """Tasks and runs in one list, newest first; next_cursor leads to the next page, total
        counts all pages. Nested ones are parts of runs."""
        last = await self._db.read(events.load_last_seq)
        if wanted.since:
            since = parse_date_or_time(wanted.since, "since")
        else:
            since = None
        found: list[Task | Run] = []
        ends: list[str] = []
        total = 0
        kinds: tuple[tuple[WorkKind, Any], ...] = (("task", TaskStatus), ("run", RunStatus))
        for kind, statuses in kinds:
            states = [status for status in wanted.status or () if status in list(statuses)]
            if wanted.status and not states:
                continue
            own = await self._db.read(filters.build_conditions, kind, wanted, since)
            if wanted.cursor:
                cursor = f"{kind}_{wanted.cursor}"
            else:
                cursor = None
            values = {**vars(wanted), "status": states or None, "cursor": cursor}
            values |= {"parent_id": wanted.run_id, "nested": wanted.nested or bool(wanted.run_id)}
            if kind == "task":
                task_filter = of_repository(TaskFilter.model_validate(values))
                task_page, cursor = await self._tasks.listed(task_filter, None, own)
                found += task_page
                total += await self._db.read(tasks.count_matches, task_filter, own)
            else:
                run_filter = of_repository(RunFilter.model_validate(values))
                run_page, cursor = await self._runs.listed(run_filter, None, own)
                found += run_page
                total += await self._db.read(runs.count_matches, run_filter, own)
            ends += [strip_kind(cursor)] if cursor else []
        # Where one list goes on, the other one is not shown beyond that place.
        least = max(ends, default="")
        found.sort(key=lambda item: strip_kind(item.id), reverse=True)
        shown = [item for item in found if strip_kind(item.id) >= least][: wanted.limit]
        more = bool(ends) or len(shown) < len(found)
        cursor = strip_kind(shown[-1].id) if more else None
        return WorkPage(work=shown, total=total, next_cursor=cursor, last_event=last)

    async def diff(
        self,
        kind: WorkKind,
        work_id: str,
        caller: Caller,
        against: Against = None,
        attempt: AttemptNumber = None,
    ) -> DiffView:
        """Everything that changed in its worktree since it began, or since its merge if it went on;
        what one attempt of a task changed; or, against another task of the same repository, how
        their work differs."""
        work = await self._get(kind, work_id)
        known = await secrets_of(self._parts, work)
        if attempt is not None:
            if against is not None or not isinstance(work, Task):
                raise InvalidInput("attempt is for the changes of a task, without against.")
            diff = await diff_attempt(self._parts, work, attempt)
        elif against is None:
            diff = await diff_work(self._parts, work)
        else:
            await self._callers.require_own(caller, against, itself=True)
            other = await self._db.read(tasks.get, against)
            diff = await self._between(other, await self._db.read(tasks.get, work.id))
            known += await secrets_of(self._parts, other)
        patch = (await asyncio.to_thread(redact, diff.patch, known)).decode("utf-8", "replace")
        stat, *files = (_redact_text(text, known) for text in (diff.stat, *diff.files))
        return DiffView(patch=patch, stat=stat, files=files, truncated=diff.is_truncated)

    async def patch(self, kind: WorkKind, work_id: str) -> bytes:
        """The diff alone, byte for byte but for secrets."""
        work = await self._get(kind, work_id)
        patch = (await diff_work(self._parts, work)).patch
        known = await secrets_of(self._parts, work)
        return await asyncio.to_thread(redact, patch, known)

    async def merge(
        self,
        kind: WorkKind,
        work_id: str,
        caller: Caller,
        body: MergeSpec | None = None,
        timeout_s: WaitSeconds = 25,
    ) -> MergeView:
        """Merge its branch into its base, or another branch; where that takes longer than timeout_s
        it is under way: ask again to wait for it."""
        work = await self._get(kind, work_id)
        wanted = body or MergeSpec()
        parent = caller.task_id
        if parent is not None:
            own = await self._db.read(tasks.load_row, parent)
            elsewhere = wanted.into not in {None, own["workspace_branch"]}
            if own["read_only"]:
                raise Forbidden("A task that only reports merges nothing.")
            if wanted.force or elsewhere or work.parent_task_id != parent:
                raise Forbidden(
                    "An attempt merges what it asked for itself and what was verified, and into "
                    "its own branch."
                )
            wanted = wanted.model_copy(update={"into": own["workspace_branch"]})
        return await self._merges.merge(work, wanted, timeout_s, by_person=parent is None)

    async def undo_merge(
        self, kind: WorkKind, work_id: str, body: UndoSpec | None = None
    ) -> UndoView:
        """Undo the last merge of its branch: the base goes back, or a commit on it reverts the
        merge. It can be merged again."""
        work = await self._get(kind, work_id)
        return await self._merges.undo(work, (body or UndoSpec()).message)

    async def give_up_merge(self, kind: WorkKind, work_id: str) -> None:
        """End a merge that is under way."""
        work = await self._get(kind, work_id)
        await self._merges.give_up(work.id)

    async def open_pull_request(
        self,
        kind: WorkKind,
        work_id: str,
        body: PullRequestSpec | None = None,
        timeout_s: WaitSeconds = 25,
    ) -> PullRequestView:
        """Push its branch and open a pull request of it, or update the one that it has; while that
        is pending, ask again to wait for it."""
        work = await self._get(kind, work_id)
        wanted = body or PullRequestSpec()
        require_ended(work, "pr", force=wanted.draft is True)
        ask = partial(deliveries.request, draft=wanted.draft, force=wanted.force, by_person=True)
        await self._db.write(ask, work.id, "pr")
        await until(self._db, [work.id], timeout_s, partial(_is_delivered, id_=work.id))
        work = await self._get(kind, work.id)
        assert work.delivery is not None
        return PullRequestView(id=work.id, delivery=work.delivery)

    async def pull_request(self, kind: WorkKind, work_id: str) -> PullRequestView:
        """Its pull request as the forge tells it now, with what people said to it."""
        work = await self._get(kind, work_id)
        if work.delivery is None or work.delivery.number is None:
            raise Conflict(f"{work.id} has no pull request.", hint=f"kapelle pr {work.id}")
        forge = (await open_forge(self._parts, work))[1]
        await refresh(self._parts, forge, work.id)
        now = (await self._get(kind, work.id)).delivery or work.delivery
        comments = await forge.comments(now.number or work.delivery.number)
        return PullRequestView(id=work.id, delivery=now, comments=comments)

    async def preview_merge(self, kind: WorkKind, work_id: str, into: Into = None) -> MergePreview:
        """How a merge of its branch would go, without merging."""
        work = await self._get(kind, work_id)
        require_ended(work, "merge", force=True)
        await recall_worktree(self._parts, work)
        undone = await self._db.read(undone_merge, work.id)
        target = into or work.workspace.base
        seen = await self._parts.workspaces.preview_merge(work.id, target, undone)
        made = await self._db.read(last_checks, work)
        doubts = [f"{check.name}: {check.proof}" for check in made if check.proved is False]
        seen = seen.model_copy(update={"doubts": doubts})
        try:
            require_ended(work, "merge", force=False)
        except Conflict as error:
            return seen.model_copy(update={"problem": error.message})
        return seen

    async def mark(self, work_id: str, body: MarkBody) -> Task | Run:
        """Mark a task or run: that it was seen, that it is flagged for attention, that it is put
        off until a time."""
        id_ = await self._db.read(resolve_id, work_id, "task", "run")
        await self._db.write(mark, id_, body.values)
        return await self.get(id_)

    async def archive_task(self, task_id: str) -> Task:
        """Put an ended task away; its worktree is removed, its work kept."""
        return await archive_task(self._parts, task_id)

    async def archive_run(self, run_id: str) -> Run:
        """Put an ended run away with its tasks; worktrees are removed, the work is kept."""
        return await archive_run(self._parts, run_id)

    async def prune(self, body: PruneBody | None = None) -> PruneView:
        """Put away what has ended: by the settings, or what is merged, or older than older_s."""
        now = datetime.now(UTC)
        body = body or PruneBody()
        due = Due.by(self._parts.settings().upkeep, now)
        if body.merged or body.older_s is not None:
            moment = now - timedelta(seconds=body.older_s or 0)
            if body.merged:
                due = Due(moment)
            else:
                due = Due(moment, moment, moment)
        ids, packed, size, inodes = await prune(self._parts, due, body.dry_run)
        return PruneView(
            dry_run=body.dry_run, archived=ids, packed=packed, bytes=size, inodes=inodes
        )

    async def _get(self, kind: WorkKind, work_id: str) -> Task | Run:
        if kind == "task":
            return await self._db.read(tasks.get, work_id)
        return await self._db.read(runs.get, work_id)

    async def _between(self, one: Task, other: Task) -> Diff:
        for task in (one, other):
            if task.workspace.commit is None:
                raise Conflict(f"{task.id} left no commit that could be compared.")
        await recall_worktree(self._parts, one)
        owner = one.workspace.owner or one.id
        commits = [str(task.workspace.commit) for task in (one, other)]
        return await self._parts.workspaces.compare(owner, *commits)


def _is_delivered(connection: Connection, id_: str) -> bool:
    row = deliveries.find(connection, id_)
    return row is not None and (row["status"] != "pending" or row["tries"] > 0)


F = TypeVar("F", TaskFilter, RunFilter, NeedFilter, ReportFilter, UsageFilter)
T = TypeVar("T")


def of_repository(wanted: F) -> F:
    """Return the filter with the top of its repository in place of a directory in it."""
    if wanted.repository is None or not wanted.repository.startswith("/"):
        return wanted
    return wanted.model_copy(update={"repository": repository_of(wanted.repository)})


async def until(
    db: Database, keys: Iterable[str], timeout_s: float, look: Callable[[Connection], T]
) -> T:
    """What is seen as soon as that is something, looking whenever a write was about one of these
    keys; or what is seen when time is up."""
    deadline = time.monotonic() + timeout_s
    with db.watch(*keys) as changed:
        while True:
            found = await db.glance(look)
            left = deadline - time.monotonic()
            if found or left <= 0:
                return found
            await changed.wait(min(left, _LOOK_S))
