"""Results of a pattern's calls: how tasks, runs, checks and merges ended.

The journal stores each result as JSON, so that it survives a crash.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import Field

from kapelle.domain.failures import FailureClass
from kapelle.domain.states import RunStatus, Stopper, TaskStatus
from kapelle.domain.task import CheckResult, Record, Task

# Characters of an output that an agent gets to read.
_TAIL = 4_000


class WorkResult(Record):
    """The end of a task or run, and the commit that it left in a worktree of its own."""

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
        """Tell whether the work left a commit of its own; always false in place."""
        return self.commit is not None and self.commit != self.base_commit


class RunResult(WorkResult):
    """The end of a run inside a run."""

    status: RunStatus
    result: Any = None


class TaskResult(WorkResult):
    """The end of a task. A failed task is a result like any other, never an exception."""

    status: TaskStatus
    text: str = ""  # the agent's last answer
    branch: str | None = None
    failed_checks: list[CheckResult] = Field(default=[])
    agent: str = ""
    failure: FailureClass | None = None  # of the last attempt
    stopped_by: Stopper | None = None  # who or what cancelled it

    @classmethod
    def of(cls, task: Task) -> "TaskResult":
        costs = []
        for attempt in task.attempts:
            if attempt.usage and attempt.usage.cost_usd is not None:
                costs.append(attempt.usage.cost_usd)
        last = task.attempts[-1] if task.attempts else None
        return cls(
            id=task.id,
            status=task.status,
            reason=task.reason,
            title=task.title,
            directory=task.directory,
            base_commit=task.workspace.base_commit,
            commit=task.workspace.commit,
            cost_usd=sum(costs) if costs else None,
            verified=task.verified,
            text=task.result or "",
            branch=task.workspace.branch,
            failed_checks=select_failed(task.checks),
            agent=last.agent if last else task.agent,
            failure=last.failure if last else None,
            stopped_by=task.stopped_by,
        )


class Combined(Record):
    """The commit of a task's branch with the run's merged into it, and the conflicting files."""

    commit: str
    conflicts: list[str] = Field(default=[])


class Checked(Record):
    """The results of checks, in their order."""

    checks: list[CheckResult]

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> list[CheckResult]:
        return select_failed(self.checks)


class Scored(Record):
    """The number of a score command, or the reason why there is none."""

    value: float | None
    output: str
    problem: str | None = None


class Merged(Record):
    """The result of a merge into the run's branch: the commit, or the problem.

    elsewhere means that the task worked in another repository, so there is nothing to merge into.
    """

    commit: str | None
    problem: str | None = None
    conflict: bool = False
    elsewhere: bool = False

    @property
    def ok(self) -> bool:
        return self.commit is not None


class Failed(Exception):
    """Raised by a pattern to fail its run with this reason and result.

    limit names the field of the specification whose limit was reached, if a person can raise it.
    """

    def __init__(self, reason: str, result: Any = None, limit: str | None = None) -> None:
        super().__init__(reason)
        self.reason = str(reason)
        self.result = result
        self.limit = limit


class UnusableAnswer(Failed):
    """Raised when an agent answered twice and neither answer could be read."""


# Not the 7 of build-7, which is a part of a name.
_NUMBER = re.compile(r"(?<![\w.-])[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def read_score(text: str, output: str) -> Scored:
    """Return the number in the last line of a text that is not empty.

    output is the part of the text to keep in the result.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    value = _parse_number(last)
    if value is not None:
        return Scored(value=value, output=output)
    quote = f"{last[:200]!r}" if lines else "nothing"
    problem = f"the last line of the score command is {quote}, not a number"
    return Scored(value=None, output=output, problem=problem)


def _parse_number(line: str) -> float | None:
    """Return the only number in a line; None if there are several or none."""
    numbers = _NUMBER.findall(line.replace("\N{MINUS SIGN}", "-"))
    if len(numbers) != 1:
        return None
    try:
        value = float(numbers[0].replace("_", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def select_failed(checks: Sequence[CheckResult]) -> list[CheckResult]:
    """Return the checks that failed."""
    return [check for check in checks if not check.passed]


def join_names(checks: Sequence[CheckResult]) -> str:
    """Return the names of checks, separated by commas."""
    return ", ".join(check.name for check in checks)


def bullet_list(lines: Iterable[str]) -> str:
    """Return lines as a list in Markdown."""
    return "\n".join(f"- {line}" for line in lines)


def fenced(output: str) -> str:
    """Return the end of a program's output as a block of Markdown."""
    return f"~~~\n{output[-_TAIL:]}\n~~~"
