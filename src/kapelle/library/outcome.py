"""Hold the outcome of a team's run, merge its work, and resume a run with open questions."""

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

    completed: verified and approved. budget: a limit was reached before that. failed: an error
    ended the run. needs_input: questions are open, and resume() takes the token.
    """

    status: TeamStatus
    reason: str
    result: TeamResult | None = None
    branch: str | None = None
    commit: str | None = None
    worktree: Path | None = None
    """The directory of the branch; None if the run worked in place or changed nothing."""
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
        """The answers of the last iteration's workers."""
        if self.result:
            return self.result.final_output
        return ""

    @property
    def iterations(self) -> int:
        if self.result:
            return len(self.result.iterations)
        return 0

    def merge(self, into: str | None = None) -> str:
        """Merge the branch and remove the worktree; return the commit of the merge.

        The target is by default the branch that the run started from. A checkout of it is updated
        if the files that the work changes are clean.
        """
        if self.branch is None or self.home is None:
            raise Conflict("There is nothing to merge: this run has no branch.")
        if not self.ok:
            raise Conflict(
                f"The work is not accepted: {self.reason}",
                hint=f"To merge it as it is: git merge {self.branch}",
            )

        async def merge(workspaces: Workspaces) -> str:
            message = f"Merge {self.branch}\n\nRun: {self.run_id}"
            result = await workspaces.merge(self.run_id, into, message, expected_tip=self.commit)
            await workspaces.remove(self.run_id)
            return result.commit

        return _in_workspaces(self.home, merge)

    def remove(self) -> None:
        """Remove the worktree; keep the branch, and archive what is not committed."""
        if self.home is not None and self.worktree is not None:
            _in_workspaces(self.home, lambda workspaces: workspaces.discard(self.run_id))


def _in_workspaces(home: Path, work: Callable[[Workspaces], Awaitable[T]]) -> T:
    async def perform() -> T:
        with closing(Workspaces(home, *AUTHOR)) as workspaces:
            return await work(workspaces)

    return block_on(perform())


@dataclass(frozen=True)
class RunState:
    """The state in which a run starts or resumes."""

    goal: str
    success_criteria: tuple[str, ...]
    questions: tuple[str, ...] = ()
    answers: dict[str, str] = field(default_factory=dict)
    remembered: dict[str, str] = field(default_factory=dict)
    """Earlier answers of agents, by a digest of the request."""
    spent: Spent = NOTHING

    def with_answers(self, answers: Answers) -> "RunState":
        """Return the state with the answers; raise InvalidInput if one is missing."""
        if isinstance(answers, str):
            answers = [answers]
        if isinstance(answers, Mapping):
            by_question = answers
        elif len(answers) == len(self.questions):
            by_question = dict(zip(self.questions, answers, strict=True))
        else:
            raise InvalidInput(
                f"There are {len(self.questions)} questions, and {len(answers)} answers.",
                hint="Give one answer for each, in their order: " + " · ".join(self.questions),
            )
        for question in self.questions:
            if question not in by_question:
                raise InvalidInput(f"This question has no answer: {question}")
        own = {question: by_question[question] for question in self.questions}
        return replace(self, answers=self.answers | own)


_SHAPE = TypeAdapter(RunState)


def encode(state: RunState) -> str:
    """Return a token with which any process can resume the run.

    A token permits nothing that run() does not permit.
    """
    return base64.urlsafe_b64encode(zlib.compress(_SHAPE.dump_json(state))).decode()


def decode(token: str) -> RunState:
    """Return the state in a token; raise InvalidInput if the text is no token."""
    try:
        body = base64.b64decode(token.strip(), altchars=b"-_", validate=True)
        return _SHAPE.validate_json(zlib.decompress(body))
    except (ValueError, zlib.error):
        raise InvalidInput(
            "This is not a token of a team with open questions.",
            hint="Pass the token of an outcome with the status needs_input.",
        ) from None
