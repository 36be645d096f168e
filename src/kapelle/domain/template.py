"""A template: a person's own guidelines for work of one kind, and what came of that work."""

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
    """Guidelines that a prompt gets as a section of its own, and who does such work where."""

    model_config = ConfigDict(
        json_schema_extra=command("Keep guidelines for work of one kind, and who does it where.")
    )

    name: TemplateName = Field(
        description="what it is called: letters, digits, dots, _ and -",
        json_schema_extra=argument("NAME", "What it is called, such as bugfix."),
    )
    guidelines: Annotated[Text, StringConstraints(min_length=1, max_length=100_000)] = Field(
        description="what agents are told under ## Guidelines",
        json_schema_extra=argument(
            "GUIDELINES", "What agents are told under ## Guidelines; - reads it.", file=_FILE
        ),
    )
    agent: Name | None = field(
        None, "who does such work", "-a", metavar="NAME", kind="agent", complete="agents"
    )
    model: Name | None = field(None, "its model", "-m", metavar="NAME", complete="model")
    directory: Directory | None = field(
        None, "where such work is done, where nothing else is said", "-C", kind="directory"
    )


class TemplateRecord(Record):
    """What came of the tasks that used a template and succeeded or failed, each counted for the
    model of its last attempt; cost, turns and duration are means."""

    template: str
    agent: str
    model: str | None
    tasks: int
    completed: int
    success_rate: float
    cost_usd: float | None  # of those whose cost is known
    turns: float | None
    duration_s: float | None  # under way


class Template(TemplateSpec):
    """A template as it is kept, and what came of it for each model."""

    created_at: datetime
    changed_at: datetime
    records: list[TemplateRecord]
