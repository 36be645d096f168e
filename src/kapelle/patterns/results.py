"""What a pattern is told about what it started; each is kept as JSON, so it survives a crash."""

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from kapelle.domain.failures import FailureClass
from kapelle.domain.json_schema import resolve_references
from kapelle.domain.states import RunStatus, Stopper, TaskStatus
from kapelle.domain.task import CheckResult, Record, Task

_TAIL = 4_000


class WorkResult(Record):
    """How a task or a run ended, and what it left in a worktree of its own."""

    id: str
    status: TaskStatus | RunStatus
    reason: str | None = None
    title: str = ""
    directory: str = ""
    base_commit: str | None = None
    commit: str | None = None
    cost_usd: float | None = None
    verified: bool | None = None

    @property
    def ok(self) -> bool:
        return self.status == TaskStatus.COMPLETED

    @property
    def changed(self) -> bool:
        """Whether it left a commit of its own; always false in place."""
        return self.commit is not None and self.commit != self.base_commit


class RunResult(WorkResult):
    """How a run inside a run ended."""

    status: RunStatus
    result: Any = None


class TaskResult(WorkResult):
    """How a task ended. A failed one is a result like any other, never an exception."""

    status: TaskStatus
    text: str = ""  # the agent's last answer
    branch: str | None = None
    failed_checks: list[CheckResult] = Field(default=[])
    agent: str = ""
    failure: FailureClass | None = None  # of the last attempt
    stopped_by: Stopper | None = None  # who or what cancelled it

    @classmethod
    def of(cls, task: Task) -> "TaskResult":
        costs = [attempt.usage.cost_usd for attempt in task.attempts if attempt.usage]
        known = [cost for cost in costs if cost is not None]
        same = {"id", "status", "reason", "verified", "directory", "title", "stopped_by"}
        return cls(
            **{name: getattr(task, name) for name in same},
            **{name: getattr(task.workspace, name) for name in ("branch", "base_commit", "commit")},
            text=task.result or "",
            failed_checks=[check for check in task.checks if not check.passed],
            cost_usd=sum(known) if known else None,
            agent=task.attempts[-1].agent if task.attempts else task.agent,
            failure=task.attempts[-1].failure if task.attempts else None,
        )


class Combined(Record):
    """What a task's branch holds with the run's merged into it, and the files that conflict."""

    commit: str
    conflicts: list[str] = Field(default=[])


class Checked(Record):
    """What checks found, in their order."""

    checks: list[CheckResult]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> list[CheckResult]:
        return [check for check in self.checks if not check.passed]


class Scored(Record):
    """A number, or why there is none."""

    value: float | None
    output: str
    problem: str | None = None


class Merged(Record):
    """Whether a task's branch is in the run's; otherwise why it is not."""

    commit: str | None
    problem: str | None = None
    conflict: bool = False
    elsewhere: bool = False
    """Whether the task worked in another repository, where there is nothing to merge into."""

    @property
    def ok(self) -> bool:
        return self.commit is not None


class Failed(Exception):
    """Raised by a pattern: its run failed, for this reason and with this result.

    limit names the field of the specification whose limit was reached, if that can be raised.
    """

    def __init__(self, reason: str, result: Any = None, limit: str | None = None) -> None:
        super().__init__(reason)
        self.reason = str(reason)
        self.result = result
        self.limit = limit


class UnusableAnswer(Failed):
    """Raised where an agent answered twice, and neither answer could be read."""


# Not the 7 of build-7, which is a part of a name.
_NUMBER = re.compile(r"(?<![\w.-])[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def read_score(printed: str, output: str) -> Scored:
    """The number in the last line that is not empty; output is what is kept of all it printed."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    value = _number(lines[-1]) if lines else None
    if value is not None:
        return Scored(value=value, output=output)
    if lines:
        shown = f"{lines[-1][:200]!r}"
    else:
        shown = "nothing"
    problem = f"the last line of the score command is {shown}, not a number"
    return Scored(value=None, output=output, problem=problem)


def _number(line: str) -> float | None:
    """The number that a line is, or the only one in it."""
    found = _NUMBER.findall(line.replace("\N{MINUS SIGN}", "-"))
    if len(found) != 1:
        return None
    try:
        value = float(found[0].replace("_", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Decision(BaseModel):
    done: bool = Field(description="whether the work is done")
    reasoning: str = Field(default="", description="why, and what is missing, in a few sentences")


class Rating(BaseModel):
    score: float = Field(description="the score", allow_inf_nan=False)
    reasoning: str = Field(default="", description="why, and what would make it better")


_FINITE = TypeAdapter(Annotated[float, Field(strict=True, allow_inf_nan=False)])


@dataclass(frozen=True)
class Judgement:
    """passed is for conditions, score for numbers; output is what the next iteration is told."""

    passed: bool
    score: float | None
    output: str
    problem: str | None = None

    @staticmethod
    def require(schema: dict[str, Any], *, scored: bool) -> None:
        """Raise ValueError unless a schema for a judge's answer asks for what decides."""
        asked = resolve_references(schema).get("properties", {})
        wanted = ("score",) if scored else ("done", "continue")
        if scored:
            kinds = {"number", "integer"}
        else:
            kinds = {"boolean"}
        found = [asked[name] for name in wanted if name in asked]
        types = [part.get("type", kinds) if isinstance(part, dict) else kinds for part in found]
        if not any(kinds & {*([one] if isinstance(one, str) else one)} for one in types):
            if scored:
                kind = "a number"
            else:
                kind = "true or false"
            raise ValueError(
                f"eval_schema must have the property {wanted[0]}, {kind}, which decides"
            )

    @classmethod
    def read(cls, found: dict[str, Any], text: str, *, scored: bool) -> "Judgement":
        """What a judge's answer decides; raises Failed if it does not."""
        if scored:
            try:
                return cls(True, _FINITE.validate_python(found.get("score")), text)
            except ValidationError:
                why = f"the judge's answer has no number named score: {text[:300]}"
                raise Failed(why) from None
        done = found.get("done", None if "continue" not in found else not found["continue"])
        if not isinstance(done, bool):
            raise Failed(f"the judge's answer has no true or false named done: {text[:300]}")
        return cls(done, None, text, None if done else text)


def fenced(output: str) -> str:
    """The end of what was printed, as an agent is shown it."""
    return f"~~~\n{output[-_TAIL:]}\n~~~"
