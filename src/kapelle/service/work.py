"""Use cases that tasks and runs share: what one changed, merging it, and putting it away."""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeVar

from kapelle.domain.errors import Conflict, Forbidden, NotFound
from kapelle.domain.ids import body, is_id
from kapelle.domain.run import Run, RunFilter, WorkFilter
from kapelle.domain.specs import MergeSpec, PullRequestSpec
from kapelle.domain.states import RunStatus, TaskStatus
from kapelle.domain.task import Task, TaskFilter
from kapelle.domain.views import DiffView, MergePreview, MergeView, PruneView, PullRequestView
from kapelle.engine.archive import Due, archive_run, archive_task, prune
from kapelle.engine.children import is_own, not_own
from kapelle.engine.delivery import reach, refresh
from kapelle.engine.merge import Merges, changes, require_ended, secrets_of
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.actions import mark
from kapelle.engine.tasks.attempt import recall
from kapelle.runner.redaction import redact
from kapelle.store import attempts, children, deliveries, runs, tasks
from kapelle.store.database import Connection, Database
from kapelle.store.query import resolve
from kapelle.workspaces import Diff, repository_of

if TYPE_CHECKING:
    from kapelle.service.runs import Runs
    from kapelle.service.tasks import Tasks

Kind = Literal["task", "run"]

_log = logging.getLogger("kapelle.work")

# Whatever else wakes nobody is seen after this time.
_LOOK_S = 5.0


