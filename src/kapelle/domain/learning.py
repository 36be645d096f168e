"""A learning: a fact from earlier work for later work. Its fields, and its form in Markdown."""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from kapelle.domain.options import argument, command
from kapelle.domain.specs import Directory, Name, Spec, Text, field
from kapelle.domain.task import Limit, Record

MOST_REPORTED = 5  # learnings of one task
LearningScope = Literal["project", "global"]
LearningStatus = Literal["reported", "kept", "discarded"]
LearningId = Annotated[str, StringConstraints(pattern="^learning_[0-9a-z]{26}$")]
Title = Annotated[Name, StringConstraints(strip_whitespace=True)]
Content = Annotated[Text, StringConstraints(strip_whitespace=True, min_length=1, max_length=10_000)]
ProjectPath = Annotated[
    str, StringConstraints(min_length=1, max_length=4000, pattern=r"^[^\x00-\x1f\x7f]*$")
]


class LearningSpec(Spec):
    """A fact that agents should know in later work, of one project or of all."""

    model_config = ConfigDict(
        json_schema_extra=command("Store a fact that agents should know in later tasks.")
    )

    title: Title = Field(
        description="Subject in one line.",
        json_schema_extra=argument("TITLE", "Subject in one line."),
    )
    content: Content = Field(
        description="The fact, and how to use it.",
        json_schema_extra=argument("CONTENT", "The fact; - reads it from stdin."),
    )
    tags: list[Name] = field([], "Tags for the search.", "--tag", metavar="TAG", max_length=10)
    scope: LearningScope = field(
        "project", "Scope: the work of this project, or of every project.", hidden=True,
        flags={"--global": ("global", "Use the learning in the work of every project.")},
    )  # fmt: skip
    project: ProjectPath | None = field(
        None, "Project, by its name or the path of its repository; default: that of the directory.",
        metavar="NAME", complete="project",
    )  # fmt: skip
    directory: Directory | None = field(None, "Directory of the project.", hidden=True)


class LearningEdit(Spec):
    """Changes to a learning; fields that are left out stay as they are."""

    title: Title | None = None
    content: Content | None = None
    tags: Annotated[list[Name], Field(max_length=10)] | None = None
    scope: LearningScope | None = None
    project: ProjectPath | None = None


class Learning(Record):
    """A stored learning."""

    id: LearningId
    title: str
    content: str
    tags: list[str]
    scope: LearningScope
    project: str | None  # for a global learning: the project in which it was reported
    status: LearningStatus
    reason: str | None = None  # the judgement, or why the learning was discarded
    author: str  # the agent that reported it, or "person"
    task_id: str | None
    created_at: datetime
    changed_at: datetime


class LearningFilter(Record):
    """Filter for learnings: with a query the best match comes first, without one the newest.

    The learnings of a project include the global ones. cursor is the last id of the previous page.
    """

    query: Annotated[str, Field(max_length=1000)] | None = None
    project: ProjectPath | None = None
    directory: Directory | None = None  # a directory of the project
    tag: Name | None = None
    status: LearningStatus = "kept"
    limit: Limit = 50
    cursor: LearningId | None = None


def format_markdown(learnings: Iterable[Learning]) -> str:
    """Return learnings as one Markdown page, which `parse_markdown` reads."""
    return "\n".join(["# Learnings\n", *map(_section, learnings)])


def _section(learning: Learning) -> str:
    fields = learning.model_dump(mode="json", exclude={"title", "content"})
    # Two hyphens would end the comment.
    comment = json.dumps(fields, ensure_ascii=False).replace("--", "-\\u002d")
    # Escape headings of the text, because a heading of the page starts a new learning.
    text = re.sub(r"^(\\*## )", r"\\\1", learning.content, flags=re.MULTILINE)
    return f"## {learning.title}\n<!-- {comment} -->\n\n{text}\n"


def parse_markdown(text: str) -> list[dict[str, Any]]:
    """Return the fields of the learnings on a Markdown page.

    A learning that a person added needs only a heading and a text. Raise ValueError, with the
    heading, for a comment that is not JSON.
    """
    learnings = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, content = section.partition("\n")
        fields: dict[str, Any] = {}
        comment = re.match(r"<!-- (\{.*\}) -->\n", content)
        if comment:
            content = content[comment.end() :]
            try:
                fields = json.loads(comment[1])
            except ValueError as error:
                raise ValueError(f"below `## {title}`, {error}") from None
        content = re.sub(r"^\\(\\*## )", r"\1", content, flags=re.MULTILINE)
        learnings.append({**fields, "title": title, "content": content.strip()})
    return learnings
