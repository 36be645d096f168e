"""How a team's work ended, what can be done with it, and how a run that asks is gone on with."""

import base64
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import TypeAdapter

from kapelle.domain.budget import NOTHING, Spent
from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.library.execution import block_on
from kapelle.library.worktree import AUTHOR
from kapelle.patterns.team.progress import TeamResult
from kapelle.workspaces import Workspaces

T = TypeVar("T")
TeamStatus = Literal["completed", "budget", "failed", "needs_input"]
Answers = Sequence[str] | Mapping[str, str]


@dataclass(frozen=True)
class TeamOutcome:
    """The end of a run.

    completed: verified and approved; budget: something of the budget was used up before that;
    failed: something else went wrong; needs_input: questions are open, and resume takes the token.
    """

    status: TeamStatus
    reason: str
    result: TeamResult | None = None
    branch: str | None = None
    commit: str | None = None
    worktree: Path | None = None
    """Where the branch is checked out; None in place, and when nothing came of the run."""
    questions: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    spent: Spent = NOTHING
    run_id: str = ""
    home: Path | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        return self.status == "completed"

    @property
    def final_output(self) -> str:
        """What the workers of the last iteration said."""
        if self.result:
            return self.result.final_output
        return ""

    @property
    def iterations(self) -> int:
        if self.result:
            return len(self.result.iterations)
        return 0

    def merge(self, into: str | None = None) -> str:
        """Merge the branch, by default into the one that the run began from, and remove the
        worktree; returns the commit that holds it all.

        A checkout of that branch is moved along if it is clean where the work touches it.
        """
        if self.branch is None or self.home is None:
            raise Conflict("There is nothing to merge: no branch came of this run.")
        if not self.ok:
            raise Conflict(
                f"The work is not accepted: {self.reason}",
                hint=f"As it is, it can be merged by hand: git merge {self.branch}",
            )

        async def merge(workspaces: Workspaces) -> str:
            message = f"Merge {self.branch}\n\nRun: {self.run_id}"
            merged = await workspaces.merge(self.run_id, into, message, expected_tip=self.commit)
            await workspaces.remove(self.run_id)
            return merged.commit

        return _in_workspaces(self.home, merge)

    def remove(self) -> None:
        """Remove the worktree; the branch stays, and what is not on it goes to the archive."""
        if self.home is not None and self.worktree is not None:
            _in_workspaces(self.home, lambda workspaces: workspaces.discard(self.run_id))


def _in_workspaces(home: Path, work: Callable[[Workspaces], Awaitable[T]]) -> T:
    async def perform() -> T:
        with closing(Workspaces(home, *AUTHOR)) as workspaces:
            return await work(workspaces)

    return block_on(perform())


@dataclass(frozen=True)
class RunState:
    """Where a run begins, or goes on: its goal, what is asked, what is known, what it had used."""

    goal: str
    success_criteria: tuple[str, ...]
    questions: tuple[str, ...] = ()
    answers: dict[str, str] = field(default_factory=dict)
    remembered: dict[str, str] = field(default_factory=dict)
    """What agents had answered, by a digest of what they were asked."""
    spent: Spent = NOTHING

    def with_answers(self, given: Answers) -> "RunState":
        """The same with an answer for each question; raises InvalidInput where one is missing."""
        if isinstance(given, str):
            given = [given]
        if not isinstance(given, Mapping):
            if len(given) != len(self.questions):
                raise InvalidInput(
                    f"There are {len(self.questions)} questions, and {len(given)} answers.",
                    hint="Give one answer for each, in their order: " + " · ".join(self.questions),
                )
            given = dict(zip(self.questions, given, strict=True))
        for question in self.questions:
            if question not in given:
                raise InvalidInput(f"This question has no answer: {question}")
        new = {question: given[question] for question in self.questions}
        return replace(self, answers=self.answers | new)


_SHAPE = TypeAdapter(RunState)


def encode(state: RunState) -> str:
    """A token, with which any process can go on; nobody can do more with one than run does."""
    return base64.urlsafe_b64encode(zlib.compress(_SHAPE.dump_json(state))).decode()


def decode(token: str) -> RunState:
    """The run that a token stands for; raises InvalidInput for anything else."""
    try:
        body = base64.b64decode(token.strip(), altchars=b"-_", validate=True)
        return _SHAPE.validate_json(zlib.decompress(body))
    except (ValueError, zlib.error):
        raise InvalidInput(
            "This is not a token of a team that waits for answers.",
            hint="Give exactly the token that the outcome with status needs_input had.",
        ) from None
