"""Usage of agents: tokens, turns and costs, as sums by agent, model, project and the like."""

from typing import Annotated, Literal

from pydantic import Field

from kapelle.domain.specs import Name, RepositoryPath, Text
from kapelle.domain.task import MomentText, Record

By = Literal["agent", "model", "project", "task", "run", "template", "outcome", "day"]

IdPrefix = Annotated[Text | None, Field(max_length=100)]


class ReportFilter(Record):
    """Time span and work of a report; default: the last 24 hours."""

    since: MomentText = None
    until: MomentText = None
    project: Name | None = None
    repository: RepositoryPath | None = None  # any directory in it, or its name


class UsageSum(Record):
    """Sum of the usage of some attempts; input_tokens includes cached_tokens.

    cost_usd is the sum of the known costs, null if none is known. unknown_cost counts attempts that
    used tokens of an unknown price, unreported those that reported no usage, and verified those
    with a verified result.
    """

    attempts: int = 0
    verified: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    turns: int = 0
    cost_usd: float | None = None
    unknown_cost: int = 0
    unreported: int = 0


class UsageFilter(ReportFilter):
    """Attempts to sum up, by their start time, and the properties to group them by."""

    by: By = "agent"
    across: By | None = None  # a second property: one row for each pair
    agent: Name | None = None
    model: Name | None = None
    task: IdPrefix = None
    run: IdPrefix = None


class UsageRow(UsageSum):
    """The sum of one key, which is null for attempts without the property."""

    key: str | None
    across: str | None = None
    title: str | None = None  # the title of a task


class UsageReport(Record):
    """Sums of usage by key, and the total."""

    by: By
    across: By | None = None
    rows: list[UsageRow]
    total: UsageSum
