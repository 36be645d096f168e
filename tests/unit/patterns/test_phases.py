"""How the phases of runs are asked and checked, with a context that plays what happens."""

from typing import Any, cast

import pytest

from kapelle.domain.specs import CheckSpec
from kapelle.domain.states import Stopper, TaskStatus
from kapelle.patterns import registry
from kapelle.patterns.context import Context
from kapelle.patterns.results import Checked, TaskResult
from kapelle.patterns.tracks import TracksSpec
from kapelle.patterns.workflow import WorkflowSpec
from kapelle.patterns.workflow.phases import Phases, WorkflowBlocked
from kapelle.patterns.workflow.plan import WorkflowResult


class Played:
    """A context whose tasks were stopped or completed in turn, and that keeps what it was asked
    for."""

    def __init__(self, *stoppers: Stopper | None) -> None:
        self.stoppers, self.asked = list(stoppers), list[str]()

    async def task(self, _prompt: str, *, agent: str, **_fields: Any) -> TaskResult:
        self.asked.append(agent)
        stopper = self.stoppers.pop(0)
        status = TaskStatus.CANCELLED if stopper else TaskStatus.COMPLETED
        # A person may type any reason; it decides nothing.
        reason = "makes way for another agent: one is rate-limited"
        return TaskResult(
            id="task_1", status=status, reason=reason, agent=agent, stopped_by=stopper
        )

    async def commit(self, _message: str) -> str:
        return "0" * 40

    async def check(self, *_checks: CheckSpec) -> Checked:
        return Checked(checks=[])

    async def revert(self, commit: str) -> None:
        self.asked.append(commit)


async def test_what_a_person_cancels_is_given_to_nobody_else() -> None:
    two = {"task": "x", "directory": "/", "implementers": ["one", "two"]}
    spec = WorkflowSpec.model_validate(two)
    for stopper in (Stopper.RATE_LIMIT, Stopper.INPUT):
        limited = Played(stopper, None)
        phases = Phases(cast(Context, limited), spec, WorkflowResult())
        assert (await phases.call("implement", "x")).agent == "two"
    for stopper in set(Stopper) - {Stopper.RATE_LIMIT, Stopper.INPUT}:
        cancelled = Played(stopper)
        phases = Phases(cast(Context, cancelled), spec, WorkflowResult())
        with pytest.raises(WorkflowBlocked) as blocked:
            await phases.call("implement", "x")
        assert (blocked.value.code, cancelled.asked) == ("agents", ["one"])


async def test_what_checks_leave_is_undone_before_the_first_commit_too() -> None:
    ctx, spec = Played(), WorkflowSpec(task="x", directory="/")
    phases = Phases(cast(Context, ctx), spec, WorkflowResult())
    assert await phases.verify([CheckSpec(command="touch left")]) == []
    assert ctx.asked == ["0" * 40]


def test_categories_of_tracks_are_separated_by_commas_and_blanks() -> None:
    spec = TracksSpec(directory="/", tracks={"rest": "", "ui": "forms, pages"})
    assert [spec.track_of(name) for name in ("forms", "pages", "api")] == ["ui", "ui", "rest"]


@pytest.mark.parametrize(
    ("name", "roles"),
    {
        "best-of": {"judge"},
        "debate": {"state", "minutes", "act", "verify", "refine"},
        "loop": {"judge"},
        "orchestrate": {"conduct", "judge"},
        "tracks": {"implement", "verify", "fix"},
        "workflow": {"assess", "review", "implement", "repair"},
    }.items(),
)
def test_a_repository_may_say_otherwise_what_any_role_is_told(name: str, roles: set[str]) -> None:
    found = registry.find_shipped(name)
    assert found is not None
    assert set(found.prompts) == roles
