"""Templates: a person's guidelines for one kind of work, and the results of that work."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from kapelle.domain.options import argument, command
from kapelle.domain.specs import Directory, Name, Spec, Text, field
from kapelle.domain.task import Record

TemplateName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)
]
_FILE = ("--guidelines-file", "Read the guidelines from a file.")


class TemplateSpec(Spec):
    """Guidelines, which become a section of prompts, with a default agent, model and directory."""

    model_config = ConfigDict(
        json_schema_extra=command("Store guidelines for one kind of work, with an agent and model.")
    )

    name: TemplateName = Field(
        description="Name: letters, digits, dots, _ and -.",
        json_schema_extra=argument("NAME", "Name of the template, for example bugfix."),
    )
    guidelines: Annotated[Text, StringConstraints(min_length=1, max_length=100_000)] = Field(
        description="Section ## Guidelines of the prompt.",
        json_schema_extra=argument(
            "GUIDELINES", "Section ## Guidelines of the prompt; - reads it from stdin.", file=_FILE
        ),
    )
    agent: Name | None = field(
        None, "Agent for such work.", "-a", metavar="NAME", kind="agent", complete="agents"
    )
    model: Name | None = field(None, "Model of the agent.", "-m", metavar="NAME", complete="model")
    directory: Directory | None = field(
        None, "Default directory of such work.", "-C", kind="directory"
    )


class TemplateRecord(Record):
    """Results of the completed and failed tasks that used a template, for one agent and model.

    A task counts for the model of its last attempt. Cost, turns and duration are means.
    """

    template: str
    agent: str
    model: str | None
    tasks: int
    completed: int
    success_rate: float
    cost_usd: float | None  # the mean of the known costs
    turns: float | None
    duration_s: float | None  # the time with an active attempt


class Template(TemplateSpec):
    """A stored template, with its results for each model."""

    created_at: datetime
    changed_at: datetime
    records: list[TemplateRecord]
