"""What may be asked of best-of."""

from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from kapelle.domain.options import argument, command, option
from kapelle.domain.run_specs.base import Command, PatternSpec, Prompt, Role
from kapelle.domain.specs import CheckSpec, Name, Seconds, Spec


class CandidateSpec(Spec):
    """One who tries; as a plain string, agent or agent:model."""

    agent: Name | None = Field(default=None, description="who tries; by default the run's agent")
    model: Name | None = Field(default=None, description="the model it uses")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            agent, _, model = value.partition(":")
            return {"agent": agent or None, "model": model or None}
        return value


class BestOfSpec(PatternSpec):
    """The same task to several at once; checks sort them out, a score or a judge picks one."""

    model_config = ConfigDict(
        json_schema_extra=command(
            "Give the same task to several at once and keep the best of what they made.",
            "Each works in a worktree of its own. What fails a check is out; of the rest a score "
            "or a judge picks one.",
        )
    )

    prompt: Prompt = Field(
        description="the task that all get",
        json_schema_extra=argument(
            "PROMPT",
            help="What to do; - reads it from stdin.",
            file=("--prompt-file", "Read the prompt from a file."),
        ),
    )
    candidates: list[CandidateSpec] = Field(
        default=[],
        max_length=20,
        description="who takes part: agent, agent:model, or an object",
        json_schema_extra=option("--candidate", metavar="AGENT[:MODEL]", kind="list"),
    )
    count: int | None = Field(
        default=None,
        ge=2,
        le=20,
        description="so many tries of the one candidate or the run's agent; 2 when none is named",
        json_schema_extra=option("-n"),
    )
    checks: list[CheckSpec] = Field(
        default=[],
        max_length=100,
        description="what must pass for a candidate to be chosen",
        json_schema_extra=option("--check", metavar="COMMAND", kind="check"),
    )
    eval: Command | None = Field(
        default=None,
        description="a command whose last line is a candidate's score",
        json_schema_extra=option(metavar="COMMAND"),
    )
    direction: Literal["minimize", "maximize"] | None = Field(
        default=None,
        description="whether the smaller or the larger score wins",
        json_schema_extra=option(
            metavar="minimize|maximize",
            flags={
                "--minimize": ("minimize", "The smaller the number, the better."),
                "--maximize": ("maximize", "The larger the number, the better."),
            },
        ),
    )
    eval_timeout_s: Seconds = Field(
        default=600,
        description="the longest that eval may take",
        json_schema_extra=option("--eval-timeout", metavar="DURATION", kind="duration"),
    )
    judge: Name | None = Field(
        default=None,
        description="the agent that chooses where there is no eval; by default the run's agent",
        json_schema_extra=option(metavar="AGENT"),
    )
    judge_model: Name | None = Field(
        default=None, description="the judge's model", json_schema_extra=option(metavar="NAME")
    )

    @property
    def subject(self) -> str:
        return self.prompt

    @property
    def needs_git(self) -> bool:
        return True

    @property
    def cast(self) -> list[Role]:
        judges = [self.role(self.judge, self.judge_model)] if self.eval is None else []
        return [*(self.role(entrant.agent, entrant.model) for entrant in self.entrants), *judges]

    @property
    def entrants(self) -> list[CandidateSpec]:
        """All who take part, in order."""
        if len(self.candidates) > 1:
            return self.candidates
        return (self.candidates or [CandidateSpec()]) * (self.count or 2)

    @model_validator(mode="after")
    def _is_complete(self) -> "BestOfSpec":
        if len(self.candidates) > 1 and self.count is not None:
            raise ValueError("count goes with one candidate or none")
        if len(self.candidates) == 1 and self.count is None:
            raise ValueError("one candidate alone is no choice: name more, or a count")
        if (self.eval is None) != (self.direction is None):
            raise ValueError("eval and direction go together")
        if self.eval is not None and self.judge is not None:
            raise ValueError("either a score or a judge decides")
        return self
