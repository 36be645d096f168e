"""The runs of one check in throwaway copies of a worktree, and what they tell about it.

Some files of a copy are those of the base, or hold nonsense; what the check says there tells
whether it passes only with what the work changed of it, and whether it looks at the work.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kapelle.domain.errors import Conflict, WorkspaceError
from kapelle.domain.specs import CheckSpec
from kapelle.domain.text import counted_files
from kapelle.engine.judges import Judges, is_test
from kapelle.runner.process_dir import ProcessEnd

# So many changed files are garbled one by one, for so long in all; more are garbled together.
_MOST_ALONE = 8
_ALONE_S = 300.0
_MOST_PROOFS = 2


@dataclass(frozen=True)
class CopyContent:
    """The files of a copy that differ from the worktree.

    The changed ones hold nonsense, or what they hold in the base, if one is named; the garbled
    ones hold nonsense besides.
    """

    changed: Sequence[str]
    base: str | None = None
    garbled: Sequence[str] = ()


# Runs the check in a copy of this content, within a limit in seconds.
RunInCopy = Callable[[str, CopyContent, float], Awaitable[ProcessEnd]]


@dataclass(frozen=True)
class TrialFinding:
    """What was found out about a check; it is remembered if it holds for other work too."""

    proved: bool | None
    proof: str
    is_lasting: bool = False
    passes_only_with: list[str] = field(default_factory=list)
    overlooks: list[str] = field(default_factory=list)
    # What this trial saw, without what earlier ones did, and the files or groups of files whose
    # nonsense it noticed then.
    observed: str = ""
    noticed: list[list[str]] = field(default_factory=list)


class TrialStopped(Exception):
    """Somebody stopped the work while a check was run again."""


@dataclass(frozen=True)
class Suspects:
    """Changed tests and settings that may be why a check passes."""

    # What was there before the work, and new files that lead the check.
    altered: list[str]
    new_tests: list[str]

    @property
    def all(self) -> list[str]:
        return [*self.altered, *self.new_tests]


@dataclass(frozen=True)
class Trial:
    """The runs of one check in copies of the worktree, each of which holds other files."""

    check: CheckSpec
    judges: Judges
    base: str | None
    limit_s: float
    # Paths of files and links in the base, and in the commit.
    before: frozenset[str]
    held: frozenset[str]
    run_in_copy: RunInCopy

    def suspects(self, changed: list[str]) -> Suspects:
        before = self.before
        judging = [path for path in changed if self.judges.judges(path)]
        existing = [
            path
            for path in changed
            if path in before and (self.judges.judges(path) or self.judges.is_setting(path))
        ]
        if not existing and not any(map(is_test, before)):
            # The first tests of a repository take the place of none.
            return Suspects([], [])
        added = [path for path in judging if path not in before]
        leading = [path for path in added if self.judges.leads(path)]
        tests = [path for path in added if path not in leading]
        new_tests = [path for path in tests if not self.judges.asks_for(path, before)]
        return Suspects(existing + leading, new_tests)

    async def passes_on_base(self, changed: list[str]) -> bool:
        """Run it on the base, without anything of the work."""
        try:
            return await self._reverted_passes("untouched", changed)
        except (WorkspaceError, Conflict, OSError):
            return False

    async def find_changed_judges(self, suspects: Suspects) -> TrialFinding | None:
        """Run it with the tests and settings of the base; return None if it passes with them."""
        named = suspects.all
        try:
            if await self._reverted_passes("judged", suspects.all):
                return None
            # New tests are named only where the others do not explain it.
            has_both = suspects.altered and suspects.new_tests
            if has_both and not await self._reverted_passes("older", suspects.altered):
                named = suspects.altered
            unsure = await self._find_fault_of_copy()
            fault = unsure.proof if unsure else None
        except (WorkspaceError, Conflict, OSError) as error:
            fault = f"Not proved: {error}"
        if all(map(is_test, named)):
            kind = "tests"
        else:
            kind = "tests or settings"
        proof = f"It passes only with {kind} changed by this work: {counted_files(named)}."
        if fault is not None:
            # The work itself may see to it that the check fails in a copy.
            names = counted_files(named)
            proof = f"This work changed {kind} that decide about it: {names}. {fault}"
        return TrialFinding(False, proof, passes_only_with=named)

    def decisive(self, changed: list[str]) -> list[str]:
        """Return those of the changed files that the check must look at."""
        # That a test fails which was removed says nothing about the rest.
        kept = [path for path in changed if path in self.held or not is_test(path)]
        return self.judges.decisive(kept) if kept else []

    async def find_blindness(
        self, changed: list[str], seen: Mapping[str, str] = MappingProxyType({})
    ) -> TrialFinding | None:
        """Run it where changed files hold nonsense; return None if nothing was changed.

        Files that it was seen to notice in earlier work, each with the proof, are not tried again.
        """
        files = self.decisive(changed)
        if not files:
            proof = f"Not proved: all that was done is to remove {counted_files(changed)}."
            if changed:
                return TrialFinding(None, proof)
            return None
        there = [path for path in files if path in self.held]
        earlier = [path for path in there if path in seen]
        try:
            alone, together = await self._find_noticed([path for path in there if path not in seen])
            fresh = [*alone, *together]
            state = "holds nonsense"
            overlooked = [path for path in files if path not in {*earlier, *fresh}]
            # As it was before: a mode that was changed, or a file that has to be there.
            if overlooked and not await self._reverted_passes("reverted", overlooked):
                if not earlier and not fresh:
                    fresh = overlooked
                    state = "is as it was before"
                overlooked = []
            noticed = [*earlier, *fresh]
            if not noticed:
                return _blind(files, is_garbled=bool(there))
            if (blinded := await self._find_blinding(changed, overlooked, noticed)) is not None:
                return blinded
            if (unsure := await self._find_fault_of_copy()) is not None:
                return unsure
        except (WorkspaceError, Conflict, OSError) as error:
            return TrialFinding(None, f"Not proved: {error}")
        # That it fails where what leads it holds nonsense says nothing of other work.
        is_lasting = bool(fresh) and not all(map(self.judges.is_beside, files))
        observed = f"It fails where {counted_files(fresh)} {state}." if fresh else ""
        proof = " ".join(filter(None, (observed, joined_proofs(seen[path] for path in earlier))))
        noticed_here = [[path] for path in alone]
        # Which file of a group it noticed is not known: only the same group counts again.
        if together and set(there) == set(noticed):
            noticed_here.append(there)
        return TrialFinding(
            True, proof, is_lasting, overlooks=overlooked, observed=observed, noticed=noticed_here
        )

    async def _find_blinding(
        self, changed: list[str], overlooked: list[str], noticed: list[str]
    ) -> TrialFinding | None:
        """Return a doubt if the work keeps the check from files that it looked at before.

        Then the noticed files are only what stands in the way: a module in place of the runner's,
        or a plugin of it.
        """
        existing = [path for path in overlooked if path in self.before and path in self.held]
        if self.base is None or not existing:
            return None
        if (await self._run("sight", changed, revert=True, garbled=existing)).succeeded:
            return None
        # Where it fails on the base as it is, that tells nothing, unless nothing else was noticed
        # of what was there.
        notices_others = any(path in self.before for path in noticed)
        if notices_others and not await self._reverted_passes("base", changed):
            return None
        names = counted_files(existing)
        others = counted_files(noticed)
        proof = (
            f"It does not look at {names} any more, which it did before this work: see {others}."
        )
        return TrialFinding(False, proof, passes_only_with=noticed, overlooks=overlooked)

    async def _find_noticed(self, paths: list[str]) -> tuple[list[str], list[str]]:
        """Return the files whose nonsense the check notices alone, then those of groups.

        Each is tried alone while they are few.
        """
        alone = list[str]()
        together = list[str]()
        rest = list(paths)
        spent_s = 0.0
        if 1 < len(paths) <= _MOST_ALONE:
            while rest and spent_s < _ALONE_S:
                path = rest.pop(0)
                ended = await self._run(f"garbled/{len(rest)}", [path])
                spent_s += ended.duration_s
                if not ended.succeeded:
                    alone.append(path)
        # New files that do not run say nothing of those that were there.
        existing = [path for path in rest if path in self.before]
        new = [path for path in rest if path not in self.before]
        for what, group in (("garbled", existing), ("garbled/new", new)):
            if group and not (await self._run(what, group)).succeeded:
                (alone if len(group) == 1 else together).extend(group)
        return alone, together

    async def _find_fault_of_copy(self) -> TrialFinding | None:
        """Return why a failure in a copy says nothing: it fails in one of the work as it is."""
        limit_s = self.check.timeout_s
        ended = await self._run("intact", [], limit_s=limit_s)
        if ended.succeeded:
            return None
        how = ended.ending(limit_s)
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
        else:
            limit_s = limit_s
        ended = await self.run_in_copy(what, content, limit_s)
        if ended.ended_by == "stop":
            raise TrialStopped
        return ended


def joined_proofs(proofs: Iterable[str]) -> str:
    """Return proofs as a text: each sentence once, and only the first of many."""
    return " ".join(list(dict.fromkeys(proofs))[:_MOST_PROOFS])


def _blind(files: list[str], *, is_garbled: bool) -> TrialFinding:
    names = counted_files(files)
    if not is_garbled:
        return TrialFinding(
            None, f"Not proved: it passes as well where {names} is as it was before."
        )
    proof = f"This check also passes with garbage in {names}, so it does not test this change."
    return TrialFinding(False, proof, overlooks=files)
