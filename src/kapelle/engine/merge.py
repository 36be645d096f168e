"""The checks of a task or run on what its merge leads to, or once more on what it committed, in a
worktree that is thrown away."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from kapelle.domain.errors import ChecksFailed, Conflict, KapelleError, Tampered
from kapelle.domain.ids import new_id
from kapelle.domain.run import Run
from kapelle.domain.specs import CheckKind, CheckSpec, Shell, WorkspaceKind
from kapelle.domain.task import CheckResult, Task, Workspace
from kapelle.domain.text import cut
from kapelle.engine.archive import forget_processes
from kapelle.engine.environment import Origin, brought_along
from kapelle.engine.launch import launch_command
from kapelle.engine.output import SHOWN_OUTPUT, check_result
from kapelle.engine.parts import Parts, tampered
from kapelle.engine.runs.patterns import find_pattern
from kapelle.engine.tasks.attempt import recall
from kapelle.runner.output import both_streams
from kapelle.runner.process_dir import Launch
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import events, processes, runs, tasks
from kapelle.store.events import CHECKED
from kapelle.workspaces import Candidate, working_directory

_log = logging.getLogger("kapelle.merge")
_CONFLICTS = """\
{base} has moved on. It was just merged into your branch, and these files conflict:
{found}
They hold conflict markers (<<<<<<<, =======, >>>>>>>). Resolve each so that what you did and what
{base} did both hold, leave no marker behind, and see that the work still does what it was to do."""
_CLEAN = """\
{base} has moved on. It was just merged into your branch, without conflicts. See that the work still
does what it was to do, and mend it where it does not."""
_SHOWN, _SHOWN_LINES = 4_000, 15


@dataclass
class Verification:
    """Makes the checks of ended work on what its merge would lead to, and keeps what they said."""

    parts: Parts
    work: Task | Run
    tell: Callable[[str], object]
    made: list[CheckResult] = field(default_factory=list)
    _shell: Shell | None = None

    async def verify(self, found: Candidate) -> None:
        """Raise ChecksFailed, with the evidence, if one of the checks fails there."""
        self.made.clear()
        where = f"on what {found.base} would be ({found.new[:12]})"
        async with aclosing(self._make_all(found.new, where)) as results:
            async for result in results:
                if not result.passed:
                    raise await self._refusal(found, result)

    async def again(self, commit: str) -> None:
        """Make them all on what it committed, and have the history tell what they said."""
        self.made.clear()
        async with aclosing(self._make_all(commit, f"on {commit[:12]}")) as results:
            async for _ in results:
                pass
        if not self.made:
            raise Conflict(f"{self.work.id} has no check that is a command.")
        passed = all(result.passed for result in self.made)
        told = [cut(result.model_dump(mode="json"), _SHOWN) for result in self.made]
        await self.parts.db.write(
            events.append, CHECKED, self.work.id, commit=commit, passed=passed, checks=told
        )

    async def _make_all(self, commit: str, where: str) -> AsyncGenerator[CheckResult, None]:
        if not (checks := await self.commands()):
            return
        parts, directory, owner = self.parts, self.work.directory, new_id("merge")
        wanted = parts.work_settings(directory).workspace
        if wanted.setup:
            first = CheckSpec(command=wanted.setup, name="setup", timeout_s=wanted.setup_timeout_s)
            checks = [first, *checks]
        with parts.performing(owner):
            try:
                brought = brought_along(wanted, directory)
                place = await parts.workspaces.create_aside(
                    owner, self.work.workspace.owner or self.work.id, commit, *brought
                )
                for number, check in enumerate(checks):
                    self.tell(f"{number + 1} of {len(checks)}: {check.label} {where}")
                    failpoint("merge_before_check")
                    result = await self._make(owner, f"{number}", check, place)
                    self.made.append(result)
                    yield result
            finally:
                try:
                    await clear_aside(parts, owner)
                except (KapelleError, OSError) as error:
                    _log.warning("what %s left is removed later: %s", owner, error)

    async def commands(self) -> list[CheckSpec]:
        """The checks that decide about it and can be made elsewhere."""
        parts, work = self.parts, self.work
        if isinstance(work, Task):
            row = await parts.db.read(tasks.row, work.id)
            specs = [CheckSpec.model_validate(spec) for spec in row["check_specs"]]
        else:
            row = await parts.db.read(runs.row, work.id)
            pattern = await find_pattern(parts, row["pattern"], Path(work.directory))
            specs = pattern.spec.model_validate(row["spec"]).final_checks
        self._shell = parts.secrets.shell(row["shell"])
        return [spec for spec in specs if spec.kind is CheckKind.COMMAND]

    async def _make(self, owner: str, name: str, check: CheckSpec, place: Workspace) -> CheckResult:
        parts, work = self.parts, self.work
        process = parts.process(await parts.db.write(processes.begin, owner, name))
        directory, settings = Path(work.directory), parts.work_settings(work.directory)
        cwd = working_directory(place, directory)
        launch = launch_command(
            parts, settings, check.command or "", owner,
            process=process, cwd=cwd, timeout_s=check.timeout_s,
            env={**parts.secrets.env(work.id), f"KAPELLE_{_noun(work)}_ID": work.id},
            label=f"{check.label} of the merge of {work.id}",
            origin=Origin.of(self._shell, directory, Path(place.path), settings.workspace),
        )  # fmt: skip
        ended = await parts.execute(owner, name, launch, lambda _: None)
        if ended.exit.kind == "tampered":
            raise Tampered(tampered(check.label, ended))
        output = await asyncio.to_thread(both_streams, process.directory, SHOWN_OUTPUT)
        result = check_result(check, ended, output)
        return result.model_copy(update={"commit": place.commit, "directory": str(cwd)})

    async def _refusal(self, found: Candidate, result: CheckResult) -> ChecksFailed:
        """The evidence for a person, once it is in the history."""
        work, noun = self.work, _noun(self.work).lower()
        shown = "\n".join(result.output[-_SHOWN:].strip().splitlines()[-_SHOWN_LINES:])
        about = (work.id,) if isinstance(work, Task) else ()
        await self.parts.db.write(
            events.append, f"{noun}.merge_refused", *about,
            run_id=work.id if isinstance(work, Run) else None, base=found.base,
            commit=found.new, name=result.name, exit_code=result.exit_code, output=shown,
        )  # fmt: skip
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
    await Verification(parts, task, lambda _: None).again(commit)


def _noun(work: Task | Run) -> str:
    return type(work).__name__.upper()


async def clear_aside(parts: Parts, owner: str) -> None:
    """End and forget what was begun in a worktree that is thrown away, and remove that."""
    for row in (await parts.db.read(processes.of_owner, owner)).values():
        process = parts.process(row)
        parts.runner.stop(process.directory, "this merge is over")
        # What was begun is waited for; with the order to stop nothing begins any more.
        launch = Launch(process.directory, ["true"], parts.home.root, {}, secret=process.secret)
        await parts.runner.execute(launch)
    await forget_processes(parts, owner)
    await parts.workspaces.discard(owner)


async def take_in_base(parts: Parts, task: Task, message: str | None) -> str:
    """Merge its base into the branch of an ended task, where they conflict with markers in the
    files; what its agent is told of that."""
    base, directory = task.workspace.base, task.directory
    if task.workspace.branch is None or task.workspace.owner is not None or base is None:
        raise Conflict(f"{task.id} has no branch of its own, into which its base could be merged.")
    await recall(parts, task)
    brought = brought_along(parts.work_settings(directory).workspace, directory)
    await parts.workspaces.create(task.id, Path(directory), base, *brought)
    conflicts = await parts.workspaces.take_in(
        task.id, base, f"Merge {base}\n\nTask: {task.id}", as_base=True
    )
    found = "\n".join(f"- {name}" for name in conflicts)
    told = _CONFLICTS.format(base=base, found=found) if conflicts else _CLEAN.format(base=base)
    return f"{told}\n\n{message or ''}".strip()
