"""Merge the work of tasks and runs in turn, verified on the result in a separate worktree.

Also runs the checks of ended work once more on its commit.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from kapelle.domain.errors import ChecksFailed, Conflict, KapelleError, NotFound
from kapelle.domain.ids import is_id, new_id, read_kind
from kapelle.domain.run import Run
from kapelle.domain.specs import CheckKind, CheckSpec, MergeSpec, Shell, WorkspaceKind
from kapelle.domain.states import RUN_FINAL
from kapelle.domain.task import CheckResult, Task, Workspace
from kapelle.domain.text import cut
from kapelle.domain.work_views import MergeView, UndoView
from kapelle.engine.archive import Setbacks, forget_processes, put_away_merged
from kapelle.engine.parts import Parts
from kapelle.engine.processes.environment import Origin, list_copies_and_links
from kapelle.engine.processes.launch import ProcessLocation
from kapelle.engine.runs.patterns import find_pattern
from kapelle.engine.tasks.actions import record_change
from kapelle.engine.tasks.attempt import recall_worktree, task_diff
from kapelle.runner.redaction import redact
from kapelle.runner.shim.failpoints import failpoint
from kapelle.settings.trust import drop, read_records
from kapelle.store import attempts, deliveries, events, processes, runs, tasks
from kapelle.store.database import Connection
from kapelle.store.events import CHECKED
from kapelle.store.rows import rows_of_work, update_work
from kapelle.workspaces import (
    Diff,
    Merge,
    MergeCandidate,
    PastMerge,
    checkouts_around,
    format_git_command,
    working_directory,
)

_log = logging.getLogger("kapelle.merge")
_SHOWN = 4_000
_SHOWN_LINES = 15


@dataclass
class _ActiveMerge:
    """A merge in progress."""

    spec: MergeSpec
    by_person: bool
    phase: str = "waiting for its turn"
    task: asyncio.Task[MergeView] = field(init=False)


class MergeQueue:
    """The merges of a daemon; merges into the same branch run one after another, in order."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._active: dict[str, _ActiveMerge] = {}
        self._turns = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    async def merge(
        self, work: Task | Run, spec: MergeSpec, wait_s: float | None = None, *, by_person: bool
    ) -> MergeView:
        """Merge the branch of completed work, or with force of work in any state.

        After wait_s the merge continues in the background, and the same request waits for it again.
        Raises Conflict while the work is merged with another specification.
        """
        active = self._active.get(work.id)
        if active is None:
            active = self._active[work.id] = _ActiveMerge(spec, by_person)
            active.task = asyncio.create_task(self._merge(work, spec, active))
            active.task.add_done_callback(lambda task: self._ended(work.id, task))
        elif active.spec != spec:
            raise Conflict(f"{work.id} is being merged with other options: {active.phase}.")
        await asyncio.wait({active.task}, timeout=wait_s)
        if not active.task.done():
            base = spec.into or work.workspace.base
            return MergeView(id=work.id, status="under_way", base=base, phase=active.phase)
        if active.task.cancelled():
            raise Conflict(f"The merge of {work.id} was cancelled.")
        return active.task.result()

    def _ended(self, id_: str, task: asyncio.Task[MergeView]) -> None:
        del self._active[id_]
        _ = task.cancelled() or task.exception()  # which it may be that nobody asks for

    async def give_up(self, id_: str) -> None:
        """Cancel a merge in progress; anything already merged stays."""
        if (active := self._active.get(id_)) is not None:
            active.task.cancel()
            await asyncio.wait({active.task})

    async def _merge(self, work: Task | Run, spec: MergeSpec, active: _ActiveMerge) -> MergeView:
        """Merge in turn. The result counts as merged only if git confirms it."""
        repository = await self._parts.workspaces.locate(Path(work.directory))
        target = spec.into or work.workspace.base
        place = (str(repository and repository.common_dir), str(target))
        async with self._turns.setdefault(place, asyncio.Lock()):
            # A merge before this one may have changed the work.
            work = await self._parts.db.read(get_work, work.id)
            return await self._merge_now(work, spec, target, active)

    async def _merge_now(
        self, work: Task | Run, spec: MergeSpec, target: str | None, active: _ActiveMerge
    ) -> MergeView:
        parts = self._parts
        noun = type(work).__name__
        commit = await find_deliverable_commit(
            parts, work, "merge", force=spec.force, secrets=spec.force
        )
        undone = await parts.db.read(undone_merge, work.id)
        if spec.style == "squash":
            title = work.title
        else:
            title = f"Merge {work.title}"
        checks = MergeVerification(parts, work, partial(setattr, active, "phase"))
        if spec.verify and not spec.force:
            verify = checks.verify
        else:
            verify = None
        merge = await parts.workspaces.merge(
            work.id,
            target,
            f"{spec.message or title}\n\n{noun}: {work.id}",
            expected_tip=commit,
            style=spec.style,
            by_person=active.by_person,
            verify=verify,
            sign=active.by_person and parts.settings().git.sign == "auto",
            undone=undone,
        )
        # Also if git has it already without a record: a crash came between the two.
        if not merge.already or work.merged_at is None:
            await parts.db.write(_record_merge, work, merge)
        has_dropped_trust = active.by_person and await self._drop_trust(work)
        is_squashed = spec.style != "merge"
        await put_away_merged(parts, Setbacks(), work.id, merge.base, is_squashed=is_squashed)
        checkout = merge.checkout_updated
        habits = await parts.workspaces.habits(Path(work.directory))
        return MergeView(
            id=work.id,
            status="merged",
            base=merge.base,
            commit=merge.commit,
            already=merge.already,
            checkout_updated=str(checkout) if checkout else None,
            checks=checks.results,
            trust_dropped=has_dropped_trust,
            signed=merge.is_signed,
            hooks_not_run=list(habits.hooks) if habits else [],
            identity_missing=bool(habits and active.by_person and not habits.has_identity),
            signature_missing=bool(habits and habits.repository_signs and not merge.already),
        )

    async def undo(self, work: Task | Run, message: str | None) -> UndoView:
        """Undo the last merge of a task or run; it can be merged again afterwards."""
        repository = await self._parts.workspaces.locate(Path(work.directory))
        past = await self._parts.db.read(last_merge, work.id)
        place = (str(repository and repository.common_dir), past.into)
        async with self._turns.setdefault(place, asyncio.Lock()):
            past = await self._parts.db.read(last_merge, work.id)
            return await self._undo_now(work, past, message)

    async def _undo_now(self, work: Task | Run, past: PastMerge, message: str | None) -> UndoView:
        parts = self._parts
        noun = type(work).__name__
        await recall_worktree(parts, work)
        text = message or f'Revert "Merge {work.title}"\n\nThis reverts commit {past.commit}.'
        undone = await parts.workspaces.undo_merge(
            work.id,
            past,
            work.workspace.commit,
            f"{text}\n\n{noun}: {work.id}",
            sign=parts.settings().git.sign == "auto",
        )
        failpoint("undo_before_end")
        await parts.db.write(_record_undo, work, past, undone.how, undone.commit)
        checkout = undone.checkout_updated
        return UndoView(
            id=work.id,
            base=past.into,
            commit=undone.commit,
            how=undone.how,
            checkout_updated=str(checkout) if checkout else None,
        )

    async def _drop_trust(self, work: Task | Run) -> bool:
        """Remove the trust in each .kapelle that the merge changes; return whether any was removed.

        An agent made the change, and no person has approved it.
        """
        home = self._parts.home
        try:
            places = await self._executable_places(work)
            return any([drop(home, place, forget=False) for place in places])
        except (KapelleError, OSError):  # too late to refuse the merge
            _log.exception("the trust in %s could not be dropped", work.directory)
            return False

    async def _executable_places(self, work: Task | Run) -> set[Path]:
        """Return the places whose .kapelle the work changed; if unknown, all trusted ones."""
        tops = checkouts_around(Path(work.directory))
        try:
            files = (await diff_work(self._parts, work)).files
        except (KapelleError, OSError):
            _log.exception("cannot tell whether %s changed a trusted .kapelle", work.id)
            trusted_places = map(Path, read_records(self._parts.home))
            return {place for place in trusted_places if any(map(place.is_relative_to, tops))}
        places = set[Path]()
        for file in files:
            names = file.split("/")
            for depth, name in enumerate(names):
                if name.casefold() == ".kapelle":
                    places |= {top.joinpath(*names[:depth]) for top in tops}
        return places


