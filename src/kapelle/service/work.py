"""Use cases that tasks and runs share: what one changed, merging it, and putting it away."""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar
from weakref import WeakValueDictionary

from kapelle.domain.errors import Conflict, Forbidden, KapelleError, NotFound
from kapelle.domain.ids import body, is_id
from kapelle.domain.run import Run, RunFilter, WorkFilter
from kapelle.domain.specs import MergeSpec, WorkspaceKind
from kapelle.domain.states import RUN_FINAL, RunStatus, TaskStatus
from kapelle.domain.task import Task, TaskFilter
from kapelle.domain.views import DiffView, MergePreview, MergeView, PruneView
from kapelle.engine.archive import Due, Setbacks, archive_run, archive_task, prune, put_away_merged
from kapelle.engine.children import is_own, not_own
from kapelle.engine.merge import Verification
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.actions import mark, record_change
from kapelle.engine.tasks.attempt import recall, task_diff
from kapelle.runner.redaction import redact
from kapelle.settings.trust import drop, records
from kapelle.store import attempts, children, runs, tasks
from kapelle.store.database import Connection, Database
from kapelle.store.query import resolve
from kapelle.workspaces import Diff, checkouts_around, git_in, repository_of

if TYPE_CHECKING:
    from kapelle.service.runs import Runs
    from kapelle.service.tasks import Tasks

Kind = Literal["task", "run"]

_log = logging.getLogger("kapelle.work")

# Whatever else wakes nobody is seen after this time.
_LOOK_S = 5.0


@dataclass
class _Going:
    """A merge that is under way."""

    wanted: MergeSpec
    by_person: bool
    phase: str = "it waits for its turn"
    task: asyncio.Task[MergeView] = field(init=False)

    def tell(self, phase: str) -> None:
        self.phase = phase


