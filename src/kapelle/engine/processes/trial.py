"""Run one check in temporary copies of a worktree, and draw conclusions from the results.

Some files of a copy are those of the base, or hold garbage. The results show whether the check
passes only with its changed judges, and whether it looks at the work.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kapelle.domain.errors import Conflict, WorkspaceError
from kapelle.domain.specs import CheckSpec
from kapelle.domain.text import format_files
from kapelle.engine.processes.judges import Judges, is_test
from kapelle.runner.process_dir import ProcessEnd

# Limits of the number of files that are garbled one by one, and of the total time for that.
_MOST_ALONE = 8
_ALONE_S = 300.0
_MOST_PROOFS = 2


@dataclass(frozen=True)
class CopyContent:
    """The files of a copy that differ from the worktree.

    The changed files hold garbage, or their content in the base, if one is named. The garbled files
    hold garbage in addition.
    """

    changed: Sequence[str]
    base: str | None = None
    garbled: Sequence[str] = ()


# Runs the check in a copy of this content, within a limit in seconds.
RunInCopy = Callable[[str, CopyContent, float], Awaitable[ProcessEnd]]


@dataclass(frozen=True)
class TrialFinding:
    """The conclusion about a check; a lasting one is remembered for other work."""

    proved: bool | None
    proof: str
    is_lasting: bool = False
    is_earlier: bool = False  # it was found out for other work
    passes_only_with: list[str] = field(default_factory=list)
    overlooks: list[str] = field(default_factory=list)
    # The conclusion of this trial alone, and the files or groups of files whose garbage the check
    # noticed in it.
    observed: str = ""
    noticed: list[list[str]] = field(default_factory=list)


class TrialStopped(Exception):
    """Somebody stopped the work during a trial."""


@dataclass(frozen=True)
class Suspects:
    """Changed tests and settings that may be the reason why a check passes."""

    # Files from before the work, and new files that lead the check.
    altered: list[str]
    new_tests: list[str]

    @property
    def all(self) -> list[str]:
        return [*self.altered, *self.new_tests]


@dataclass(frozen=True)
class Trial:
    """The runs of one check in copies of the worktree, each with other files."""

    check: CheckSpec
    judges: Judges
    base: str | None
    limit_s: float
    # Paths of files and links in the base, and in the commit.
    before: frozenset[str]
    held: frozenset[str]
    run_in_copy: RunInCopy

    def suspects(self, changed_files: list[str]) -> Suspects:
        """Return the changed files that may be the reason why the check passes."""
        before = self.before
        judging = [path for path in changed_files if self.judges.judges(path)]
        existing = [
            path
            for path in changed_files
            if path in before and (self.judges.judges(path) or self.judges.is_setting(path))
        ]
        if not existing and not any(map(is_test, before)):
            # The first tests of a repository replace none.
            return Suspects([], [])
        new_paths = [path for path in judging if path not in before]
        leading, tests = _partition(new_paths, self.judges.leads)
        new_tests = [path for path in tests if not self.judges.asks_for(path, before)]
        return Suspects(existing + leading, new_tests)

    async def passes_on_base(self, changed_files: list[str]) -> bool:
        """Return whether the check passes on the base, without the work."""
        try:
            return await self._reverted_passes("untouched", changed_files)
        except (WorkspaceError, Conflict, OSError):
            return False

    async def find_changed_judges(self, suspects: Suspects) -> TrialFinding | None:
        """Run the check with the tests and settings of the base; return None if it passes."""
        suspicious = suspects.all
        try:
            if await self._reverted_passes("judged", suspects.all):
                return None
            # New tests are blamed only if the altered ones do not explain the result.
            has_both = suspects.altered and suspects.new_tests
            if has_both and not await self._reverted_passes("older", suspects.altered):
                suspicious = suspects.altered
            copy_fault = await self._find_fault_of_copy()
            fault = copy_fault.proof if copy_fault else None
        except (WorkspaceError, Conflict, OSError) as error:
            fault = f"Not proved: {error}"
        if all(map(is_test, suspicious)):
            kind = "tests"
        else:
            kind = "tests or settings"
        proof = f"It passes only with {kind} changed by this work: {format_files(suspicious)}."
        if fault is not None:
            # The work itself may cause the failure in a copy.
            names = format_files(suspicious)
            proof = f"This work changed {kind} that decide about it: {names}. {fault}"
        return TrialFinding(False, proof, passes_only_with=suspicious)

    def decisive(self, changed_files: list[str]) -> list[str]:
        """Return those of the changed files that the check must look at."""
        # The failure of a removed test proves nothing about the rest.
        candidates = [path for path in changed_files if path in self.held or not is_test(path)]
        if not candidates:
            return []
        return self.judges.decisive(candidates)

    async def find_blindness(
        self, changed_files: list[str], earlier_proofs: Mapping[str, str] = MappingProxyType({})
    ) -> TrialFinding | None:
        """Run the check with garbage in the changed files; return None if nothing was changed.

        `earlier_proofs` holds the proofs of the files that the check noticed in earlier work; they
        are not tried again.
        """
        files = self.decisive(changed_files)
        if not files:
            proof = f"Not proved: all that was done is to remove {format_files(changed_files)}."
            if changed_files:
                return TrialFinding(None, proof)
            return None
        existing = [path for path in files if path in self.held]
        earlier, untried = _partition(existing, earlier_proofs.__contains__)
        try:
            alone, together = await self._find_noticed(untried)
            fresh = [*alone, *together]
            state = "holds nonsense"
            overlooked_files = [path for path in files if path not in {*earlier, *fresh}]
            # With the content of the base: for a changed mode, or a file that only has to exist.
            if overlooked_files and not await self._reverted_passes("reverted", overlooked_files):
                if not earlier and not fresh:
                    fresh = overlooked_files
                    state = "is as it was before"
                overlooked_files = []
            noticed_files = [*earlier, *fresh]
            if not noticed_files:
                return _blind(files, is_garbled=bool(existing))
            doubt = await self._find_blinding(changed_files, overlooked_files, noticed_files)
            if doubt is not None:
                return doubt
            if (copy_fault := await self._find_fault_of_copy()) is not None:
                return copy_fault
        except (WorkspaceError, Conflict, OSError) as error:
            return TrialFinding(None, f"Not proved: {error}")
        # A failure with garbage in its own settings proves nothing about other work.
        is_lasting = bool(fresh) and not all(map(self.judges.is_beside, files))
        observation = f"It fails where {format_files(fresh)} {state}." if fresh else ""
        earlier_proof = join_proofs(earlier_proofs[path] for path in earlier)
        proof = " ".join(filter(None, (observation, earlier_proof)))
        groups = [[path] for path in alone]
        # The check may have noticed any file of a group, so only the same group counts again.
        if together and set(existing) == set(noticed_files):
            groups.append(existing)
        return TrialFinding(
            True,
            proof,
            is_lasting,
            is_earlier=bool(earlier),
            overlooks=overlooked_files,
            observed=observation,
            noticed=groups,
        )

    async def _find_blinding(
        self, changed_files: list[str], overlooked_files: list[str], noticed_files: list[str]
    ) -> TrialFinding | None:
        """Return a doubt if the work hides files from the check that it looked at before.

        The noticed files are then only the obstacle: a module in place of the runner's, or a
        plugin.
        """
        existing = [path for path in overlooked_files if path in self.before and path in self.held]
        if self.base is None or not existing:
            return None
        if (await self._run("sight", changed_files, revert=True, garbled=existing)).succeeded:
            return None
        # A failure on the unchanged base proves nothing, unless the check noticed no other file of
        # the base.
        notices_others = any(path in self.before for path in noticed_files)
        if notices_others and not await self._reverted_passes("base", changed_files):
            return None
        names = format_files(existing)
        others = format_files(noticed_files)
        proof = (
            f"It does not look at {names} any more, which it did before this work: see {others}."
        )
        return TrialFinding(
            False, proof, passes_only_with=noticed_files, overlooks=overlooked_files
        )

    async def _find_noticed(self, paths: list[str]) -> tuple[list[str], list[str]]:
        """Return the files whose garbage the check notices alone, then those of groups.

        Files are tried one by one while they are few.
        """
        alone = list[str]()
        together = list[str]()
        rest = list(paths)
        spent_s = 0.0
        if 1 < len(paths) <= _MOST_ALONE:
            while rest and spent_s < _ALONE_S:
                path = rest.pop(0)
                end = await self._run(f"garbled/{len(rest)}", [path])
                spent_s += end.duration_s
                if not end.succeeded:
                    alone.append(path)
        # A failure with new files proves nothing about the files of the base.
        existing, new = _partition(rest, self.before.__contains__)
        for what, group in (("garbled", existing), ("garbled/new", new)):
            if group and not (await self._run(what, group)).succeeded:
                if len(group) == 1:
                    alone += group
                else:
                    together += group
        return alone, together

    async def _find_fault_of_copy(self) -> TrialFinding | None:
        """Return why a failure in a copy proves nothing: the unchanged work fails there too."""
        limit_s = self.check.timeout_s
        end = await self._run("intact", [], limit_s=limit_s)
        if end.succeeded:
            return None
        how = end.describe_end(limit_s)
        proof = f"Not proved: in a copy of the workspace it fails by itself ({how})."
        return TrialFinding(None, proof, is_lasting=True)

    async def _reverted_passes(self, what: str, paths: list[str]) -> bool:
        return (await self._run(what, paths, revert=True)).succeeded

    async def _run(
        self,
        what: str,
        paths: list[str],
        *,
        revert: bool = False,
        garbled: Sequence[str] = (),
        limit_s: float | None = None,
    ) -> ProcessEnd:
        content = CopyContent(paths, self.base if revert else None, garbled)
        if limit_s is None:
            limit_s = self.limit_s
        end = await self.run_in_copy(what, content, limit_s)
        if end.ended_by == "stop":
            raise TrialStopped
        return end


def _partition(
    paths: Iterable[str], condition: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Return the paths that meet a condition, then the others."""
    matches: list[str] = []
    others: list[str] = []
    for path in paths:
        if condition(path):
            matches.append(path)
        else:
            others.append(path)
    return matches, others


def join_proofs(proofs: Iterable[str]) -> str:
    """Return proofs as a text: each sentence once, and only the first of many."""
    return " ".join(list(dict.fromkeys(proofs))[:_MOST_PROOFS])


def _blind(files: list[str], *, is_garbled: bool) -> TrialFinding:
    names = format_files(files)
    if not is_garbled:
        return TrialFinding(
            None, f"Not proved: it passes as well where {names} is as it was before."
        )
    proof = f"This check also passes with garbage in {names}, so it does not test this change."
    return TrialFinding(False, proof, overlooks=files)