def _record_merge(connection: Connection, work: Task | Run, merge: Merge) -> None:
    """Store the data of a merge that is needed to undo it."""
    values: dict[str, Any] = {"merge_undone_at": None}
    if merge.parent is not None:
        values |= {"merged_into": merge.base, "merge_commit": merge.commit}
        values |= {"merge_parent": merge.parent, "merged_tip": work.workspace.commit}
    update_work(connection, work.id, **values)
    record_change(connection, work, "merged", base=merge.base, commit=merge.commit)


def _record_undo(
    connection: Connection, work: Task | Run, past: PastMerge, how: str, commit: str
) -> None:
    """Store an undone merge in the row, the delivery and the history."""
    update_work(connection, work.id, merged_at=None)
    row = deliveries.find(connection, work.id)
    if row is not None and row["mode"] in {"merge", "push"}:
        deliveries.update(connection, work.id, status="undone", updated_at=datetime.now(UTC))
    record_change(connection, work, "merge_undone", base=past.into, commit=commit, how=how)


def _past_merge(connection: Connection, work_id: str) -> tuple[PastMerge | None, bool]:
    """Return the last known merge of a task or run, and whether it was undone."""
    row = rows_of_work(work_id).load(connection, work_id)
    if row["merge_commit"] is None:
        return None, False
    past = PastMerge(row["merged_into"], row["merge_parent"], row["merge_commit"])
    return past, row["merge_undone_at"] is not None


