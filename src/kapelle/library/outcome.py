"""How a team's work ended, and what can be done with it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kapelle.domain.errors import Conflict
from kapelle.library.ledger import Spent
from kapelle.patterns.team_roles import TeamResult
from kapelle.workspaces import Workspaces
from kapelle.workspaces.sync import OwnLoop

Status = Literal["completed", "budget", "failed", "needs_input"]

AUTHOR = ("Kapelle", "kapelle@localhost")


@dataclass(frozen=True)
class TeamOutcome:
    """The end of a run.

    completed: verified and approved; budget: something of the budget was used up before that;
    failed: something else went wrong; needs_input: questions are open, and resume takes the token.
    """

    status: Status
    reason: str
    result: TeamResult | None = None
    branch: str | None = None
    commit: str | None = None
    worktree: Path | None = None
    """Where the branch is checked out; None in place, and when nothing came of the run."""
    questions: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    spent: Spent = field(default_factory=Spent)
    run_id: str = ""
    home: Path | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        return self.status == "completed"

    @property
    def iterations(self) -> int:
        return len(self.result.iterations) if self.result else 0

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
        message = f"Merge {self.branch}\n\nRun: {self.run_id}"
        loop, workspaces = OwnLoop("kapelle-merge"), Workspaces(self.home, *AUTHOR)
        try:
            merged = loop.run(workspaces.merge(self.run_id, into, message, expected=self.commit))
            loop.run(workspaces.remove(self.run_id))
            return merged.commit
        finally:
            loop.close()
            workspaces.close()

    def remove(self) -> None:
        """Remove the worktree; the branch stays, and what is not on it goes to the archive."""
        if self.home is None or self.worktree is None:
            return
        loop, workspaces = OwnLoop("kapelle-remove"), Workspaces(self.home, *AUTHOR)
        try:
            loop.run(workspaces.discard(self.run_id))
        finally:
            loop.close()
            workspaces.close()
