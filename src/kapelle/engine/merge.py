"""Merging what a task or run did: in turn, and checked on the result in a worktree aside; and its
checks once more on what it committed."""

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
from kapelle.domain.ids import is_id, kind_of, new_id
from kapelle.domain.run import Run
from kapelle.domain.specs import CheckKind, CheckSpec, MergeSpec, Shell, WorkspaceKind
from kapelle.domain.states import RUN_FINAL
from kapelle.domain.task import CheckResult, Task, Workspace
from kapelle.domain.text import cut
from kapelle.domain.views import MergeView, UndoView
from kapelle.engine.archive import Setbacks, forget_processes, put_away_merged
from kapelle.engine.environment import Origin, brought_along
from kapelle.engine.launch import ProcessLocation
from kapelle.engine.parts import Parts
from kapelle.engine.runs.patterns import find_pattern
from kapelle.engine.tasks.actions import record_change
from kapelle.engine.tasks.attempt import recall, task_diff
from kapelle.runner.redaction import redact
from kapelle.runner.shim.failpoints import failpoint
from kapelle.settings.trust import drop, read_records
from kapelle.store import attempts, deliveries, events, processes, runs, tasks
from kapelle.store.database import Connection
from kapelle.store.events import CHECKED
from kapelle.store.query import update_work, work_rows
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
    """A merge that is under way."""

    wanted: MergeSpec
    by_person: bool
    phase: str = "it waits for its turn"
    task: asyncio.Task[MergeView] = field(init=False)


