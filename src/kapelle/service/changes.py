"""Use cases of what a task or a run changed: diffs, merges and pull requests."""

import asyncio
from functools import partial
from typing import Annotated

from pydantic import Field

from kapelle.domain.errors import Conflict, Forbidden, InvalidInput
from kapelle.domain.run import Run
from kapelle.domain.specs import MergeSpec, PullRequestSpec, UndoSpec, WaitSeconds
from kapelle.domain.task import Task
from kapelle.domain.work_views import DiffView, MergePreview, MergeView, PullRequestView, UndoView
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
from kapelle.engine.tasks.attempt import recall_worktree
from kapelle.runner.redaction import redact
from kapelle.service.caller import Caller, Callers, WorkKind
from kapelle.service.wait import wait_until
from kapelle.store import deliveries, runs, tasks
from kapelle.store.database import Connection
from kapelle.workspaces import Diff

Against = Annotated[str | None, Field(max_length=100)]
AttemptNumber = Annotated[int | None, Field(ge=1, le=1_000_000)]
Into = Annotated[str | None, Field(min_length=1, max_length=200)]


class ChangeService:
    def __init__(self, parts: Parts, merges: MergeQueue) -> None:
        self._parts = parts
        self._db = parts.db
        self._callers = Callers(parts.db)
        self._merges = merges

    async def diff(
        self,
        kind: WorkKind,
        work_id: str,
        caller: Caller,
        against: Against = None,
        attempt: AttemptNumber = None,
    ) -> DiffView:
        """Get the diff of a task or run since its start, or since its merge if it continued.

        With attempt, the diff of one attempt of a task; with against, the difference to the work of
        another task in the same repository.
        """
        work = await self._get(kind, work_id)
        secrets = await secrets_of(self._parts, work)
        if attempt is not None:
            if against is not None or not isinstance(work, Task):
                raise InvalidInput("Only a task has attempts, and attempt excludes against.")
            diff = await diff_attempt(self._parts, work, attempt)
        elif against is None:
            diff = await diff_work(self._parts, work)
        else:
            await self._callers.require_own(caller, against, itself=True)
            other = await self._db.read(tasks.get, against)
            diff = await self._compare(other, await self._db.read(tasks.get, work.id))
            secrets += await secrets_of(self._parts, other)
        patch = await asyncio.to_thread(redact, diff.patch, secrets)
        return DiffView(
            patch=patch.decode("utf-8", "replace"),
            stat=_redact_text(diff.stat, secrets),
            files=[_redact_text(path, secrets) for path in diff.files],
            truncated=diff.is_truncated,
        )

    async def patch(self, kind: WorkKind, work_id: str) -> bytes:
        """Get the diff as a patch, byte for byte; only secrets are redacted."""
        work = await self._get(kind, work_id)
        patch = (await diff_work(self._parts, work)).patch
        secrets = await secrets_of(self._parts, work)
        return await asyncio.to_thread(redact, patch, secrets)

    async def merge(
        self,
        kind: WorkKind,
        work_id: str,
        caller: Caller,
        body: MergeSpec | None = None,
        timeout_s: WaitSeconds = 25,
    ) -> MergeView:
        """Merge the branch of a task or run into its base or another branch.

        If the merge takes longer than timeout_s, the status is under_way: call again to wait.
        """
        work = await self._get(kind, work_id)
        spec = body or MergeSpec()
        if caller.task_id is not None:
            spec = await self._restrict_merge(caller.task_id, work, spec)
        is_by_person = caller.task_id is None
        return await self._merges.merge(work, spec, timeout_s, by_person=is_by_person)

    async def _restrict_merge(self, task_id: str, work: Task | Run, spec: MergeSpec) -> MergeSpec:
        """Return the merge that the attempt of a task may make; raises Forbidden for any other."""
        task = await self._db.read(tasks.load_row, task_id)
        own_branch = task["workspace_branch"]
        if task["read_only"]:
            raise Forbidden("A read-only task cannot merge.")
        is_elsewhere = spec.into not in {None, own_branch}
        if spec.force or is_elsewhere or work.parent_task_id != task_id:
            raise Forbidden(
                "An attempt may merge only verified work that it started, into its own branch."
            )
        return spec.model_copy(update={"into": own_branch})

    async def undo_merge(
        self, kind: WorkKind, work_id: str, body: UndoSpec | None = None
    ) -> UndoView:
        """Undo the last merge of a task or run; its branch can be merged again.

        The base moves back to the commit before the merge, or a new commit reverts the merge.
        """
        work = await self._get(kind, work_id)
        return await self._merges.undo(work, (body or UndoSpec()).message)

    async def give_up_merge(self, kind: WorkKind, work_id: str) -> None:
        """Cancel a merge that is under way."""
        work = await self._get(kind, work_id)
        await self._merges.give_up(work.id)

    async def preview_merge(self, kind: WorkKind, work_id: str, into: Into = None) -> MergePreview:
        """Preview the merge of a task or run; nothing is merged."""
        work = await self._get(kind, work_id)
        require_ended(work, "merge", force=True)
        await recall_worktree(self._parts, work)
        undone = await self._db.read(undone_merge, work.id)
        target = into or work.workspace.base
        preview = await self._parts.workspaces.preview_merge(work.id, target, undone)
        checks = await self._db.read(last_checks, work)
        doubts = [f"{check.name}: {check.proof}" for check in checks if check.proved is False]
        preview = preview.model_copy(update={"doubts": doubts})
        try:
            require_ended(work, "merge", force=False)
        except Conflict as error:
            return preview.model_copy(update={"problem": error.message})
        return preview

    async def open_pull_request(
        self,
        kind: WorkKind,
        work_id: str,
        body: PullRequestSpec | None = None,
        timeout_s: WaitSeconds = 25,
    ) -> PullRequestView:
        """Push the branch of a task or run and open a pull request, or update the open one.

        While the delivery is pending after timeout_s, call again to wait.
        """
        work = await self._get(kind, work_id)
        spec = body or PullRequestSpec()
        require_ended(work, "pr", force=spec.draft is True)
        ask = partial(deliveries.request, draft=spec.draft, force=spec.force, by_person=True)
        await self._db.write(ask, work.id, "pr")
        await wait_until(self._db, [work.id], timeout_s, partial(_is_delivered, work_id=work.id))
        work = await self._get(kind, work.id)
        assert work.delivery is not None
        return PullRequestView(id=work.id, delivery=work.delivery)

    async def pull_request(self, kind: WorkKind, work_id: str) -> PullRequestView:
        """Get the pull request of a task or run with its comments, fresh from the forge."""
        work = await self._get(kind, work_id)
        if work.delivery is None or work.delivery.number is None:
            raise Conflict(
                f"{work.id} has no pull request.", hint=f"Type `kapelle pr {work.id}` to open one."
            )
        forge = (await open_forge(self._parts, work))[1]
        await refresh(self._parts, forge, work.id)
        delivery = (await self._get(kind, work.id)).delivery or work.delivery
        comments = await forge.comments(delivery.number or work.delivery.number)
        return PullRequestView(id=work.id, delivery=delivery, comments=comments)

    async def _get(self, kind: WorkKind, work_id: str) -> Task | Run:
        if kind == "task":
            return await self._db.read(tasks.get, work_id)
        return await self._db.read(runs.get, work_id)

    async def _compare(self, old: Task, new: Task) -> Diff:
        """Return the difference between the commits of two tasks."""
        commits = []
        for task in (old, new):
            if task.workspace.commit is None:
                raise Conflict(f"{task.id} has no commit to compare with.")
            commits.append(task.workspace.commit)
        await recall_worktree(self._parts, old)
        owner = old.workspace.owner or old.id
        return await self._parts.workspaces.compare(owner, *commits)


def _redact_text(text: str, secrets: tuple[bytes, ...]) -> str:
    return redact(text.encode("utf-8", "surrogateescape"), secrets).decode("utf-8", "replace")


def _is_delivered(connection: Connection, work_id: str) -> bool:
    row = deliveries.find(connection, work_id)
    return row is not None and (row["status"] != "pending" or row["tries"] > 0)
