"""Run the team pattern without a daemon, in the calling process."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from kapelle.domain.errors import InvalidInput, KapelleError, LimitReached, format_problems
from kapelle.domain.ids import new_id
from kapelle.domain.specs import CheckSpec
from kapelle.library.agent import Agent
from kapelle.library.budget import Account, Budget
from kapelle.library.context import LocalContext, OrchestratorParts
from kapelle.library.interaction import (
    Auto,
    Interaction,
    Observer,
    ProgressCaller,
    TeamSuspended,
    ThreadCaller,
)
from kapelle.library.outcome import Answers, RunState, TeamOutcome, decode, encode
from kapelle.library.worktree import AUTHOR, create_or_dismiss, library_home
from kapelle.patterns.context import StoppedBy
from kapelle.patterns.results import Failed
from kapelle.patterns.team import TeamSpec, team
from kapelle.patterns.team.progress import TeamResult
from kapelle.workspaces import Workspaces, is_git_directory
from kapelle.workspaces.repository import find_checkout


class Orchestrator:
    """Has agents plan a goal, work on it in parallel, verify and review it, until it is reached.

    One agent has all roles, unless planner, worker or reviewer name another one. In a git
    repository all work is done in worktrees and ends on a branch; the checkout stays untouched.
    With isolate=False, and outside of git, one worker at a time works in the directory itself. All
    other fields of a TeamSpec are keywords, too: max_workers, system_prompt, max_questions …
    """

    def __init__(
        self,
        agent: Agent,
        *,
        planner: Agent | None = None,
        worker: Agent | None = None,
        reviewer: Agent | None = None,
        budget: Budget | None = None,
        cwd: Path | str | None = None,
        isolate: bool = True,
        verify: str | Sequence[str | CheckSpec] = (),
        verify_timeout_s: float = 600,
        interaction: Interaction | None = None,
        observer: Observer | None = None,
        base: str | None = None,
        env: Mapping[str, str] | None = None,
        home: Path | str | None = None,
        **team: Any,
    ) -> None:
        self._agents = {
            "planner": planner or agent,
            "worker": worker or agent,
            "reviewer": reviewer or agent,
        }
        self._budget = budget or Budget()
        self._directory = _directory(cwd or agent.cwd or Path.cwd())
        self._isolated = isolate and find_checkout(self._directory) is not None
        self._team = team
        self._verify = _checks(verify, verify_timeout_s)
        self._interaction = interaction or Auto()
        self._observer = observer
        self._base = base
        self._env = dict(env or {})
        self._home = library_home(home)
        self._spec(RunState("anything", ()), asks=False)

    def run(self, goal: str, success_criteria: str | Sequence[str] | None = None) -> TeamOutcome:
        """Work on a goal to its end; raise KapelleError only if the work cannot start."""
        return self._serve(_new_state(goal, success_criteria))

    async def run_async(
        self, goal: str, success_criteria: str | Sequence[str] | None = None
    ) -> TeamOutcome:
        """Work on a goal in the running event loop; a cancellation ends all agents."""
        return await self._perform(_new_state(goal, success_criteria))

    def resume(self, token: str, answers: Answers) -> TeamOutcome:
        """Resume a run with the status needs_input, with an answer to each of its questions."""
        return self._serve(decode(token).with_answers(answers))

    async def resume_async(self, token: str, answers: Answers) -> TeamOutcome:
        """Resume a run in the running event loop."""
        return await self._perform(decode(token).with_answers(answers))

    def _serve(self, state: RunState) -> TeamOutcome:
        caller = ThreadCaller(self._interaction, self._observer)
        return caller.serve(self._perform(state, caller))

    async def _perform(self, state: RunState, caller: ProgressCaller | None = None) -> TeamOutcome:
        """Execute one run, from its first worktree to its outcome."""
        # A resumed run reads its answers even if nobody can be asked again.
        spec = self._spec(state, asks=self._interaction.asks or bool(state.answers))
        run_id = new_id("run")
        workspace = None
        with ExitStack() as until_it_ends:
            # A run in place needs a home only for its own duration.
            home = self._home
            if not self._isolated:
                home = Path(until_it_ends.enter_context(TemporaryDirectory(prefix="kapelle-")))
            workspaces = until_it_ends.enter_context(closing(Workspaces(home, *AUTHOR)))
            if self._isolated:
                workspace = await create_or_dismiss(workspaces, run_id, self._directory, spec.base)
            account = Account(self._budget, state.spent)
            caller = caller or ProgressCaller(self._interaction, self._observer)
            parts = OrchestratorParts(self._agents, account, caller, workspaces, self._env)
            context = LocalContext(run_id, spec, parts, state, workspace)
            branch = workspace.branch if workspace else None
            context.report("run.started", goal=spec.goal, branch=branch)
            try:
                outcome = await _outcome(context, spec)
            finally:
                commit = await context.finish()
        outcome = replace(outcome, run_id=run_id, spent=account.spent)
        if workspace is not None and commit is not None:
            path = Path(workspace.path)
            outcome = replace(outcome, branch=branch, commit=commit, worktree=path, home=self._home)
        context.report(f"run.{outcome.status}", reason=outcome.reason, commit=outcome.commit)
        return outcome

    def _spec(self, state: RunState, *, asks: bool) -> TeamSpec:
        values: dict[str, Any] = {
            "directory": str(self._directory),
            "goal": state.goal,
            "success_criteria": list(state.success_criteria),
            "verify": self._verify,
            "max_iterations": self._budget.max_iterations,
            "max_task_retries": self._budget.max_task_retries,
            **self._team,
            "ask": asks,
            "confirm": self._interaction.confirms,
            "base": self._base,
            **{role: role for role in self._agents},
        }
        try:
            return TeamSpec.model_validate(values)
        except ValidationError as error:
            raise InvalidInput(f"{format_problems(error)}.") from None


def _directory(place: Path | str) -> Path:
    directory = Path(place).expanduser().resolve()
    if not directory.is_dir():
        raise InvalidInput(f"There is no directory {directory}.")
    if is_git_directory(directory):
        raise InvalidInput(f"{directory} belongs to git itself.", hint="Name a checkout of it.")
    return directory


def _checks(verify: str | Sequence[str | CheckSpec], timeout_s: float) -> list[CheckSpec]:
    """Return the checks; those given as plain commands get the timeout."""
    try:
        items = [verify] if isinstance(verify, str) else verify
        checks = []
        for item in items:
            check = CheckSpec.model_validate(item)
            if item == check.command:
                check = CheckSpec(command=item, timeout_s=timeout_s)
            checks.append(check)
        return checks
    except ValidationError as error:
        raise InvalidInput(f"verify: {format_problems(error)}.") from None


def _new_state(goal: str, criteria: str | Sequence[str] | None) -> RunState:
    texts = [criteria] if isinstance(criteria, str) else list(criteria or ())
    if not goal.strip():
        raise InvalidInput("The goal is empty.")
    return RunState(goal, tuple(text for text in texts if text.strip()))


async def _outcome(context: LocalContext, spec: TeamSpec) -> TeamOutcome:
    """Execute the pattern, and return its end as an outcome."""
    try:
        result = await team(context, spec)
        return TeamOutcome("completed", result.reason, result)
    except TeamSuspended:
        return _suspended_outcome(context)
    except LimitReached as error:
        return _stopped_outcome(context, str(error), "budget")
    except Failed as error:
        return _stopped_outcome(context, str(error), "failure")
    except KapelleError as error:
        partial = _partial_result(context, error.message, "failure")
        return TeamOutcome("failed", error.with_hint, partial)


def _suspended_outcome(context: LocalContext) -> TeamOutcome:
    """Return the outcome of a run with open questions."""
    state = context.resumable_state()
    count = len(state.questions)
    reason = "a question is open" if count == 1 else f"{count} questions are open"
    return TeamOutcome(
        "needs_input",
        reason,
        _partial_result(context, reason, "failure"),
        questions=state.questions,
        token=encode(state),
    )


def _stopped_outcome(context: LocalContext, reason: str, stopped_by: StoppedBy) -> TeamOutcome:
    """Return the outcome of a run that a limit or a failure ended."""
    partial = _partial_result(context, reason, stopped_by)
    if partial is not None and partial.stopped_by in {"budget", "max_iterations"}:
        return TeamOutcome("budget", reason, partial)
    return TeamOutcome("failed", reason, partial)


def _partial_result(context: LocalContext, reason: str, stopped_by: StoppedBy) -> TeamResult | None:
    """Return the result that the pattern has reached so far, if any."""
    if context.state is None:
        return None
    result = context.state.result(reason, stopped_by)
    return result if isinstance(result, TeamResult) else None