class Work:
    def __init__(self, parts: Parts, tasks: "Tasks", runs: "Runs") -> None:
        self._parts = parts
        self._db = parts.db
        self._merges: dict[str, _Going] = {}
        # Merges into the same branch of a repository come one after another, as they were asked.
        self._turns = WeakValueDictionary[tuple[str, str], asyncio.Lock]()
        self._tasks, self._runs = tasks, runs

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
        known = await self._secrets(work)
        if against is None:
            diff = await self._diff(work)
        else:
            await self.require_own(parent, against, itself=True)
            other = await self._db.read(tasks.get, against)
            diff = await self._between(other, await self._db.read(tasks.get, work.id))
            known += await self._secrets(other)
        patch = (await asyncio.to_thread(redact, diff.patch, known)).decode("utf-8", "replace")
        return DiffView(patch=patch, stat=diff.stat, files=diff.files, truncated=diff.truncated)

    async def patch(self, kind: Kind, text: str) -> bytes:
        """The diff as bytes, which `git apply` takes whatever the encoding of the files, unless
        there is a secret in it: that is taken out."""
        work = await self._get(kind, text)
        patch, known = (await self._diff(work)).patch, await self._secrets(work)
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
        going = self._merges.get(work.id)
        if going is None:
            going = self._merges[work.id] = _Going(wanted, by_person=parent is None)
            going.task = asyncio.create_task(self._merge(work, wanted, going))
            going.task.add_done_callback(lambda task: self._ended(work.id, task))
        elif going.wanted != wanted:
            raise Conflict(f"{work.id} is being merged otherwise: {going.phase}.")
        await asyncio.wait({going.task}, timeout=timeout_s)
        if not going.task.done():
            base = wanted.into or work.workspace.base
            return MergeView(id=work.id, status="under_way", base=base, phase=going.phase)
        if going.task.cancelled():
            raise Conflict(f"The merge of {work.id} was given up.")
        return going.task.result()

    def _ended(self, id_: str, task: asyncio.Task[MergeView]) -> None:
        del self._merges[id_]
        _ = task.cancelled() or task.exception()  # which it may be that nobody asks for

    async def give_up_merge(self, kind: Kind, text: str) -> None:
        """End a merge that is under way; what it has moved already stays."""
        work = await self._get(kind, text)
        if (going := self._merges.get(work.id)) is not None:
            going.task.cancel()
            await asyncio.wait({going.task})

    async def _merge(self, work: Task | Run, wanted: MergeSpec, going: _Going) -> MergeView:
        """Merge when it is its turn; nothing is called merged unless git says so."""
        repository = await self._parts.workspaces.locate(Path(work.directory))
        target = wanted.into or work.workspace.base
        place = (str(repository and repository.common_dir), str(target))
        async with self._turns.setdefault(place, asyncio.Lock()):
            # What was asked for before may have changed it.
            kind: Kind = "task" if isinstance(work, Task) else "run"
            return await self._merge_now(await self._get(kind, work.id), wanted, target, going)

    async def _merge_now(
        self, work: Task | Run, wanted: MergeSpec, target: str | None, going: _Going
    ) -> MergeView:
        _require_mergeable(work, wanted.force)
        noun, commit = type(work).__name__, work.workspace.commit
        await recall(self._parts, work)
        if wanted.force:
            # What failed was never committed, and is what is wanted here.
            message = f"{work.title}\n\n{noun}: {work.id}, {work.status}"
            commit = await self._parts.workspaces.commit(work.id, message)
        if commit is None or commit == work.workspace.base_commit:
            raise Conflict(f"{work.id} changed nothing, so there is nothing to merge.")
        if not wanted.force:
            await self._require_no_secret(work)
        title = work.title if wanted.style == "squash" else f"Merge {work.title}"
        checks = Verification(self._parts, work, going.tell)
        merged = await self._parts.workspaces.merge(
            work.id,
            target,
            f"{wanted.message or title}\n\n{noun}: {work.id}",
            expected=commit,
            style=wanted.style,
            by_person=going.by_person,
            verify=checks.verify if wanted.verify and not wanted.force else None,
        )
        if not merged.already or work.merged_at is None:
            facts = {"base": merged.base, "commit": merged.commit}
            await self._db.write(record_change, work, "merged", **facts)
        dropped = going.by_person and await self._drop_trust(work)
        squashed = wanted.style != "merge"
        await put_away_merged(self._parts, Setbacks(), work.id, merged.base, squashed=squashed)
        updated = merged.checkout_updated
        return MergeView(
            id=work.id,
            status="merged",
            base=merged.base,
            commit=merged.commit,
            already=merged.already,
            checkout_updated=str(updated) if updated else None,
            checks=checks.made,
            trust_dropped=dropped,
        )

    async def preview_merge(self, kind: Kind, text: str, into: str | None) -> MergePreview:
        work = await self._get(kind, text)
        _require_mergeable(work, force=True)
        await recall(self._parts, work)
        seen = await self._parts.workspaces.preview_merge(work.id, into or work.workspace.base)
        try:
            _require_mergeable(work, force=False)
        except Conflict as error:
            return seen.model_copy(update={"problem": error.message})
        return seen

    async def _drop_trust(self, work: Task | Run) -> bool:
        """An agent's change of what a repository executes is nobody's word but the agent's."""
        home = self._parts.home
        try:
            changed = await self._executable_places(work)
            return any([drop(home, place, forget=False) for place in changed])
        except (KapelleError, OSError):  # what is merged is merged
            _log.exception("the trust in %s could not be dropped", work.directory)
            return False

    async def _executable_places(self, work: Task | Run) -> set[Path]:
        """The places of which the work changed a .kapelle; all that are trusted if in doubt."""
        tops = checkouts_around(Path(work.directory))
        try:
            files = (await self._diff(work)).files
        except (KapelleError, OSError):
            _log.exception("it is not known whether %s changed what is trusted", work.id)
            known = map(Path, records(self._parts.home))
            return {place for place in known if any(place.is_relative_to(top) for top in tops)}
        return {
            top.joinpath(*parts[:depth])
            for parts in [file.split("/") for file in files]
            for depth, part in enumerate(parts)
            if part.casefold() == ".kapelle"
            for top in tops
        }

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

    async def _secrets(self, work: Task | Run) -> tuple[bytes, ...]:
        row = await self._db.read((tasks if isinstance(work, Task) else runs).row, work.id)
        tried = work.attempts if isinstance(work, Task) else []
        return self._parts.secrets_of(row, [attempt.id for attempt in tried])

    async def _require_no_secret(self, work: Task | Run) -> None:
        """Raise Conflict if a file would get a secret that Kapelle knows."""
        known = await self._secrets(work)
        diff = await self._parts.workspaces.diff(work.id, as_text=True)
        for name in await asyncio.to_thread(_files_with_secrets, diff.patch, known):
            raise Conflict(
                f"{work.id} puts a secret that Kapelle knows into {name}, so it is not merged.",
                hint=f"`kapelle diff {work.id}` shows where; --force merges it all the same.",
            )
        if diff.truncated:
            raise Conflict(
                f"{work.id} changes too much to be searched for secrets, so it is not merged.",
                hint="--force merges it all the same.",
            )

    async def _diff(self, work: Task | Run) -> Diff:
        if work.workspace.kind is not WorkspaceKind.WORKTREE:
            raise Conflict(
                f"{work.id} works in place, so its changes cannot be told from others'.",
                hint=f"`{git_in(Path(work.directory))} diff` shows what is uncommitted there.",
            )
        if work.workspace.branch is None:
            return Diff(b"", "", [])
        await recall(self._parts, work)
        if isinstance(work, Task):
            return await task_diff(self._parts, work.id, work.workspace)
        return await self._parts.workspaces.diff(work.workspace.owner or work.id)

    async def _between(self, one: Task, other: Task) -> Diff:
        for task in (one, other):
            if task.workspace.commit is None:
                raise Conflict(f"{task.id} left no commit that could be compared.")
        await recall(self._parts, one)
        owner = one.workspace.owner or one.id
        commits = [str(task.workspace.commit) for task in (one, other)]
        return await self._parts.workspaces.compare(owner, *commits)


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