def undone_merge(connection: Connection, work_id: str) -> PastMerge | None:
    """Return the last merge of a task or run if it was undone."""
    past, is_undone = _past_merge(connection, work_id)
    return past if is_undone else None


def last_merge(connection: Connection, work_id: str) -> PastMerge:
    """Return the last merge of a task or run; raises Conflict where none can be undone."""
    past, is_undone = _past_merge(connection, work_id)
    if is_undone:
        raise Conflict(
            f"The merge of {work_id} was undone already.", hint=f"kapelle merge {work_id}"
        )
    if past is None and get_work(connection, work_id).merged_at is None:
        raise Conflict(
            f"{work_id} is not merged, so there is no merge to undo.",
            hint="`kapelle list` shows what is merged.",
        )
    if past is None:
        raise Conflict(
            f"No record of the merge of {work_id} exists, so it cannot be undone.",
            hint="Undo a merge of a run or of an earlier version with `git revert -m 1 COMMIT`.",
        )
    return past


def get_work(connection: Connection, id_: str) -> Task | Run:
    """Return a task or a run by its id."""
    if is_id("task", id_):
        return tasks.get(connection, id_)
    return runs.get(connection, id_)


async def secrets_of(parts: Parts, work: Task | Run) -> tuple[bytes, ...]:
    """Return all spellings of the secrets that a task or run could see."""
    row = await parts.db.read(rows_of_work(work.id).load, work.id)
    attempt_ids = []
    if isinstance(work, Task):
        attempt_ids = [attempt.id for attempt in work.attempts]
    return parts.secrets_of(row, attempt_ids)


async def diff_work(parts: Parts, work: Task | Run) -> Diff:
    """Return the changes of a task or run since it began, including uncommitted ones.

    For work that was resumed after its merge, return the changes since the merge. Raises Conflict
    for work in place.
    """
    if work.workspace.kind is not WorkspaceKind.WORKTREE:
        git = format_git_command(Path(work.directory))
        raise Conflict(
            f"{work.id} works in place, so its changes cannot be told apart from others.",
            hint=f"In a git repository `{git} diff` shows what is there.",
        )
    if work.workspace.branch is None:
        return Diff(b"", "", [])
    # The worktree may be archived; its content is kept under a ref.
    await recall_worktree(parts, work)
    row = await parts.db.read(rows_of_work(work.id).load, work.id)
    is_open = row["merged_at"] is None and row["merge_undone_at"] is None
    if is_open and row["merged_tip"] is not None and work.workspace.owner is None:
        return await parts.workspaces.diff(work.id, since=row["merged_tip"])
    if isinstance(work, Task):
        return await task_diff(parts, work.id, work.workspace)
    return await parts.workspaces.diff(work.workspace.owner or work.id)


