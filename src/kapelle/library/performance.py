"""One run of a team from its first worktree to its outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kapelle.domain.errors import KapelleError, LimitReached
from kapelle.domain.ids import new_id
from kapelle.library.agent import Agent
from kapelle.library.budget import Budget
from kapelle.library.commands import Commands
from kapelle.library.desk import Desk
from kapelle.library.interaction import Suspended
from kapelle.library.ledger import Ledger
from kapelle.library.local_context import LocalContext, Surroundings
from kapelle.library.outcome import AUTHOR, TeamOutcome
from kapelle.library.token import Interlude, encode
from kapelle.library.worktrees import Worktrees
from kapelle.patterns.results import Failed
from kapelle.patterns.team import TeamSpec, team
from kapelle.patterns.team_roles import TeamResult
from kapelle.workspaces import Workspaces


@dataclass(frozen=True)
class Performance:
    """All that a run needs; play is called once."""

    spec: TeamSpec
    cast: Mapping[str, Agent]
    budget: Budget
    desk: Desk
    interlude: Interlude
    answers: Mapping[str, str]
    isolated: bool
    home: Path
    env: Mapping[str, str]

    async def play(self) -> TeamOutcome:
        run_id = new_id("run")
        if not self.isolated:
            return await self._play(run_id, None)
        workspaces = Workspaces(self.home, *AUTHOR)
        try:
            directory = Path(self.spec.directory)
            worktrees = await Worktrees.begin(workspaces, run_id, directory, self.spec.base)
            return await self._play(run_id, worktrees)
        finally:
            workspaces.close()

    async def _play(self, run_id: str, worktrees: Worktrees | None) -> TeamOutcome:
        def tell(kind: str, **facts: Any) -> None:
            self.desk.tell(kind, run_id=run_id, **facts)

        ledger = Ledger(self.budget, self.interlude.spent)
        around = Surroundings(
            cast=self.cast,
            ledger=ledger,
            commands=Commands(ledger, self.env),
            worktrees=worktrees,
            ask=self.desk.ask,
            tell=tell,
            answers=self.answers,
            remembered=dict(self.interlude.remembered),
        )
        context = LocalContext(run_id, self.spec, around)
        tell("run.started", goal=self.spec.goal, branch=worktrees.branch if worktrees else None)
        try:
            outcome = await self._outcome(context, around)
        finally:
            commit = await worktrees.finish() if worktrees else None
        outcome = replace(outcome, run_id=run_id, spent=ledger.spent)
        if worktrees is not None and commit is not None:
            outcome = replace(
                outcome,
                branch=worktrees.branch,
                commit=commit,
                worktree=worktrees.path,
                home=self.home,
            )
        tell(f"run.{outcome.status}", reason=outcome.reason, commit=outcome.commit)
        return outcome

    async def _outcome(self, context: LocalContext, around: Surroundings) -> TeamOutcome:
        try:
            done = await team(context, self.spec)
            return TeamOutcome("completed", done.reason, done)
        except Suspended:
            return self._suspended(context, around)
        except (Failed, LimitReached) as error:
            result = None
            if context.kept is not None:
                made = context.kept.result(str(error), "failure")
                result = made if isinstance(made, TeamResult) else None
            spent = around.ledger.exhausted or (
                result and len(result.iterations) == self.spec.max_iterations
            )
            return TeamOutcome("budget" if spent else "failed", str(error), result)
        except KapelleError as error:
            return TeamOutcome("failed", f"{error.message} {error.hint or ''}".strip())

    def _suspended(self, context: LocalContext, around: Surroundings) -> TeamOutcome:
        questions = tuple(context.unanswered)
        token = encode(
            replace(
                self.interlude,
                questions=questions,
                answers=dict(self.answers),
                remembered=around.remembered,
                spent=around.ledger.spent,
            )
        )
        several = len(questions) != 1
        reason = f"{len(questions)} questions are open" if several else "a question is open"
        return TeamOutcome("needs_input", reason, questions=questions, token=token)
