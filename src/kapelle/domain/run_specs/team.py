"""What may be asked of a team."""

from pydantic import ConfigDict, Field

from kapelle.domain.options import argument, command, option
from kapelle.domain.run_specs.base import PatternSpec, Prompt, Role, RunCheck
from kapelle.domain.specs import CheckKind, Name, Text


class TeamSpec(PatternSpec):
    """A goal: planned, worked on by several at once, verified and reviewed, again until done."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Have a team reach a goal: plan, work in parallel, verify, review, again until done.",
            "It is followed to its end unless --detach is given: exit 0 done, 1 failed, 3 input "
            "needed. With --json the run is printed when it has ended. Without a goal a terminal "
            "is asked for it.",
            foreground=True,
        )
    )

    goal: Prompt = Field(
        description="what is to be reached",
        json_schema_extra=argument(
            "GOAL",
            help="What to build; - reads it from stdin.",
            file=("--goal-file", "Read the goal from a file, or - for stdin."),
            ask="What is the goal? ",
        ),
    )
    success_criteria: list[Text] = Field(
        default=[],
        max_length=100,
        description="what must be true then; where nothing is given, the planner proposes it",
        json_schema_extra=option("--criteria", metavar="TEXT"),
    )
    verify: list[RunCheck] = Field(
        default=[],
        max_length=100,
        description="commands that must pass before a reviewer is asked",
        json_schema_extra=option(metavar="COMMAND", kind="check"),
    )
    planner: Name | None = Field(
        default=None,
        description="the agent that plans; by default the run's agent",
        json_schema_extra=option(metavar="AGENT"),
    )
    worker: Name | None = Field(
        default=None,
        description="the agent of the workers",
        json_schema_extra=option(metavar="AGENT"),
    )
    reviewer: Name | None = Field(
        default=None,
        description="the agent that reviews",
        json_schema_extra=option(metavar="AGENT"),
    )
    planner_model: Name | None = Field(
        default=None, description="the planner's model", json_schema_extra=option(metavar="NAME")
    )
    worker_model: Name | None = Field(
        default=None, description="the workers' model", json_schema_extra=option(metavar="NAME")
    )
    reviewer_model: Name | None = Field(
        default=None, description="the reviewer's model", json_schema_extra=option(metavar="NAME")
    )
    max_iterations: int = Field(
        default=4, ge=1, le=1000, description="how often it may plan, work and review"
    )
    max_workers: int = Field(
        default=4, ge=1, le=100, description="how many subgoals are worked on at the same time"
    )
    max_subgoals: int = Field(
        default=12,
        ge=1,
        le=100,
        description="the most subgoals of one plan; the next plan takes up the rest",
    )
    max_task_retries: int = Field(
        default=1, ge=0, le=100, description="how often a worker that failed is asked again"
    )
    ask: bool = Field(
        default=False,
        description="let the planner ask a person up to four questions before it begins",
        json_schema_extra=option(
            flags={"--non-interactive": (False, "It never asks; this is the default.")}
        ),
    )

    @property
    def subject(self) -> str:
        return self.goal

    @property
    def never_blocks(self) -> bool:
        return not self.ask

    @property
    def needs_git(self) -> bool:
        return any(check.kind is CheckKind.DIFF_NOT_EMPTY for check in self.verify)

    @property
    def cast(self) -> list[Role]:
        return [
            self.role(self.planner, self.planner_model),
            self.role(self.worker, self.worker_model),
            self.role(self.reviewer, self.reviewer_model),
        ]