async def diff_attempt(parts: Parts, task: Task, number: int) -> Diff:
    """Return the changes of one attempt, compared with the commits of earlier attempts."""
    if task.workspace.kind is not WorkspaceKind.WORKTREE:
        return await diff_work(parts, task)
    rows = await parts.db.read(attempts.load_commits, task.id)
    if number not in rows:
        raise NotFound(f"{task.id} has no attempt {number}.", hint=f"kapelle status {task.id}")
    commit = rows[number]
    if commit is None:
        raise Conflict(f"Attempt {number} of {task.id} committed nothing.")
    commits = [
        rows[earlier] for earlier in sorted(rows) if earlier < number and rows[earlier] is not None
    ]
    if commits:
        start = commits[-1]
    else:
        start = task.workspace.base_commit
    if start is None:
        return Diff(b"", "", [])
    await recall_worktree(parts, task)
    return await parts.workspaces.compare(task.workspace.owner or task.id, start, commit)


def require_ended(work: Task | Run, verb: str, *, force: bool) -> None:
    """Raise Conflict unless the work has a branch of its own and has ended.

    Without force, the work must also be completed.
    """
    if work.workspace.owner is not None:
        raise Conflict(
            f"{work.id} works in the worktree of {work.workspace.owner}.",
            hint=f"kapelle {verb} {work.workspace.owner}",
        )
    what = "open" if verb == "pr" else verb
    if work.workspace.kind is not WorkspaceKind.WORKTREE or work.workspace.branch is None:
        raise Conflict(f"{work.id} has no branch of its own, so there is nothing to {what}.")
    # Work that was resumed after its merge has more than what was merged.
    in_base = work.merged_at and work.ended_at and work.merged_at >= work.ended_at
    if verb == "pr" and in_base:
        base = work.workspace.base
        raise Conflict(f"{work.id} is merged into {base}, so there is nothing to open.")
    if isinstance(work, Task) and work.attempts and not work.attempts[-1].ended_at:
        raise Conflict(f"{work.id} is still running.", hint=f"kapelle wait {work.id}")
    if isinstance(work, Run) and work.status not in RUN_FINAL:
        raise Conflict(f"{work.id} has not ended.", hint=f"kapelle wait {work.id}")
    if not force and work.status != "completed":
        hint = "--force merges it anyway."
        if verb == "pr":
            hint = f"kapelle pr {work.id} --draft"
        raise Conflict(f"{work.id} is {work.status}: only verified work is merged.", hint=hint)


async def find_deliverable_commit(
    parts: Parts, work: Task | Run, verb: str, *, force: bool, secrets: bool = False
) -> str:
    """Return the commit to merge or push; with force, commit and return the present state.

    Raises Conflict if there is nothing to deliver, or if the commit holds a secret, unless secrets
    are allowed.
    """
    require_ended(work, verb, force=force)
    await recall_worktree(parts, work)
    commit = work.workspace.commit
    if force:
        # The result of a failed attempt was never committed; force asks for exactly that.
        message = f"{work.title}\n\n{type(work).__name__}: {work.id}, {work.status}"
        commit = await parts.workspaces.commit(work.id, message)
    if commit is None or commit == work.workspace.base_commit:
        what = "open" if verb == "pr" else verb
        raise Conflict(f"{work.id} changed nothing, so there is nothing to {what}.")
    if not secrets:
        await require_no_secret(parts, work, verb, commit)
    return commit