class Work:
    def __init__(self, parts: Parts, merges: Merges, tasks: "Tasks", runs: "Runs") -> None:
        self._parts = parts
        self._db = parts.db
        self._merges, self._tasks, self._runs = merges, tasks, runs

    async def get(self, text: str) -> Task | Run:
        id_ = await self._db.read(resolve, text, "task", "run")
        return await (self._runs if is_id("run", id_) else self._tasks).get(id_)

    async def task_of(self, attempt_id: str) -> str:
        """The task that a running attempt works on; its token dies with it."""
        task_id = await self._db.glance(_task_of_running, attempt_id)
        if task_id is None:
            raise Forbidden("This attempt has ended, and its token with it.")
        return task_id

    async def is_allowed(self, attempt_id: str | None) -> bool:
        """Whether a caller's token is good still; an attempt's is while that runs."""
        return attempt_id is None or await self._db.glance(_task_of_running, attempt_id) is not None

    async def require_own(self, parent: str | None, *texts: str, itself: bool) -> None:
        """Raise Forbidden unless all of these are below an attempt's task, or itself that task or
        its run; the owner has no such parent, and may name anything."""
        for text in texts:
            if parent is not None and not await self._db.read(is_own, parent, text, itself):
                raise not_own(text)

    async def page(self, wanted: WorkFilter) -> tuple[list[Task | Run], str | None]:
        """Tasks and runs in one list, newest first, and the cursor of the next page, if any."""
        found: list[Task | Run] = []
        ends: list[str] = []
        for kind, statuses, service in (
            ("task", TaskStatus, self._tasks), ("run", RunStatus, self._runs)
        ):  # fmt: skip
            states = [status for status in wanted.status or () if status in list(statuses)]
            if (wanted.status and not states) or (wanted.tag and kind == "run"):
                continue
            cursor = f"{kind}_{wanted.cursor}" if wanted.cursor else None
            values = {**vars(wanted), "status": states or None, "cursor": cursor}
            values |= {"parent_id": wanted.run_id, "nested": wanted.nested or bool(wanted.run_id)}
            chosen = TaskFilter if kind == "task" else RunFilter
            items, cursor = await service.page(chosen.model_validate(values))  # type: ignore[arg-type]
            found += items
            ends += [body(cursor)] if cursor else []
        # Where one list goes on, the other one is not shown beyond that place.
        least = max(ends, default="")
        found.sort(key=lambda item: body(item.id), reverse=True)
        shown = [item for item in found if body(item.id) >= least][: wanted.limit]
        more = bool(ends) or len(shown) < len(found)
        return shown, body(shown[-1].id) if more else None

    async def diff(
        self, kind: Kind, text: str, against: str | None = None, parent: str | None = None
    ) -> DiffView:
        """What a task or run changed since it began, uncommitted work included; or how a task's
        work differs from another task's, which an attempt, of the parent, must be allowed to see
        as well."""
        work = await self._get(kind, text)
        known = await secrets_of(self._parts, work)
        if against is None:
            diff = await changes(self._parts, work)
        else:
            await self.require_own(parent, against, itself=True)
            other = await self._db.read(tasks.get, against)
            diff = await self._between(other, await self._db.read(tasks.get, work.id))
            known += await secrets_of(self._parts, other)
        patch = (await asyncio.to_thread(redact, diff.patch, known)).decode("utf-8", "replace")
        return DiffView(patch=patch, stat=diff.stat, files=diff.files, truncated=diff.truncated)

    async def patch(self, kind: Kind, text: str) -> bytes:
        """The diff as bytes, which `git apply` takes whatever the encoding of the files, unless
        there is a secret in it: that is taken out."""
        work = await self._get(kind, text)
        patch, known = (await changes(self._parts, work)).patch, await secrets_of(self._parts, work)
        return await asyncio.to_thread(redact, patch, known)

    async def merge(
        self,
        kind: Kind,
        text: str,
        wanted: MergeSpec,
        timeout_s: float,
        parent: str | None = None,
    ) -> MergeView:
        """Merge the branch of what has completed, or with force of what is there; after timeout_s
        it goes on by itself, and whoever asks for the same again waits for it again. An attempt
        merges into the branch of its own task, its parent, and nowhere else."""
        work = await self._get(kind, text)
        if parent is not None:
            own = await self._db.read(tasks.row, parent)
            elsewhere = wanted.into not in {None, own["workspace_branch"]}
            if wanted.force or elsewhere or work.parent_task_id != parent:
                raise Forbidden(
                    "An attempt merges what it asked for itself and what was verified, and into "
                    "its own branch."
                )
            wanted = wanted.model_copy(update={"into": own["workspace_branch"]})
        return await self._merges.merge(work, wanted, timeout_s, by_person=parent is None)

    async def give_up_merge(self, kind: Kind, text: str) -> None:
        """End a merge that is under way; what it has moved already stays."""
        work = await self._get(kind, text)
        await self._merges.give_up(work.id)

    async def open_pull_request(
        self, kind: Kind, text: str, wanted: PullRequestSpec, timeout_s: float
    ) -> PullRequestView:
        """Have the work of a task or run pushed and made a pull request, or its pull request
        updated; after timeout_s it goes on by itself."""
        work = await self._get(kind, text)
        require_ended(work, "pr", force=wanted.draft)
        asked = {"draft": wanted.draft, "force": wanted.force, "by_person": True}
        await self._db.write(deliveries.ask, work.id, "pr", **asked)
        await wait(self._db, work.id, timeout_s, _is_delivered)
        work = await self._get(kind, work.id)
        assert work.delivery is not None
        return PullRequestView(id=work.id, delivery=work.delivery)

    async def pull_request(self, kind: Kind, text: str) -> PullRequestView:
        """The pull request of a task or run with what was said to it, as its forge tells it now."""
        work = await self._get(kind, text)
        if work.delivery is None or work.delivery.number is None:
            raise Conflict(f"{work.id} has no pull request.", hint=f"kapelle pr {work.id}")
        forge = (await reach(self._parts, work.directory))[1]
        await refresh(self._parts, forge, work.id)
        now = (await self._get(kind, work.id)).delivery or work.delivery
        comments = await forge.comments(now.number or work.delivery.number)
        return PullRequestView(id=work.id, delivery=now, comments=comments)

    async def preview_merge(self, kind: Kind, text: str, into: str | None) -> MergePreview:
        work = await self._get(kind, text)
        require_ended(work, "merge", force=True)
        await recall(self._parts, work)
        seen = await self._parts.workspaces.preview_merge(work.id, into or work.workspace.base)
        try:
            require_ended(work, "merge", force=False)
        except Conflict as error:
            return seen.model_copy(update={"problem": error.message})
        return seen

    async def mark(self, text: str, values: dict[str, datetime | None]) -> Task | Run:
        """Note that a person has seen a task or run, flagged it or put it off."""
        id_ = await self._db.read(resolve, text, "task", "run")
        await self._db.write(mark, id_, values)
        return await self.get(id_)

    async def archive_task(self, text: str) -> Task:
        return await archive_task(self._parts, text)

    async def archive_run(self, text: str) -> Run:
        return await archive_run(self._parts, text)

    async def prune(self, merged: bool, older_s: float | None, dry_run: bool) -> PruneView:
        """Put away now what upkeep would some day; older_s, and merged alone, instead of the days
        in the settings."""
        now = datetime.now(UTC)
        due = Due.by(self._parts.settings().upkeep, now)
        if merged or older_s is not None:
            moment = now - timedelta(seconds=older_s or 0)
            due = Due(moment) if merged else Due(moment, moment, moment)
        ids, size, inodes = await prune(self._parts, due, dry_run)
        return PruneView(dry_run=dry_run, archived=ids, bytes=size, inodes=inodes)

    async def _get(self, kind: Kind, text: str) -> Task | Run:
        if kind == "task":
            return await self._db.read(tasks.get, text)
        return await self._db.read(runs.get, text)

    async def _between(self, one: Task, other: Task) -> Diff:
        for task in (one, other):
            if task.workspace.commit is None:
                raise Conflict(f"{task.id} left no commit that could be compared.")
        await recall(self._parts, one)
        owner = one.workspace.owner or one.id
        commits = [str(task.workspace.commit) for task in (one, other)]
        return await self._parts.workspaces.compare(owner, *commits)


def _is_delivered(connection: Connection, id_: str) -> bool:
    row = deliveries.find(connection, id_)
    return row is not None and (row["status"] != "pending" or row["tries"] > 0)


def _task_of_running(connection: Connection, attempt_id: str) -> str | None:
    try:
        attempt = attempts.row(connection, attempt_id)
    except NotFound:
        return None
    return None if attempt["ended_at"] is not None else str(attempt["task_id"])


F = TypeVar("F", TaskFilter, RunFilter)


def of_repository(wanted: F) -> F:
    """The filter with the top of its repository, where any directory in it may be named."""
    if wanted.repository is None:
        return wanted
    return wanted.model_copy(update={"repository": repository_of(wanted.repository)})


async def below(db: Database, parent: str | None, kind: Kind) -> list[str] | None:
    """The tasks or runs that an attempt sees in a list; None for the owner, who sees all."""
    if parent is None:
        return None
    found = await db.read(children.below, parent)
    return [one.id for one in found if is_id(kind, one.id)]


async def wait(
    db: Database, id_: str, timeout_s: float, is_resting: Callable[[Connection, str], bool]
) -> None:
    """Return as soon as a task or run rests, or when time is up."""
    deadline = time.monotonic() + timeout_s
    with db.watch(id_) as changed:
        while not await db.glance(is_resting, id_):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            await changed.wait(min(left, _LOOK_S))