class MergeQueue:
    """The merges of a daemon; those into the same branch of a repository come one after another,
    as they were asked."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._going: dict[str, _ActiveMerge] = {}
        self._turns = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    async def merge(
        self, work: Task | Run, wanted: MergeSpec, wait_s: float | None = None, *, by_person: bool
    ) -> MergeView:
        """Merge the branch of what has completed, or with force of what is there; after wait_s
        it goes on by itself, and whoever asks for the same again waits for it again."""
        going = self._going.get(work.id)
        if going is None:
            going = self._going[work.id] = _ActiveMerge(wanted, by_person)
            going.task = asyncio.create_task(self._merge(work, wanted, going))
            going.task.add_done_callback(lambda task: self._ended(work.id, task))
        elif going.wanted != wanted:
            raise Conflict(f"{work.id} is being merged otherwise: {going.phase}.")
        await asyncio.wait({going.task}, timeout=wait_s)
        if not going.task.done():
            base = wanted.into or work.workspace.base
            return MergeView(id=work.id, status="under_way", base=base, phase=going.phase)
        if going.task.cancelled():
            raise Conflict(f"The merge of {work.id} was given up.")
        return going.task.result()

    def _ended(self, id_: str, task: asyncio.Task[MergeView]) -> None:
        del self._going[id_]
        _ = task.cancelled() or task.exception()  # which it may be that nobody asks for

    async def give_up(self, id_: str) -> None:
        """End a merge that is under way; what it has moved already stays."""
        if (going := self._going.get(id_)) is not None:
            going.task.cancel()
            await asyncio.wait({going.task})

    async def _merge(self, work: Task | Run, wanted: MergeSpec, going: _ActiveMerge) -> MergeView:
        """Merge when it is its turn; nothing is called merged unless git says so."""
        repository = await self._parts.workspaces.locate(Path(work.directory))
        target = wanted.into or work.workspace.base
        place = (str(repository and repository.common_dir), str(target))
        async with self._turns.setdefault(place, asyncio.Lock()):
            # What was asked for before may have changed it.
            work = await self._parts.db.read(get_work, work.id)
            return await self._merge_now(work, wanted, target, going)

    async def _merge_now(
        self, work: Task | Run, wanted: MergeSpec, target: str | None, going: _ActiveMerge
    ) -> MergeView:
        parts = self._parts
        noun = type(work).__name__
        commit = await deliverable(parts, work, "merge", force=wanted.force, secrets=wanted.force)
        undone = await parts.db.read(undone_merge, work.id)
        if wanted.style == "squash":
            title = work.title
        else:
            title = f"Merge {work.title}"
        checks = MergeVerification(parts, work, partial(setattr, going, "phase"))
        if wanted.verify and not wanted.force:
            verify = checks.verify
        else:
            verify = None
        merged = await parts.workspaces.merge(
            work.id, target, f"{wanted.message or title}\n\n{noun}: {work.id}", expected_tip=commit,
            style=wanted.style, by_person=going.by_person, verify=verify,
            sign=going.by_person and parts.settings().git.sign == "auto", undone=undone,
        )  # fmt: skip
        if not merged.already or work.merged_at is None:
            await parts.db.write(_record_merge, work, merged)
        dropped = going.by_person and await self._drop_trust(work)
        squashed = wanted.style != "merge"
        await put_away_merged(parts, Setbacks(), work.id, merged.base, squashed=squashed)
        updated = merged.checkout_updated
        habits = await parts.workspaces.habits(Path(work.directory))
        return MergeView(
            id=work.id,
            status="merged",
            base=merged.base,
            commit=merged.commit,
            already=merged.already,
            checkout_updated=str(updated) if updated else None,
            checks=checks.made,
            trust_dropped=dropped,
            signed=merged.is_signed,
            hooks_not_run=list(habits.hooks) if habits else [],
            identity_missing=bool(habits and going.by_person and not habits.has_identity),
            signature_missing=bool(habits and habits.repository_signs and not merged.already),
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
        await recall(parts, work)
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
        updated = undone.checkout_updated
        return UndoView(
            id=work.id,
            base=past.into,
            commit=undone.commit,
            how=undone.how,
            checkout_updated=str(updated) if updated else None,
        )

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
            files = (await changes(self._parts, work)).files
        except (KapelleError, OSError):
            _log.exception("it is not known whether %s changed what is trusted", work.id)
            known = map(Path, read_records(self._parts.home))
            return {place for place in known if any(place.is_relative_to(top) for top in tops)}
        return {
            top.joinpath(*parts[:depth])
            for parts in [file.split("/") for file in files]
            for depth, part in enumerate(parts)
            if part.casefold() == ".kapelle"
            for top in tops
        }


def _record_merge(connection: Connection, work: Task | Run, merged: Merge) -> None:
    """Store what a merge moved, by which it can be undone."""
    values: dict[str, Any] = {"merge_undone_at": None}
    if merged.parent is not None:
        values |= {"merged_into": merged.base, "merge_commit": merged.commit}
        values |= {"merge_parent": merged.parent, "merged_tip": work.workspace.commit}
    update_work(connection, work.id, **values)
    record_change(connection, work, "merged", base=merged.base, commit=merged.commit)


def _record_undo(
    connection: Connection, work: Task | Run, past: PastMerge, how: str, commit: str
) -> None:
    """Store that a merge was undone, in the row, the delivery and the history."""
    update_work(connection, work.id, merged_at=None)
    row = deliveries.find(connection, work.id)
    if row is not None and row["mode"] in {"merge", "push"}:
        deliveries.update(connection, work.id, status="undone", updated_at=datetime.now(UTC))
    record_change(connection, work, "merge_undone", base=past.into, commit=commit, how=how)


def _past_merge(connection: Connection, work_id: str) -> tuple[PastMerge | None, bool]:
    """The last merge of a task or run, if it is known, and whether it was undone."""
    row = work_rows(work_id).row(connection, work_id)
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
            f"No merge of {work_id} is known that could be undone.",
            hint="What a run or an earlier version merged is undone by `git revert -m 1 COMMIT`.",
        )
    return past


def get_work(connection: Connection, id_: str) -> Task | Run:
    """A task or a run, by what its id says that it is."""
    return (tasks.get if is_id("task", id_) else runs.get)(connection, id_)


async def secrets_of(parts: Parts, work: Task | Run) -> tuple[bytes, ...]:
    """The spellings of the secrets that a task or run could see."""
    row = await parts.db.read(work_rows(work.id).row, work.id)
    if isinstance(work, Task):
        tried = work.attempts
    else:
        tried = []
    return parts.secrets_of(row, [attempt.id for attempt in tried])


async def changes(parts: Parts, work: Task | Run) -> Diff:
    """What a task or run changed since it began, uncommitted work included; of one that went on
    after its merge, what is new since then."""
    if work.workspace.kind is not WorkspaceKind.WORKTREE:
        git = format_git_command(Path(work.directory))
        raise Conflict(
            f"{work.id} works in place, so its changes cannot be told from others'.",
            hint=f"In a git repository `{git} diff` shows what is there.",
        )
    if work.workspace.branch is None:
        return Diff(b"", "", [])
    await recall(parts, work)
    row = await parts.db.read(work_rows(work.id).row, work.id)
    goes_on = row["merged_at"] is None and row["merge_undone_at"] is None
    if goes_on and row["merged_tip"] is not None and work.workspace.owner is None:
        return await parts.workspaces.diff(work.id, since=row["merged_tip"])
    if isinstance(work, Task):
        return await task_diff(parts, work.id, work.workspace)
    return await parts.workspaces.diff(work.workspace.owner or work.id)


async def attempt_changes(parts: Parts, task: Task, number: int) -> Diff:
    """What one attempt of a task changed: from what the attempts before it committed."""
    if task.workspace.kind is not WorkspaceKind.WORKTREE:
        return await changes(parts, task)
    rows = await parts.db.read(attempts.commits_of, task.id)
    if number not in rows:
        raise NotFound(f"{task.id} has no attempt {number}.", hint=f"kapelle status {task.id}")
    commit = rows[number]
    if commit is None:
        raise Conflict(f"Attempt {number} of {task.id} committed nothing.")
    before = [rows[one] for one in sorted(rows) if one < number and rows[one] is not None]
    if before:
        start = before[-1]
    else:
        start = task.workspace.base_commit
    if start is None:
        return Diff(b"", "", [])
    await recall(parts, task)
    return await parts.workspaces.compare(task.workspace.owner or task.id, start, commit)


def require_ended(work: Task | Run, verb: str, *, force: bool) -> None:
    """Raise Conflict unless it has a branch of its own, has ended, and, without force, is good."""
    if work.workspace.owner is not None:
        raise Conflict(
            f"{work.id} works in the worktree of {work.workspace.owner}.",
            hint=f"kapelle {verb} {work.workspace.owner}",
        )
    what = "open" if verb == "pr" else verb
    if work.workspace.kind is not WorkspaceKind.WORKTREE or work.workspace.branch is None:
        raise Conflict(f"{work.id} has no branch of its own, so there is nothing to {what}.")
    # What was merged and then gone on with is more than what was merged.
    in_base = work.merged_at and work.ended_at and work.merged_at >= work.ended_at
    if verb == "pr" and in_base:
        base = work.workspace.base
        raise Conflict(f"{work.id}: it is merged into {base}; there is nothing to open.")
    if isinstance(work, Task) and work.attempts and not work.attempts[-1].ended_at:
        raise Conflict(f"{work.id} is still running.", hint=f"kapelle wait {work.id}")
    if isinstance(work, Run) and work.status not in RUN_FINAL:
        raise Conflict(f"{work.id} has not ended.", hint=f"kapelle wait {work.id}")
    if not force and work.status != "completed":
        raise Conflict(
            f"{work.id} is {work.status}: only verified work is merged.",
            hint=f"kapelle pr {work.id} --draft"
            if verb == "pr"
            else "--force merges it all the same.",
        )


async def deliverable(
    parts: Parts, work: Task | Run, verb: str, *, force: bool, secrets: bool = False
) -> str:
    """The commit that may be merged or pushed; with force that of whatever is there. Raises
    Conflict where there is none, or unless secrets may be in it, where it holds one."""
    require_ended(work, verb, force=force)
    await recall(parts, work)
    commit = work.workspace.commit
    if force:
        # What failed was never committed, and is what is wanted here.
        message = f"{work.title}\n\n{type(work).__name__}: {work.id}, {work.status}"
        commit = await parts.workspaces.commit(work.id, message)
    if commit is None or commit == work.workspace.base_commit:
        what = "open" if verb == "pr" else verb
        raise Conflict(f"{work.id} changed nothing, so there is nothing to {what}.")
    if not secrets:
        await require_no_secret(parts, work, verb, commit)
    return commit


async def require_no_secret(parts: Parts, work: Task | Run, verb: str, commit: str) -> None:
    """Raise Conflict if a file would get a secret that Kapelle knows, or if anything that is
    pushed with the commit holds one."""
    done, does = ("merged", "merges") if verb == "merge" else ("pushed", "pushes")
    known = await secrets_of(parts, work)
    told = b""
    if verb == "merge":
        diff = await parts.workspaces.diff(work.id, as_text=True)
    else:
        told, diff = await parts.workspaces.search_history(work.id, commit)
    found = await asyncio.to_thread(_files_with_secrets, diff.patch, known)
    if await asyncio.to_thread(redact, told, known) != told:
        found.append("the message or a name of a commit")
    for name in found:
        raise Conflict(
            f"{work.id} puts a secret that Kapelle knows into {name}, so it is not {done}.",
            hint=f"`kapelle diff {work.id}` shows where; --force {does} it all the same.",
        )
    if diff.is_truncated:
        raise Conflict(
            f"{work.id} changes too much to be searched for secrets, so it is not {done}.",
            hint=f"--force {does} it all the same.",
        )


def _files_with_secrets(patch: bytes, known: tuple[bytes, ...]) -> list[str]:
    """Return the files of a patch whose new lines or new names hold one of these secrets."""
    found = []
    for part in re.split(rb"^diff --git ", patch, flags=re.MULTILINE)[1:]:
        head, _, content = part.partition(b"\n@@ ")
        lines = (line[1:] for line in content.split(b"\n") if line.startswith(b"+"))
        added = b"\n".join(lines)
        name = head.split(b"\n")[0].rpartition(b" b/")[2]
        shown_name = redact(name, known)
        is_new_name = shown_name != name and re.search(
            rb"^(new file|rename to|copy to) ", head, re.M
        )
        if is_new_name or redact(added, known) != added:
            found.append(shown_name.decode("utf-8", "replace"))
    return found


@dataclass
class MergeVerification:
    """Makes the checks of ended work on what its merge would lead to, and keeps what they said."""

    parts: Parts
    work: Task | Run
    tell: Callable[[str], object]
    # The results of the checks; the set-up is among them only if it failed.
    made: list[CheckResult] = field(default_factory=list)
    _shell: Shell | None = None

    async def verify(self, found: MergeCandidate) -> None:
        """Raise ChecksFailed, with the evidence, if one of the checks fails there."""
        where = f"on what {found.base} would be ({found.new[:12]})"
        await self._make_all(found.new, where, all_of_them=False)
        for result in self.made:
            if not result.passed:
                raise await self._refusal(found, result)

    async def again(self, commit: str) -> None:
        """Make them all on what it committed, and have the history tell what they said."""
        await self._make_all(commit, f"on {commit[:12]}")
        if not self.made:
            raise Conflict(f"{self.work.id} has no check that is a command.")
        passed = all(result.passed for result in self.made)
        told = [cut(result.model_dump(mode="json"), _SHOWN) for result in self.made]

        def note(connection: Connection) -> None:
            # What went on meanwhile has another commit to be checked.
            if tasks.row(connection, self.work.id)["ended_at"] == self.work.ended_at:
                events.append(
                    connection, CHECKED, self.work.id, commit=commit, passed=passed, checks=told
                )

        await self.parts.db.write(note)

    async def _make_all(self, commit: str, where: str, *, all_of_them: bool = True) -> None:
        """Make them in a worktree of a commit; unless all are wanted, to the first that fails."""
        self.made.clear()
        if not (checks := await self.commands()):
            return
        parts = self.parts
        directory = self.work.directory
        owner = new_id("merge")
        settings = parts.work_settings(directory)
        wanted = settings.workspace
        setup = None
        if wanted.setup:
            setup = CheckSpec(
                command=wanted.setup,
                name="setup",
                timeout_s=wanted.setup_timeout_s,
                directory=settings.directory_of("workspace.setup", directory),
            )
            checks = [setup, *checks]
        with parts.performing(owner):
            try:
                brought = brought_along(settings, directory)
                place = await parts.workspaces.create_aside(
                    owner, self.work.workspace.owner or self.work.id, commit, *brought
                )
                for number, check in enumerate(checks):
                    self.tell(f"{number + 1} of {len(checks)}: {check.label} {where}")
                    failpoint("merge_before_check")
                    result = await self._make(owner, f"{number}", check, place)
                    is_setup = check is setup
                    if not (is_setup and result.passed):
                        self.made.append(result)
                    if not result.passed and (is_setup or not all_of_them):
                        break
            finally:
                try:
                    await clear_aside(parts, owner)
                except (KapelleError, OSError) as error:
                    _log.warning("what %s left is removed later: %s", owner, error)

    async def commands(self) -> list[CheckSpec]:
        """The checks that decide about it and can be made elsewhere."""
        parts = self.parts
        work = self.work
        if isinstance(work, Task):
            row = await parts.db.read(tasks.row, work.id)
            specs = [CheckSpec.model_validate(spec) for spec in row["check_specs"]]
        else:
            row = await parts.db.read(runs.row, work.id)
            pattern = await find_pattern(parts, row["pattern"], Path(work.directory))
            specs = pattern.spec.model_validate(row["spec"]).final_checks
        self._shell = parts.secrets.shell(row["shell"])
        return [spec for spec in specs if spec.kind is CheckKind.COMMAND]

    async def _make(self, owner: str, name: str, check: CheckSpec, aside: Workspace) -> CheckResult:
        parts = self.parts
        work = self.work
        process = parts.process(await parts.db.write(processes.begin, owner, name))
        directory = Path(work.directory)
        settings = parts.work_settings(work.directory)
        origin = Origin.of(self._shell, directory, Path(aside.path), settings.workspace)
        env = {**parts.secrets.env(work.id), f"KAPELLE_{kind_of(work.id).upper()}_ID": work.id}
        place = ProcessLocation(
            parts, settings, owner, working_directory(aside, directory), env, origin
        )
        place = place.at(work.directory, check.directory)
        label = f"{check.label} of the merge of {work.id}"
        launch = await place.command(process, check.command or "", check.timeout_s, label)
        ended = await parts.execute(owner, check.label, launch, lambda _: None)
        result = await place.judged(check, process, ended)
        return result.model_copy(update={"commit": aside.commit})

    async def _refusal(self, found: MergeCandidate, result: CheckResult) -> ChecksFailed:
        """The evidence for a person, once it is in the history."""
        work = self.work
        noun = kind_of(self.work.id)
        shown = "\n".join(result.output[-_SHOWN:].strip().splitlines()[-_SHOWN_LINES:])
        facts = {"name": result.name, "exit_code": result.exit_code, "output": shown}
        where = {"base": found.base, "commit": found.new}
        kind = f"{noun}.merge_refused"
        await self.parts.db.write(events.append, kind, work.id, **where, **facts)
        again = f"`kapelle resume {work.id} --merge` has its agent mend that; " * (noun == "task")
        return ChecksFailed(
            f"{work.id} was not merged: `{result.name}` fails on what {found.base} would be, "
            f"commit {found.new}. {found.base} was not changed.\n{shown}",
            hint=f"{again}`kapelle merge {work.id} --no-verify` merges it all the same.",
        )


async def check_again(parts: Parts, task: Task) -> None:
    """Make the checks of an ended task once more, on what it committed."""
    commit = task.workspace.commit or task.workspace.base_commit
    if commit is None or task.workspace.kind is not WorkspaceKind.WORKTREE:
        raise Conflict(f"{task.id} committed nothing on which its checks could be made once more.")
    await recall(parts, task)
    await MergeVerification(parts, task, lambda _: None).again(commit)


async def clear_aside(parts: Parts, owner: str) -> None:
    """End and forget what was begun in a worktree that is thrown away, and remove that."""
    for process in (await parts.processes(owner)).values():
        await parts.end_process(process, "this merge is over")
    await forget_processes(parts, owner)
    await parts.workspaces.discard(owner)
