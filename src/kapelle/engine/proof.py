"""What a passed check is worth: whether it saw the commit, and whether it looks at the work.

A check runs in the worktree, which then holds what a fresh checkout of the commit and the set-up
hold. It is run again in throwaway copies of the worktree: where tests and settings that the work
changed are those of the base; where changed files hold nonsense; if it passes there, where they are
as they were before the work; and, if it failed, on the work as it is, or it may have failed because
of the copy.
"""

import asyncio
import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kapelle.domain.errors import LimitReached, Tampered
from kapelle.domain.specs import CheckSpec, Prove
from kapelle.domain.task import CheckResult, Workspace
from kapelle.domain.text import counted_files
from kapelle.engine.judges import (
    Judges,
    imported_modules,
    included,
    is_makefile,
    is_shell,
    is_tool,
    named_scripts,
)
from kapelle.engine.launch import ProcessLocation
from kapelle.engine.parts import Parts
from kapelle.engine.trial import (
    CopyContent,
    Suspects,
    Trial,
    TrialFinding,
    TrialStopped,
    joined_proofs,
)
from kapelle.runner.process_dir import Process, ProcessEnd
from kapelle.runner.redaction import redact
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import attempts
from kapelle.store.query import work_rows
from kapelle.workspaces import FileSystemMoment

_LEAST_S = 60.0
_MOST_LEADING = 256_000
# Of more files it is only remembered that they were noticed together.
_MOST_RECALLED = 200
# The mode of a submodule in a tree.
_SUBMODULE = "160000"
_ADVICE = (
    "See that it tests this tree and these files (docs/environment.md), then retry; or let it pass "
    "as it is with --prove never."
)
# Files by which Python runs other code before a program, in the packages of the user.
# The fields of a result that hold output of the check, or names of files.
_TEXTS = {"output", "proof", "passes_only_with", "changed_meanwhile", "overlooks"}
_USER_SITE = ("sitecustomize.py", "usercustomize.py", "*.pth")

States = Mapping[str, object]


