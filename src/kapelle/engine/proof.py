"""Whether a check looks at the work: made again without that, it fails.

Each further time it is made in a throwaway copy of the worktree: where the changed files hold
nonsense; if it passes there, where they are as they were before the work; and, if it failed on
either, on the work as it is, or it may have failed because of the copy.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kapelle.domain.errors import Conflict, LimitReached, Tampered, WorkspaceError
from kapelle.domain.specs import CheckKind, CheckSpec, Prove
from kapelle.domain.task import CheckResult, Workspace
from kapelle.domain.text import counted_files
from kapelle.engine.launch import Place
from kapelle.engine.parts import Parts
from kapelle.runner.process_dir import Ended, Process
from kapelle.runner.shim import files
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import attempts

# What judges the work, and what is neither program nor data of it: to break these proves nothing
# about the rest.
_JUDGES = re.compile(
    r"(^|/)(tests?|specs?|__tests__|testing)/|(^|/)(test_[^/]*|conftest\.py)$|[._](test|spec)s?\."
)
_BESIDE = re.compile(
    r"\.(md|rst|txt|toml|cfg|ini|lock|ya?ml|json|xml|mod|sum|sh)$|(^|/)(\.[^/]*|Makefile|LICENSE)$"
)
# What decides, at the top of a tree or where a check is made, what `make test` and the like do.
_LEADS = re.compile(
    r"\.(toml|cfg|ini|mk|sh)$|([Mm]ake|[Jj]ust|Rake)file$|^(package\.json|(conftest|noxfile)\.py)$"
)
_EXECUTED = re.compile(
    r"(?:^|[;&|(]|\b(?:ba|da|z)?sh|\bpython[\d.]*|\b(?:node|ruby|perl|pytest|bash))\s*"
    r"(?:-[^\s/]+\s+)*([\w.@+-]*[./][^\s;&|()<>\"']*)"
)
_LEAST_S = 60.0
_ADVICE = (
    "See that it tests this tree and these files (docs/environment.md), then retry; or let it pass "
    "as it is with --prove never."
)


@dataclass(frozen=True)
class Subject:
    """What a check was made on: a worktree of the owner, where and by whom it is executed."""

    place: Place
    owner: str
    workspace: Workspace
    repository: str
    # Runs a command, given the name of its process, itself, its limit in seconds and its place.
    execute: Callable[[str, str, float, Place], Awaitable[tuple[Process, Ended]]]

    @property
    def parts(self) -> Parts:
        return self.place.parts

    async def prove(
        self, name: str, check: CheckSpec, result: CheckResult, default: Prove
    ) -> CheckResult:
        """What came of a check, with what is known of its worth; name is that of its process."""
        policy = check.prove or default
        if policy == "never" or not result.passed or check.kind is not CheckKind.COMMAND:
            return result
        key = await asyncio.to_thread(self._key, check.command or "")
        known = await self.parts.db.read(attempts.known_proof, key)
        if policy == "once" and known is not None and known["proved"] is not False:
            return result.model_copy(update={"proved": known["proved"], "proof": known["proof"]})
        shown = self.parts.making(self.place.owner, f"proof of {check.label}", check.command or "")
        with shown:
            found = await self._find(name, check, result)
        if found is None and known is not None and known["proved"] is False:
            # Where nothing was changed it looks at no more than it did then.
            found = False, known["proof"], False
        if found is None:
            return result
        proved, proof, lasting = found
        # One that was seen to look at other work is not forgotten for this.
        if lasting or (proved is False and known is None):
            seen = f"{proof} Remembered from {self.owner}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
            await self.parts.db.write(attempts.remember_proof, key, proved, seen)
        result = result.model_copy(update={"proved": proved, "proof": proof})
        if policy == "required" and proved is not True:
            output = f"{result.output}\n[{proof} {_ADVICE}]".lstrip()
            result = result.model_copy(update={"passed": False, "output": output})
        return result

    def _key(self, command: str) -> str:
        """By what a command is remembered: led by other files, it is another one."""
        digest = hashlib.sha256(f"{self.repository}\0{command}".encode())
        for place in filter(Path.is_dir, (self._worktree, self.place.cwd)):
            for name in sorted({*executed(command), *filter(_LEADS.search, os.listdir(place))}):
                path = os.path.realpath(place / name)
                if os.access(path, os.R_OK) and (content := files.read(path)) is not None:
                    size = str(files.size(path)).encode()
                    digest.update(b"\0%s\0%s\0" % (os.fsencode(name), size) + content)
        return digest.hexdigest()

    async def _find(
        self, name: str, check: CheckSpec, result: CheckResult
    ) -> tuple[bool | None, str, bool] | None:
        """Whether it looks at the work, why, and whether that will be so the next time."""
        changed = await self._changed(result)
        # That a test fails which was removed says nothing about the rest.
        kept = [path for path in changed if self._is_there(path) or not _JUDGES.search(path)]
        if not kept:
            proof = f"Not proved: all that was done is to remove {counted_files(changed)}."
            return (None, proof, False) if changed else None
        files = decisive(kept, check.command or "")
        async with self.parts.workspaces.copying(self.owner):
            try:
                found = await self._judge(name, check, files, result.duration_s)
            except (Tampered, LimitReached):
                await self.parts.workspaces.remove_copy(self.owner)
                raise
            # Not after any other error: when the daemon is stopped, a process goes on there.
            failpoint("proof_before_removal")
            await self.parts.workspaces.remove_copy(self.owner)
            return found

    async def _judge(
        self, name: str, check: CheckSpec, files: list[str], took_s: float
    ) -> tuple[bool | None, str, bool] | None:
        told, command = counted_files(files), check.command or ""
        limit_s = min(check.timeout_s, _LEAST_S + 3 * took_s)
        there, base = [path for path in files if self._is_there(path)], self.workspace.base_commit
        try:
            state, ended = "holds nonsense", None
            if there:
                ended = await self._again(f"{name}/garbled", command, there, None, limit_s)
            if ended is None or ended.succeeded:
                state = "is as it was before"
                ended = await self._again(f"{name}/reverted", command, files, base, limit_s)
            if ended.ended_by == "stop":
                return None
            if ended.succeeded and not there:
                return None, f"Not proved: it passes as well where {told} {state}.", False
            if ended.succeeded:
                proof = f"It passes even where {told} holds nonsense: it does not look at the work."
                return False, proof, False
            intact = await self._again(f"{name}/intact", command, [], None, check.timeout_s)
        except (WorkspaceError, Conflict, OSError) as error:
            return None, f"Not proved: {error}", False
        if intact.ended_by == "stop":
            return None
        if not intact.succeeded:
            how = intact.ending(check.timeout_s)
            return None, f"Not proved: in a copy of the workspace it fails by itself ({how}).", True
        # That it fails where what leads it holds nonsense says nothing of other work.
        lasting = not all(map(_is_beside, files))
        return True, f"It fails where {told} {state}.", lasting

    @property
    def _worktree(self) -> Path:
        return Path(self.workspace.path)

    async def _changed(self, result: CheckResult) -> list[str]:
        """The files that the work changed, without what the check itself left there."""
        began = self.workspace.base_commit
        if began is None or result.commit is None:
            return []
        diff = await self.parts.workspaces.compare(self.owner, began, result.commit)
        return [
            path
            for path in diff.files
            if self._is_there(path) or not os.path.lexists(self._worktree / path)
        ]

    def _is_there(self, path: str) -> bool:
        return (self._worktree / path).is_file()

    async def _again(
        self, name: str, command: str, changed: list[str], base: str | None, timeout_s: float
    ) -> Ended:
        """Make it in a copy; one that was begun before a crash has its copy."""
        if name not in await self.parts.processes(self.place.owner):
            await self.parts.workspaces.copy(self.owner, changed, base)
        failpoint("proof_before_execute")
        place = self.place.in_copy(self.parts.workspaces.copy_of(self.owner))
        return (await self.execute(name, command, timeout_s, place))[1]


def decisive(files: list[str], command: str) -> list[str]:
    """Of the changed files those that a check must look at."""
    others = [path for path in files if path not in executed(command)] or files
    judges = [path for path in others if _JUDGES.search(path)]
    works = [path for path in others if path not in judges and not _is_beside(path)]
    return works or judges or others


def _is_beside(path: str) -> bool:
    """Whether a file is no work by itself: settings, documents, and what leads a check."""
    return bool(_BESIDE.search(path) or _LEADS.search(os.path.basename(path)))


def executed(command: str) -> set[str]:
    """The paths that a command runs as programs or scripts, as they are written there."""
    return {os.path.normpath(found) for found in _EXECUTED.findall(command)}
