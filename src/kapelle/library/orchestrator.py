"""A team without a daemon: the very pattern that the daemon runs, in the calling process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kapelle.domain.errors import InvalidInput, sentence
from kapelle.domain.specs import CheckKind, CheckSpec
from kapelle.home import Home
from kapelle.library.agent import Agent
from kapelle.library.budget import Budget
from kapelle.library.desk import CallerDesk, LoopDesk, Observer
from kapelle.library.interaction import Auto, Interaction
from kapelle.library.outcome import TeamOutcome
from kapelle.library.performance import Performance
from kapelle.library.token import Interlude, decode
from kapelle.patterns.team import TeamSpec
from kapelle.workspaces.repository import find_checkout, is_git_directory

Answers = Sequence[str] | Mapping[str, str]


class Orchestrator:
    """Has a goal planned, worked on by several at once, verified and reviewed until it is reached.

    One agent plays every part unless a part has one of its own. In a git repository all work is
    done in worktrees and ends on a branch; the checkout is not touched. With isolate=False, and
    outside of git, it is done in the directory itself, by one worker at a time.
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
        max_workers: int = 4,
        verify: str | Sequence[str | CheckSpec] = (),
        verify_timeout_s: float = 600,
        interaction: Interaction | None = None,
        observer: Observer | None = None,
        base: str | None = None,
        env: Mapping[str, str] | None = None,
        home: Path | str | None = None,
    ) -> None:
        self._cast = {
            "planner": planner or agent,
            "worker": worker or agent,
            "reviewer": reviewer or agent,
        }
        self._budget = budget or Budget()
        self._directory = _directory(cwd or agent.cwd or Path.cwd())
        self._isolated = isolate and find_checkout(self._directory) is not None
        self._max_workers = max_workers
        self._checks = _checks(verify, verify_timeout_s)
        self._interaction = interaction or Auto()
        self._observer = observer
        self._base = base
        self._env = dict(env or {})
        self._home = Path(home).expanduser() if home else Home.default().root / "library"
        self._spec(Interlude("anything", (), ()), asks=False)

    def run(self, goal: str, success_criteria: str | Sequence[str] | None = None) -> TeamOutcome:
        """Work on a goal to its end; KapelleError is raised only for what cannot be begun."""
        return self._serve(_beginning(goal, success_criteria))

    async def run_async(
        self, goal: str, success_criteria: str | Sequence[str] | None = None
    ) -> TeamOutcome:
        """The same in the event loop that is running; cancelled, it ends all its agents."""
        return await self._play(_beginning(goal, success_criteria))

    def resume(self, token: str, answers: Answers) -> TeamOutcome:
        """Go on with a run that needed input; an answer for each question, or by question."""
        return self._serve(*_taken_up(token, answers))

    async def resume_async(self, token: str, answers: Answers) -> TeamOutcome:
        return await self._play(*_taken_up(token, answers))

    def _serve(self, interlude: Interlude, answers: Mapping[str, str] | None = None) -> TeamOutcome:
        desk = CallerDesk(self._interaction, self._observer)
        return desk.serve(self._performance(interlude, answers, desk).play())

    async def _play(
        self, interlude: Interlude, answers: Mapping[str, str] | None = None
    ) -> TeamOutcome:
        desk = LoopDesk(self._interaction, self._observer)
        return await self._performance(interlude, answers, desk).play()

    def _performance(
        self,
        interlude: Interlude,
        answers: Mapping[str, str] | None,
        desk: CallerDesk | LoopDesk,
    ) -> Performance:
        # Answers that were asked for are used, whoever would be asked for more.
        asks = self._interaction.asks or answers is not None
        return Performance(
            spec=self._spec(interlude, asks=asks),
            cast=self._cast,
            budget=self._budget,
            desk=desk,
            interlude=interlude,
            answers=answers or {},
            isolated=self._isolated,
            home=self._home,
            env=self._env,
        )

    def _spec(self, interlude: Interlude, *, asks: bool) -> TeamSpec:
        values: dict[str, Any] = {
            "directory": str(self._directory),
            "goal": interlude.goal,
            "success_criteria": list(interlude.success_criteria),
            "verify": self._checks,
            "max_iterations": self._budget.max_iterations,
            "max_task_retries": self._budget.max_task_retries,
            "max_workers": self._max_workers,
            "ask": asks,
            "base": self._base,
            **{role: role for role in self._cast},
        }
        try:
            return TeamSpec.model_validate(values)
        except ValidationError as error:
            raise InvalidInput(f"{sentence(error)}.") from None


def _directory(place: Path | str) -> Path:
    directory = Path(place).expanduser().resolve()
    if not directory.is_dir():
        raise InvalidInput(f"There is no directory {directory}.")
    if is_git_directory(directory):
        raise InvalidInput(f"{directory} belongs to git itself.", hint="Name a checkout of it.")
    return directory


def _checks(verify: str | Sequence[str | CheckSpec], timeout_s: float) -> list[CheckSpec]:
    found = []
    for item in [verify] if isinstance(verify, str) else verify:
        try:
            check = CheckSpec.model_validate(item)
            if isinstance(item, str) and check.kind is CheckKind.COMMAND:
                check = CheckSpec(command=item, timeout_s=timeout_s)
        except ValidationError as error:
            raise InvalidInput(f"verify: {sentence(error)}.") from None
        if check.kind is CheckKind.NO_ERROR_IN_OUTPUT:
            raise InvalidInput(f"verify: {check.label} is about one agent's output, not the work.")
        found.append(check)
    return found


def _beginning(goal: str, criteria: str | Sequence[str] | None) -> Interlude:
    wanted = [criteria] if isinstance(criteria, str) else list(criteria or ())
    if not goal.strip():
        raise InvalidInput("The goal is empty.")
    return Interlude(goal, tuple(text for text in wanted if text.strip()), ())


def _taken_up(token: str, answers: Answers) -> tuple[Interlude, dict[str, str]]:
    interlude = decode(token)
    return interlude, interlude.answered(answers)