def _require_mergeable(work: Task | Run, force: bool) -> None:
    """Raise Conflict unless it has a branch of its own, has ended, and, without force, is good."""
    if work.workspace.owner is not None:
        raise Conflict(
            f"{work.id} works in the worktree of {work.workspace.owner}.",
            hint=f"kapelle merge {work.workspace.owner}",
        )
    if work.workspace.kind is not WorkspaceKind.WORKTREE or work.workspace.branch is None:
        raise Conflict(f"{work.id} has no branch of its own, so there is nothing to merge.")
    if isinstance(work, Task) and work.attempts and not work.attempts[-1].ended_at:
        raise Conflict(f"{work.id} is still running.", hint=f"kapelle wait {work.id}")
    if isinstance(work, Run) and work.status not in RUN_FINAL:
        raise Conflict(f"{work.id} has not ended.", hint=f"kapelle wait {work.id}")
    if not force and work.status != "completed":
        raise Conflict(
            f"{work.id} is {work.status}: only verified work is merged.",
            hint="--force merges it all the same.",
        )


def _files_with_secrets(patch: bytes, known: tuple[bytes, ...]) -> list[str]:
    """The files of a patch whose new lines hold one of these secrets."""
    found = []
    for part in re.split(rb"^diff --git ", patch, flags=re.MULTILINE)[1:]:
        head, _, content = part.partition(b"\n@@ ")
        lines = (line[1:] for line in content.split(b"\n") if line.startswith(b"+"))
        added = b"\n".join(lines)
        if redact(added, known) != added:
            found.append(head.split(b"\n")[0].rpartition(b" b/")[2].decode("utf-8", "replace"))
    return found