async def require_no_secret(parts: Parts, work: Task | Run, verb: str, commit: str) -> None:
    """Raise Conflict if a file or a pushed commit holds a secret that Kapelle knows."""
    secrets = await secrets_of(parts, work)
    messages = b""
    if verb == "merge":
        participle = "merged"
        command = "--force merges it anyway."
        diff = await parts.workspaces.diff(work.id, as_text=True)
    else:
        participle = "pushed"
        command = "--force pushes it anyway."
        messages, diff = await parts.workspaces.search_history(work.id, commit)
    places = await asyncio.to_thread(_files_with_secrets, diff.patch, secrets)
    if await asyncio.to_thread(redact, messages, secrets) != messages:
        places.append("the message or a name of a commit")
    if places:
        raise Conflict(
            f"{work.id} puts a secret that Kapelle knows into {places[0]}, so it is not "
            f"{participle}.",
            hint=f"`kapelle diff {work.id}` shows where; {command}",
        )
    if diff.is_truncated:
        raise Conflict(
            f"{work.id} changes too much to be searched for secrets, so it is not {participle}.",
            hint=command,
        )


def _files_with_secrets(patch: bytes, secrets: tuple[bytes, ...]) -> list[str]:
    """Return the files of a patch whose new lines or new names hold one of these secrets."""
    names = []
    for part in re.split(rb"^diff --git ", patch, flags=re.MULTILINE)[1:]:
        head, _, content = part.partition(b"\n@@ ")
        lines = (line[1:] for line in content.split(b"\n") if line.startswith(b"+"))
        new_text = b"\n".join(lines)
        name = head.split(b"\n")[0].rpartition(b" b/")[2]
        redacted_name = redact(name, secrets)
        is_new_name = redacted_name != name and re.search(
            rb"^(new file|rename to|copy to) ", head, re.M
        )
        if is_new_name or redact(new_text, secrets) != new_text:
            names.append(redacted_name.decode("utf-8", "replace"))
    return names


