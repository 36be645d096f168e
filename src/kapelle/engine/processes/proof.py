"""Verify the value of a passed check: it saw the commit, and it looks at the work.

A check runs in the worktree, which then holds a fresh checkout of the commit and the results of the
set-up. To prove the check, it is run again in temporary copies of the worktree: with the tests and
settings of the base, if the work changed them; with garbage in the changed files; with the changed
files of the base, if it passes with garbage; and, if it failed, with the work as it is, because the
copy itself may be the cause.
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
from kapelle.domain.text import format_files
from kapelle.engine.parts import Parts
from kapelle.engine.processes.judges import (
    Judges,
    imported_modules,
    is_makefile,
    is_shell,
    is_tool,
    list_includes,
    named_scripts,
)
from kapelle.engine.processes.launch import ProcessLocation
from kapelle.engine.processes.trial import (
    CopyContent,
    Suspects,
    Trial,
    TrialFinding,
    TrialStopped,
    join_proofs,
)
from kapelle.runner.process_dir import Process, ProcessEnd
from kapelle.runner.redaction import redact
from kapelle.runner.shim.failpoints import failpoint
from kapelle.store import attempts
from kapelle.store.rows import rows_of_work
from kapelle.workspaces import FileSystemMoment

_LEAST_S = 60.0
_MOST_LEADING = 256_000
# Beyond this number, only the whole group of noticed files is remembered.
_MOST_RECALLED = 200
# The mode of a submodule in a tree.
_SUBMODULE = "160000"
_ADVICE = (
    "Make sure that it tests this tree and these files (docs/environment.md), then retry, or "
    "accept it unproved with --prove never."
)
# The fields of a result that hold output of the check, or names of files.
_TEXTS = {"output", "proof", "passes_only_with", "changed_meanwhile", "overlooks"}
# Files in the user's packages by which Python runs other code before a program.
_USER_SITE = ("sitecustomize.py", "usercustomize.py", "*.pth")

States = Mapping[str, object]


@dataclass(frozen=True)
class Subject:
    """The subject of a check: a commit in the worktree of an owner, and how to run commands."""

    place: ProcessLocation
    owner: str
    workspace: Workspace
    repository: str
    commit: str
    # When the first agent began in this worktree; None if none did.
    since: FileSystemMoment | None
    # Runs a command, by the name of its process, its text, its timeout and its location.
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
        """Read when the first agent began in this worktree, and return the subject."""
        began = await place.parts.db.read(attempts.load_beginnings, owner)
        now = await place.parts.workspaces.moment(owner)
        # A recreated worktree has another inode, so earlier moments do not apply to it.
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
        """Restore the commit and the results of the set-up in the worktree, before a check.

        Returns the states of the files, by which changes during the check are detected; None if the
        check began before a crash. Files that earlier checks of the same work built are kept.
        """
        if name in await self.parts.processes(self.place.owner):
            return None
        workspaces = self.parts.workspaces
        if is_first and self.since and policy != "never":
            await workspaces.put_aside(self.owner, self.commit, self.since)
        attributes = [
            path for path in await self._list_changed() if path.endswith(".gitattributes")
        ]
        await workspaces.check_out(self.owner, self.commit, every_file=bool(attributes))
        return await workspaces.file_states(self.owner, self.commit)

    async def examine(
        self, name: str, check: CheckSpec, result: CheckResult, changed: list[str], policy: Prove
    ) -> CheckResult:
        """Return the result of a check with what it is worth, without the secrets of the work.

        The name is that of its process; changed are the files that changed while that ran.
        """
        judged_result = await self._examine(name, check, result, changed, policy)
        row = await self.parts.db.read(rows_of_work(self.owner).load, self.owner)
        # The name of a file may hold a secret as well as its content.
        texts = json.dumps(judged_result.model_dump(include=_TEXTS)).encode()
        secrets = self.parts.secrets_of(row, [self.place.owner])
        return judged_result.model_copy(update=json.loads(redact(texts, secrets)))

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
            result = _doubt_changed_files(result, changed)
        if policy != "never" and not result.is_doubted:
            result = await self._prove(name, check, result, policy)
        is_worthless = result.proved is not True or result.is_doubted
        if policy == "required" and is_worthless and result.proof is not None:
            output = f"{result.output}\n[{result.proof} {_ADVICE}]".lstrip()
            result = result.model_copy(update={"passed": False, "output": output})
        return result

    async def list_changes_during(self, end: ProcessEnd, before: States | None) -> list[str]:
        """Return the tracked files that were changed while a check ran, also those changed back."""
        after = await self.parts.workspaces.file_states(self.owner, self.commit)
        if before is not None:
            return [path for path, state in after.items() if state != before.get(path)]
        if end.started_at is None:
            return []
        began_ns = int(end.started_at.timestamp() * 1e9)
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
            f"{format_files(left)}. If it needs them, let workspace.setup make them."
        )
        return _doubt(again, proof, passes_only_with=left)

    async def _after_set_up(self, name: str, check: CheckSpec) -> CheckResult | None:
        """Run a check after another set-up of the workspace; return None if that failed."""
        workspaces = self.parts.workspaces
        settings = self.place.settings
        setup = settings.workspace
        directory = self.repository
        place = self.place.at(directory, settings.directory_of("workspace.setup", directory))
        setup_command = f"{name}/setup", setup.setup or "", setup.setup_timeout_s, place
        if not (await self.execute(*setup_command))[1].succeeded:
            return None
        await workspaces.check_out(self.owner, self.commit)
        before = await workspaces.file_states(self.owner, self.commit)
        result, end = await self._run(f"{name}/set-up", check)
        paths = await self.list_changes_during(end, before)
        if paths and result.passed:
            return _doubt_changed_files(result, paths)
        return result

    async def _run(self, name: str, check: CheckSpec) -> tuple[CheckResult, ProcessEnd]:
        process, end = await self.execute(name, check.command or "", check.timeout_s, self.place)
        result = await self.place.judge_check(check, process, end)
        return result.model_copy(update={"commit": self.commit}), end

    async def _prove(
        self, name: str, check: CheckSpec, result: CheckResult, policy: Prove
    ) -> CheckResult:
        outside = await asyncio.to_thread(self._list_new_programs, check.command or "")
        if outside:
            names = ", ".join(outside)
            proof = f"Part of the check was written during the work, outside of it: {names}."
            return _doubt(result, proof, changed_meanwhile=outside)
        label = f"proof of {check.label}"
        with self.parts.register_check(self.place.owner, label, check.command or ""):
            finding = await self._find(name, check, result.duration_s, policy)
        if finding is None:
            return result
        update = {
            "proved": finding.proved,
            "proof": finding.proof,
            "proved_earlier": finding.is_earlier,
            "passes_only_with": finding.passes_only_with,
            "overlooks": finding.overlooks,
        }
        return result.model_copy(update=update)

    def _list_new_programs(self, command: str) -> list[str]:
        """Return programs of a check that were written since the agent began.

        Only files outside of the worktree are returned.
        """
        if self.since is None:
            return []
        variables = self.place.variables.values
        base = variables.get("PYTHONUSERBASE") or os.path.join(variables.get("HOME", "/"), ".local")
        paths: list[str] = []
        for name in _USER_SITE:
            paths += glob.glob(f"{glob.escape(base)}/lib/python*/site-packages/{name}")
        search = variables.get("PATH", os.defpath)
        for word in dict.fromkeys(re.findall(r"[\w.+-]+", command)):
            program = shutil.which(word, path=search)
            if program is not None and not Path(program).is_relative_to(self._worktree):
                paths += [program, os.path.realpath(program)]
        return [path for path in dict.fromkeys(paths) if _is_newer(path, self.since.ns)]

    async def _judges(self, command: str, files: Mapping[str, str]) -> Judges:
        """Return the judges of a check, with all scripts that it runs directly or not."""
        inside = os.path.relpath(self.place.cwd, self._worktree)
        directory = "" if inside == "." else inside
        includes = set[str]()
        judges = Judges(command, directory)
        # In a thread: a repository may have tens of thousands of files.
        unread = await asyncio.to_thread(_naming_scripts, judges, files)
        visited = set[str]()
        # A makefile may run a script that runs another one.
        while unread:
            visited |= unread
            scripts = set[str]()
            for path in sorted(unread):
                scripts |= await self._list_scripts(path, directory, files)
            includes |= scripts
            unread = {path for path in scripts if path in files and is_shell(path)} - visited
        return Judges(command, directory, frozenset(includes))

    async def _list_scripts(self, path: str, directory: str, files: Mapping[str, str]) -> set[str]:
        """Return the files that a makefile includes, and the scripts that a file runs."""
        text = await self.parts.workspaces.read_start(self.owner, path, _MOST_LEADING)
        # A name is relative to the file itself, to the directory of the check, or to the top.
        places = {os.path.dirname(path), directory, ""}
        names = await asyncio.to_thread(named_scripts, text)
        scripts = set[str]()
        for name in names:
            scripts |= {os.path.normpath(os.path.join(place, name)) for place in places}
        # Not every word that looks like a path is one.
        scripts = {script for script in scripts if script in files or is_tool(script)}
        if is_makefile(path):
            for name in list_includes(text):
                scripts |= {os.path.normpath(os.path.join(place, name)) for place in places}
        return scripts

    def _key(self, judges: Judges, files: Mapping[str, str]) -> str:
        """Return the key of a remembered proof: the command, and the content of its judges."""
        digest = hashlib.sha256(f"{self.repository}\0{judges.command}".encode())
        for path, content in sorted(judges.among(files).items()):
            digest.update(f"\0{path}\0{content}".encode("utf-8", "backslashreplace"))
        return digest.hexdigest()

    async def _find(
        self, name: str, check: CheckSpec, took_s: float, policy: Prove
    ) -> TrialFinding | None:
        """Prove a check, or recall a proof; return None if nothing is known about it."""
        parts = self.parts
        command = check.command or ""
        workspaces = parts.workspaces
        base = self.workspace.base_commit
        changed_paths = await self._list_changed()
        files = await workspaces.tree(self.owner, self.commit)
        before = files
        if base is not None:
            before = await workspaces.tree(self.owner, base)
        judges = await self._judges(command, files)
        key = await asyncio.to_thread(self._key, judges, files)
        earlier_key = await asyncio.to_thread(self._key, judges, before)
        remembered_proof = await parts.db.read(attempts.find_proof, key)

        async def run(what: str, content: CopyContent, limit_s: float) -> ProcessEnd:
            return await self._run_in_copy(f"{name}/{what}", command, content, limit_s)

        limit_s = min(check.timeout_s, _LEAST_S + 3 * took_s)
        paths = frozenset(path for path, entry in files.items() if not _is_foreign(entry))
        earlier_paths = frozenset(path for path, entry in before.items() if not _is_foreign(entry))
        trial = Trial(check, judges, base, limit_s, earlier_paths, paths, run)
        suspects = trial.suspects(changed_paths)
        others = [path for path in changed_paths if path not in suspects.all]
        if shadows := await self._find_shadows(trial, changed_paths, others):
            suspects = Suspects([*suspects.altered, *shadows], suspects.new_tests)
        memory = ProofMemory()
        if policy == "once":
            # If the tests changed, only a proof with the tests of the base counts.
            memory = await self._recall(earlier_key if suspects.all else key, trial, changed_paths)
        if not suspects.all and policy == "once" and remembered_proof:
            if remembered_proof["proved"] is None:
                return TrialFinding(None, remembered_proof["proof"], is_earlier=True)
            if memory.is_enough:
                return TrialFinding(True, memory.proof, is_earlier=True)
        finding = await self._try(trial, changed_paths, suspects, memory)
        if finding is None and remembered_proof is not None and remembered_proof["proved"] is False:
            # Without a change, the check is as blind as before.
            return TrialFinding(False, remembered_proof["proof"], is_earlier=True)
        if finding is None or finding.passes_only_with:
            return finding
        # A proof with other work is not overwritten by a doubt about this work.
        if finding.is_lasting or (finding.proved is False and remembered_proof is None):
            at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            proof = f"{finding.observed or finding.proof} Remembered from {self.owner}, {at}."
            digests = {key} | {_file_key(key, paths) for paths in finding.noticed}
            await parts.db.write(attempts.store_proof, sorted(digests), finding.proved, proof)
        return finding

    async def _recall(self, key: str, trial: Trial, changed_paths: list[str]) -> "ProofMemory":
        """Return the memory of which changed files a check has noticed before."""
        read = self.parts.db.read
        remembered_proof = await read(attempts.find_proof, key)
        if remembered_proof is None or not remembered_proof["proved"]:
            return ProofMemory()
        decisive = trial.decisive(changed_paths)
        # A noticed file proves nothing about work that removes the file.
        existing = [path for path in decisive if path in trial.held]
        groups = {_file_key(key, existing): existing}
        if len(existing) <= _MOST_RECALLED:
            for path in existing:
                groups[_file_key(key, [path])] = [path]
        proofs = dict[str, str]()
        for row in await read(attempts.list_proofs, sorted(groups)):
            for path in groups[row["digest"]]:
                proofs[path] = row["proof"]
        return ProofMemory(remembered_proof["proof"], decisive, proofs)

    async def _find_shadows(
        self, trial: Trial, changed_paths: list[str], others: list[str]
    ) -> list[str]:
        """Return new modules that replace installed ones which older tests import.

        others are the changed files that are neither tests nor settings. Tests may also be older
        than the module that they test: then the check fails on the base, and nothing is returned.
        """
        judges = trial.judges
        new = [path for path in others if path in trial.held and path not in trial.before]
        modules = {path: judges.modules(path) for path in new}
        names = set[str]().union(*modules.values())
        if not names or trial.base is None:
            return []
        older = trial.before & trial.held - set(changed_paths)
        imports = set[str]()
        for path in sorted(older):
            if path.endswith(".py") and judges.judges(path):
                text = await self.parts.workspaces.read_start(self.owner, path, _MOST_LEADING)
                imports |= imported_modules(text)
        names &= imports
        if names:
            names -= await asyncio.to_thread(_modules_of, judges, trial.before)
        shadows = [path for path in new if not names.isdisjoint(modules[path])]
        if shadows and await trial.passes_on_base(changed_paths):
            return shadows
        return []

    async def _try(
        self, trial: Trial, changed_paths: list[str], suspects: Suspects, memory: "ProofMemory"
    ) -> TrialFinding | None:
        """Run the check in copies; skip the files that it has noticed before.

        If the work changed tests, a remembered proof counts only if the check passes with those of
        the base. The copy is removed at the end, but not when the daemon stops: its process
        continues.
        """
        parts = self.parts
        finding = None
        async with parts.workspaces.copying(self.owner):
            try:
                if suspects.all:
                    finding = await trial.find_changed_judges(suspects)
                    if finding is None and memory.is_enough:
                        finding = TrialFinding(True, memory.proof, is_earlier=True)
                if finding is None:
                    finding = await trial.find_blindness(changed_paths, memory.proofs)
            except TrialStopped:
                finding = None
            except (Tampered, LimitReached):
                await parts.workspaces.remove_copy(self.owner)
                raise
            # Not after any other error: if the daemon stops, a process continues in the copy.
            failpoint("proof_before_removal")
            await parts.workspaces.remove_copy(self.owner)
        return finding

    async def _list_changed(self) -> list[str]:
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
        """Run the check in a copy; a process that began before a crash has its copy already."""
        if name not in await self.parts.processes(self.place.owner):
            await self.parts.workspaces.copy(
                self.owner, content.changed, content.base, garbled_paths=content.garbled
            )
        failpoint("proof_before_execute")
        place = self.place.in_copy(self.parts.workspaces.copy_path(self.owner))
        return (await self.execute(name, command, timeout_s, place))[1]


@dataclass(frozen=True)
class ProofMemory:
    """The files that a check has noticed in earlier work, with the proofs."""

    # The proof of the command as such; None if there is none.
    general: str | None = None
    # The files of this work that the check must look at, and the proofs for noticed ones.
    decisive: Sequence[str] = ()
    proofs: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_enough(self) -> bool:
        """Return whether the check has noticed each file that it must look at."""
        return self.general is not None and self.proofs.keys() >= set(self.decisive)

    @property
    def proof(self) -> str:
        """Return the proofs as one or two sentences."""
        return join_proofs(self.proofs.values()) or self.general or ""


def _file_key(key: str, paths: Sequence[str]) -> str:
    """Return the key for a proof that a check noticed these files."""
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


def _doubt_changed_files(result: CheckResult, paths: list[str]) -> CheckResult:
    proof = f"While it ran {format_files(paths)} changed: it may not have seen the commit."
    return _doubt(result, proof, changed_meanwhile=paths)


def _doubt(result: CheckResult, proof: str, **paths: list[str]) -> CheckResult:
    return result.model_copy(update={"proved": False, "proof": proof, **paths})


def _is_newer(path: str, ns: int) -> bool:
    try:
        return os.lstat(path).st_ctime_ns > ns
    except OSError:
        return False