@dataclass(frozen=True)
class Subject:
    """What a check is made on: a commit in a worktree of the owner, where and how it is run."""

    place: ProcessLocation
    owner: str
    workspace: Workspace
    repository: str
    commit: str
    # When the first agent began in this worktree; None if none did.
    since: FileSystemMoment | None
    # Runs a command, given the name of its process, itself, its limit in seconds and its place.
    execute: Callable[[str, str, float, ProcessLocation], Awaitable[tuple[Process, ProcessEnd]]]

    @classmethod
    async def load(
        cls,
        place: ProcessLocation,
        owner: str,
        workspace: Workspace,
        repository: str,
        commit: str,
        execute: Callable[
            [str, str, float, ProcessLocation], Awaitable[tuple[Process, ProcessEnd]]
        ],
    ) -> "Subject":
        began = await place.parts.db.read(attempts.began_in, owner)
        now = await place.parts.workspaces.moment(owner)
        # A worktree that was made anew is another directory.
        moments = [FileSystemMoment(ns, inode) for ns, inode in began if inode == now.inode]
        since = min(moments, key=lambda moment: moment.ns, default=None)
        return cls(place, owner, workspace, repository, commit, since, execute)

    @property
    def parts(self) -> Parts:
        return self.place.parts

    @property
    def _worktree(self) -> Path:
        return Path(self.workspace.path)

    async def check_out(self, name: str, policy: Prove, *, is_first: bool) -> States | None:
        """Have the worktree hold the commit and what the set-up made, before a check.

        Returns what tells changes during the check, None if the check began before a crash. What
        earlier checks of the same work built stays for the later ones.
        """
        if name in await self.parts.processes(self.place.owner):
            return None
        workspaces = self.parts.workspaces
        if is_first and self.since and policy != "never":
            await workspaces.put_aside(self.owner, self.commit, self.since)
        attributes = [path for path in await self._changed() if path.endswith(".gitattributes")]
        await workspaces.check_out(self.owner, self.commit, every_file=bool(attributes))
        return await workspaces.file_states(self.owner, self.commit)

    async def examine(
        self, name: str, check: CheckSpec, result: CheckResult, changed: list[str], policy: Prove
    ) -> CheckResult:
        """Return the result of a check with what it is worth, without the secrets of the work.

        The name is that of its process; changed are the files that changed while that ran.
        """
        examined = await self._examine(name, check, result, changed, policy)
        row = await self.parts.db.read(work_rows(self.owner).row, self.owner)
        # The name of a file may hold a secret as well as its content.
        texts = json.dumps(examined.model_dump(include=_TEXTS)).encode()
        known = self.parts.secrets_of(row, [self.place.owner])
        return examined.model_copy(update=json.loads(redact(texts, known)))

    async def _examine(
        self, name: str, check: CheckSpec, result: CheckResult, changed: list[str], policy: Prove
    ) -> CheckResult:
        if not result.passed:
            if policy == "never":
                return result
            result = await self._again_as_left(name, check, result)
            if not result.passed:
                return result
        elif changed:
            result = _changed_meanwhile(result, changed)
        if policy != "never" and not result.is_doubted:
            result = await self._prove(name, check, result, policy)
        is_worthless = result.proved is not True or result.is_doubted
        if policy == "required" and is_worthless and result.proof is not None:
            output = f"{result.output}\n[{result.proof} {_ADVICE}]".lstrip()
            result = result.model_copy(update={"passed": False, "output": output})
        return result

    async def changed_during(self, ended: ProcessEnd, before: States | None) -> list[str]:
        """Return the tracked files that were changed while a check ran, also those changed back."""
        after = await self.parts.workspaces.file_states(self.owner, self.commit)
        if before is not None:
            return [path for path, state in after.items() if state != before.get(path)]
        if ended.started_at is None:
            return []
        began_ns = int(ended.started_at.timestamp() * 1e9)
        return [path for path, state in after.items() if state is None or state[0] > began_ns]

    async def _again_as_left(self, name: str, check: CheckSpec, result: CheckResult) -> CheckResult:
        """Run a failed check after another set-up, then with the ignored files of the agent."""
        workspaces = self.parts.workspaces
        left = await workspaces.list_aside(self.owner, self.commit)
        if not left or self.since is None:
            return result
        if self.place.settings.workspace.setup:
            again = await self._after_set_up(name, check)
            if again is not None and again.passed:
                return again
        await workspaces.bring_back(self.owner)
        again, _ = await self._run(f"{name}/as-left", check)
        # A later check gets the fresh checkout again.
        await workspaces.put_aside(self.owner, self.commit, self.since)
        if not again.passed:
            return result
        proof = (
            f"It passes only with files that git ignores and that were written during the work: "
            f"{counted_files(left)}. If it needs them, let workspace.setup make them."
        )
        return _doubted(again, proof, passes_only_with=left)

    async def _after_set_up(self, name: str, check: CheckSpec) -> CheckResult | None:
        """Run a check after another set-up of the workspace; return None if that failed."""
        workspaces = self.parts.workspaces
        settings = self.place.settings
        setup = settings.workspace
        directory = self.repository
        place = self.place.at(directory, settings.directory_of("workspace.setup", directory))
        again = f"{name}/setup", setup.setup or "", setup.setup_timeout_s, place
        if not (await self.execute(*again))[1].succeeded:
            return None
        await workspaces.check_out(self.owner, self.commit)
        before = await workspaces.file_states(self.owner, self.commit)
        result, ended = await self._run(f"{name}/set-up", check)
        changed = await self.changed_during(ended, before)
        if changed and result.passed:
            return _changed_meanwhile(result, changed)
        return result

    async def _run(self, name: str, check: CheckSpec) -> tuple[CheckResult, ProcessEnd]:
        process, ended = await self.execute(name, check.command or "", check.timeout_s, self.place)
        result = await self.place.judge_check(check, process, ended)
        return result.model_copy(update={"commit": self.commit}), ended

    async def _prove(
        self, name: str, check: CheckSpec, result: CheckResult, policy: Prove
    ) -> CheckResult:
        outside = await asyncio.to_thread(self._written_outside, check.command or "")
        if outside:
            names = ", ".join(outside)
            proof = f"Part of the check was written during the work, outside of it: {names}."
            return _doubted(result, proof, changed_meanwhile=outside)
        shown = self.parts.register_check(
            self.place.owner, f"proof of {check.label}", check.command or ""
        )
        with shown:
            finding = await self._find(name, check, result.duration_s, policy)
        if finding is None:
            return result
        update = {
            "proved": finding.proved,
            "proof": finding.proof,
            "passes_only_with": finding.passes_only_with,
            "overlooks": finding.overlooks,
        }
        return result.model_copy(update=update)

    def _written_outside(self, command: str) -> list[str]:
        """Return files outside of the worktree that lead the programs of a check and were written
        since the agent began."""
        if self.since is None:
            return []
        variables = self.place.variables.values
        base = variables.get("PYTHONUSERBASE") or os.path.join(variables.get("HOME", "/"), ".local")
        names = (f"{glob.escape(base)}/lib/python*/site-packages/{name}" for name in _USER_SITE)
        paths = [path for name in names for path in glob.glob(name)]
        search = variables.get("PATH", os.defpath)
        for word in dict.fromkeys(re.findall(r"[\w.+-]+", command)):
            program = shutil.which(word, path=search)
            if program is not None and not Path(program).is_relative_to(self._worktree):
                paths += [program, os.path.realpath(program)]
        return [path for path in dict.fromkeys(paths) if _is_newer(path, self.since.ns)]

    async def _judges(self, command: str, files: Mapping[str, str]) -> Judges:
        inside = os.path.relpath(self.place.cwd, self._worktree)
        directory = "" if inside == "." else inside
        includes = set[str]()
        judges = Judges(command, directory)
        # In a thread: a repository may have tens of thousands of files.
        unread = await asyncio.to_thread(_naming_scripts, judges, files)
        read = set[str]()
        # A makefile may run a script that runs another one.
        while unread:
            read |= unread
            named = set[str]()
            for path in sorted(unread):
                named |= await self._named_by(path, directory, files)
            includes |= named
            unread = {path for path in named if path in files and is_shell(path)} - read
        return Judges(command, directory, frozenset(includes))

    async def _named_by(self, path: str, directory: str, files: Mapping[str, str]) -> set[str]:
        """Return the files that a makefile includes, and the scripts that a file runs."""
        text = await self.parts.workspaces.read_start(self.owner, path, _MOST_LEADING)
        # Named from where it is, or from where the check runs.
        places = {os.path.dirname(path), directory, ""}
        names = await asyncio.to_thread(named_scripts, text)
        scripts = {
            os.path.normpath(os.path.join(place, name)) for name in names for place in places
        }
        # Not every word that looks like a path is one.
        named = {script for script in scripts if script in files or is_tool(script)}
        if is_makefile(path):
            for name in included(text):
                named |= {os.path.normpath(os.path.join(place, name)) for place in places}
        return named

    def _key(self, judges: Judges, files: Mapping[str, str]) -> str:
        """By what a command is remembered: led or judged by other files, it is another one."""
        digest = hashlib.sha256(f"{self.repository}\0{judges.command}".encode())
        for path, content in sorted(judges.among(files).items()):
            digest.update(f"\0{path}\0{content}".encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    async def _find(
        self, name: str, check: CheckSpec, took_s: float, policy: Prove
    ) -> TrialFinding | None:
        """Return what the check is worth, None if that is not known."""
        parts = self.parts
        command = check.command or ""
        workspaces = parts.workspaces
        base = self.workspace.base_commit
        changed = await self._changed()
        files = await workspaces.tree(self.owner, self.commit)
        if base is None:
            before = files
        else:
            before = await workspaces.tree(self.owner, base)
        judges = await self._judges(command, files)
        key = await asyncio.to_thread(self._key, judges, files)
        earlier_key = await asyncio.to_thread(self._key, judges, before)
        known = await parts.db.read(attempts.known_proof, key)

        async def run(what: str, content: CopyContent, limit_s: float) -> ProcessEnd:
            return await self._run_in_copy(f"{name}/{what}", command, content, limit_s)

        limit_s = min(check.timeout_s, _LEAST_S + 3 * took_s)
        held = frozenset(path for path, entry in files.items() if not _is_foreign(entry))
        earlier_held = frozenset(path for path, entry in before.items() if not _is_foreign(entry))
        trial = Trial(check, judges, base, limit_s, earlier_held, held, run)
        suspects = trial.suspects(changed)
        others = [path for path in changed if path not in suspects.all]
        if shadows := await self._find_shadows(trial, changed, others):
            suspects = Suspects([*suspects.altered, *shadows], suspects.new_tests)
        memory = ProofMemory()
        if policy == "once":
            # With the tests of the base it passes then, and was seen to look at work with these.
            memory = await self._recall(earlier_key if suspects.all else key, trial, changed)
        if not suspects.all and policy == "once" and known:
            if known["proved"] is None:
                return TrialFinding(None, known["proof"])
            if memory.is_enough:
                return TrialFinding(True, memory.proof)
        finding = await self._try(trial, changed, suspects, memory)
        if finding is None and known is not None and known["proved"] is False:
            # Where nothing was changed it looks at no more than it did then.
            return TrialFinding(False, known["proof"])
        if finding is None or finding.passes_only_with:
            return finding
        # One that was seen to look at other work is not forgotten for this.
        if finding.is_lasting or (finding.proved is False and known is None):
            at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            proof = f"{finding.observed or finding.proof} Remembered from {self.owner}, {at}."
            digests = {key} | {_file_key(key, paths) for paths in finding.noticed}
            await parts.db.write(attempts.remember_proof, sorted(digests), finding.proved, proof)
        return finding

    async def _recall(self, key: str, trial: Trial, changed: list[str]) -> "ProofMemory":
        """Return which of the changed files the check of a key was seen to notice."""
        read = self.parts.db.read
        known = await read(attempts.known_proof, key)
        if known is None or not known["proved"]:
            return ProofMemory()
        decisive = trial.decisive(changed)
        # That it noticed a file says nothing of work that removes it.
        there = [path for path in decisive if path in trial.held]
        groups = {_file_key(key, there): there}
        if len(there) <= _MOST_RECALLED:
            for path in there:
                groups[_file_key(key, [path])] = [path]
        proofs = dict[str, str]()
        for row in await read(attempts.known_proofs, sorted(groups)):
            for path in groups[row["digest"]]:
                proofs[path] = row["proof"]
        return ProofMemory(known["proof"], decisive, proofs)

    async def _find_shadows(self, trial: Trial, changed: list[str], others: list[str]) -> list[str]:
        """Return new modules in the place of installed ones that older tests import.

        Others are the changed files that are neither tests nor settings.
        Tests may also be older than the module that they are for: then the check fails on the base.
        """
        judges = trial.judges
        new = [path for path in others if path in trial.held and path not in trial.before]
        modules = {path: judges.modules(path) for path in new}
        names = set[str]().union(*modules.values())
        if not names or trial.base is None:
            return []
        older = trial.before & trial.held - set(changed)
        imported = set[str]()
        for path in sorted(older):
            if path.endswith(".py") and judges.judges(path):
                text = await self.parts.workspaces.read_start(self.owner, path, _MOST_LEADING)
                imported |= imported_modules(text)
        names &= imported
        if names:
            names -= await asyncio.to_thread(_modules_of, judges, trial.before)
        shadows = [path for path in new if not names.isdisjoint(modules[path])]
        if shadows and await trial.passes_on_base(changed):
            return shadows
        return []

    async def _try(
        self, trial: Trial, changed: list[str], suspects: Suspects, memory: "ProofMemory"
    ) -> TrialFinding | None:
        """Run the check in copies; files that it was seen to notice earlier are not tried again.

        Where the work changed tests, that stands only if it passes with those of the base.
        """
        parts = self.parts
        finding = None
        async with parts.workspaces.copying(self.owner):
            try:
                if suspects.all:
                    finding = await trial.find_changed_judges(suspects)
                    if finding is None and memory.is_enough:
                        finding = TrialFinding(True, memory.proof)
                if finding is None:
                    finding = await trial.find_blindness(changed, memory.proofs)
            except TrialStopped:
                finding = None
            except (Tampered, LimitReached):
                await parts.workspaces.remove_copy(self.owner)
                raise
            # Not after any other error: when the daemon is stopped, a process goes on there.
            failpoint("proof_before_removal")
            await parts.workspaces.remove_copy(self.owner)
        return finding

    async def _changed(self) -> list[str]:
        """Return the paths that differ between the base and the commit.

        The trees decide: in the worktree, a link or a directory may stand in the place of a file.
        """
        began = self.workspace.base_commit
        if began is None or began == self.commit:
            return []
        before = await self.parts.workspaces.tree(self.owner, began)
        after = await self.parts.workspaces.tree(self.owner, self.commit)
        return [
            path
            for path in sorted({*before, *after})
            if before.get(path) != after.get(path)
            and not (_is_foreign(before.get(path)) and _is_foreign(after.get(path)))
        ]

    async def _run_in_copy(
        self, name: str, command: str, content: CopyContent, timeout_s: float
    ) -> ProcessEnd:
        """Run the check in a copy; one that was begun before a crash has its copy."""
        if name not in await self.parts.processes(self.place.owner):
            await self.parts.workspaces.copy(
                self.owner, content.changed, content.base, garbled=content.garbled
            )
        failpoint("proof_before_execute")
        place = self.place.in_copy(self.parts.workspaces.copy_of(self.owner))
        return (await self.execute(name, command, timeout_s, place))[1]


@dataclass(frozen=True)
class ProofMemory:
    """What a check was seen to notice in earlier work."""

    # Of the command as such; None if it was not seen to look at any work.
    general: str | None = None
    # The files of this work that it has to look at, and the proofs of those that it noticed.
    decisive: Sequence[str] = ()
    proofs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_enough(self) -> bool:
        """Tell whether the check was seen to notice each file that it has to look at."""
        return self.general is not None and self.proofs.keys() >= set(self.decisive)

    @property
    def proof(self) -> str:
        """Return the proofs in a sentence or two."""
        return joined_proofs(self.proofs.values()) or self.general or ""


def _file_key(key: str, paths: Sequence[str]) -> str:
    """Return by what is remembered that the check of a key noticed files."""
    digest = hashlib.sha256(key.encode())
    for path in paths:
        digest.update(f"\0{path}".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def _modules_of(judges: Judges, files: Iterable[str]) -> set[str]:
    return set[str]().union(*(judges.modules(path) for path in files))


def _naming_scripts(judges: Judges, files: Mapping[str, str]) -> set[str]:
    """Return the files that may name scripts which the check runs."""
    return {path for path in files if judges.names_scripts(path)}


def _is_foreign(entry: str | None) -> bool:
    """Tell whether a path holds no content of this repository: a submodule, or nothing."""
    return entry is None or entry.startswith(_SUBMODULE)


def _changed_meanwhile(result: CheckResult, changed: list[str]) -> CheckResult:
    proof = f"While it ran {counted_files(changed)} changed: it may not have seen the commit."
    return _doubted(result, proof, changed_meanwhile=changed)


def _doubted(result: CheckResult, proof: str, **paths: list[str]) -> CheckResult:
    return result.model_copy(update={"proved": False, "proof": proof, **paths})


def _is_newer(path: str, ns: int) -> bool:
    try:
        return os.lstat(path).st_ctime_ns > ns
    except OSError:
        return False