@dataclass
class MergeVerification:
    """Runs the checks of ended work on the result of its merge, and keeps their results."""

    parts: Parts
    work: Task | Run
    report_phase: Callable[[str], object]
    # Results of the checks; a set-up is included only if it failed.
    results: list[CheckResult] = field(default_factory=list)
    _shell: Shell | None = None

    async def verify(self, candidate: MergeCandidate) -> None:
        """Raise ChecksFailed, with the evidence, if one of the checks fails on the result."""
        where = f"on what {candidate.base} would be ({candidate.new[:12]})"
        await self._run_all(candidate.new, where, all_of_them=False)
        for result in self.results:
            if not result.passed:
                raise await self._refusal(candidate, result)

    async def check_again(self, commit: str) -> None:
        """Run all checks on the commit of the work, and record the results in the history."""
        await self._run_all(commit, f"on {commit[:12]}")
        if not self.results:
            raise Conflict(f"{self.work.id} has no command checks.")
        has_passed = all(result.passed for result in self.results)
        summaries = [cut(result.model_dump(mode="json"), _SHOWN) for result in self.results]

        def record(connection: Connection) -> None:
            # Work that was resumed meanwhile has another commit to check.
            if tasks.load_row(connection, self.work.id)["ended_at"] == self.work.ended_at:
                events.append(
                    connection,
                    CHECKED,
                    self.work.id,
                    commit=commit,
                    passed=has_passed,
                    checks=summaries,
                )

        await self.parts.db.write(record)

    async def _run_all(self, commit: str, where: str, *, all_of_them: bool = True) -> None:
        """Run the checks in a worktree of a commit; unless all_of_them, stop at a failure."""
        self.results.clear()
        if not (checks := await self.commands()):
            return
        parts = self.parts
        directory = self.work.directory
        owner = new_id("merge")
        settings = parts.work_settings(directory)
        workspace = settings.workspace
        setup = None
        if workspace.setup:
            setup = CheckSpec(
                command=workspace.setup,
                name="setup",
                timeout_s=workspace.setup_timeout_s,
                directory=settings.directory_of("workspace.setup", directory),
            )
            checks = [setup, *checks]
        with parts.register_performer(owner):
            try:
                rung = parts.confiner.choose_rung(settings.confine)
                paths = list_copies_and_links(settings, directory, rung)
                place = await parts.workspaces.create_aside(
                    owner, self.work.workspace.owner or self.work.id, commit, *paths
                )
                for number, check in enumerate(checks):
                    self.report_phase(f"{number + 1} of {len(checks)}: {check.label} {where}")
                    failpoint("merge_before_check")
                    result = await self._run_check(owner, f"{number}", check, place)
                    is_setup = check is setup
                    if not is_setup or not result.passed:
                        self.results.append(result)
                    if not result.passed and (is_setup or not all_of_them):
                        break
            finally:
                try:
                    await clear_aside(parts, owner)
                except (KapelleError, OSError) as error:
                    _log.warning("the remains of %s will be removed later: %s", owner, error)

    async def commands(self) -> list[CheckSpec]:
        """Return the checks of the work that are commands."""
        parts = self.parts
        work = self.work
        if isinstance(work, Task):
            row = await parts.db.read(tasks.load_row, work.id)
            specs = [CheckSpec.model_validate(spec) for spec in row["check_specs"]]
        else:
            row = await parts.db.read(runs.load_row, work.id)
            pattern = await find_pattern(parts, row["pattern"], Path(work.directory))
            specs = pattern.spec.model_validate(row["spec"]).final_checks
        self._shell = parts.secrets.shell(row["shell"])
        return [spec for spec in specs if spec.kind is CheckKind.COMMAND]

    async def _run_check(
        self, owner: str, name: str, check: CheckSpec, aside: Workspace
    ) -> CheckResult:
        parts = self.parts
        work = self.work
        process = parts.process(await parts.db.write(processes.begin, owner, name))
        directory = Path(work.directory)
        settings = parts.work_settings(work.directory)
        origin = Origin.of(self._shell, directory, Path(aside.path), settings.workspace)
        env = {**parts.secrets.env(work.id), f"KAPELLE_{read_kind(work.id).upper()}_ID": work.id}
        place = ProcessLocation(
            parts, settings, owner, working_directory(aside, directory), env, origin
        )
        place = place.at(work.directory, check.directory)
        label = f"{check.label} of the merge of {work.id}"
        launch = await place.command(process, check.command or "", check.timeout_s, label)
        end = await parts.execute(owner, check.label, launch, lambda _: None)
        result = await place.judge_check(check, process, end)
        return result.model_copy(update={"commit": aside.commit})

    async def _refusal(self, candidate: MergeCandidate, result: CheckResult) -> ChecksFailed:
        """Record a refused merge, and return the error with the evidence."""
        work = self.work
        noun = read_kind(self.work.id)
        excerpt = "\n".join(result.output[-_SHOWN:].strip().splitlines()[-_SHOWN_LINES:])
        facts = {"name": result.name, "exit_code": result.exit_code, "output": excerpt}
        where = {"base": candidate.base, "commit": candidate.new}
        kind = f"{noun}.merge_refused"
        await self.parts.db.write(events.append, kind, work.id, **where, **facts)
        again = ""
        if noun == "task":
            again = f"`kapelle resume {work.id} --merge` has its agent fix that; "
        return ChecksFailed(
            f"{work.id} was not merged: `{result.name}` fails on what {candidate.base} would be, "
            f"commit {candidate.new}. {candidate.base} was not changed.\n{excerpt}",
            hint=f"{again}`kapelle merge {work.id} --no-verify` merges it anyway.",
        )


async def check_again(parts: Parts, task: Task) -> None:
    """Run the checks of an ended task once more, on its commit."""
    commit = task.workspace.commit or task.workspace.base_commit
    if commit is None or task.workspace.kind is not WorkspaceKind.WORKTREE:
        raise Conflict(f"{task.id} committed nothing that its checks could run on.")
    await recall_worktree(parts, task)
    await MergeVerification(parts, task, lambda _: None).check_again(commit)


async def clear_aside(parts: Parts, owner: str) -> None:
    """End and forget the processes in a temporary worktree, and remove the worktree."""
    for process in (await parts.processes(owner)).values():
        await parts.end_process(process, "this merge has ended")
    await forget_processes(parts, owner)
    await parts.workspaces.discard(owner)
