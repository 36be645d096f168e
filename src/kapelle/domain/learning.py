"""A learning, what work taught somebody: what may be said of it, what is kept, its Markdown."""

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from kapelle.domain.options import argument, command
from kapelle.domain.specs import Directory, Name, Spec, Text, field
from kapelle.domain.task import Limit, Record

MOST_REPORTED = 5  # by one task
LearningScope = Literal["project", "global"]
LearningStatus = Literal["reported", "kept", "discarded"]
LearningId = Annotated[str, StringConstraints(pattern="^learning_[0-9a-z]{26}$")]
Title = Annotated[Name, StringConstraints(strip_whitespace=True)]
Content = Annotated[Text, StringConstraints(strip_whitespace=True, min_length=1, max_length=10_000)]
ProjectPath = Annotated[
    str, StringConstraints(min_length=1, max_length=4000, pattern=r"^[^\x00-\x1f\x7f]*$")
]


class LearningSpec(Spec):
    """Something that later work should know; of a project it is told to that one's work alone."""

    model_config = ConfigDict(
        json_schema_extra=command("Keep something that agents should know in later tasks.")
    )

    title: Title = Field(
        description="what it is about, in one line",
        json_schema_extra=argument("TITLE", "What it is about, in one line."),
    )
    content: Content = Field(
        description="what was learned: the fact, and how to use it",
        json_schema_extra=argument("CONTENT", "What was learned; - reads it from stdin."),
    )
    tags: list[Name] = field([], "a word to find it by", "--tag", metavar="TAG", max_length=10)
    scope: LearningScope = field(
        "project", "whose work it helps: this project's, or everybody's", hidden=True,
        flags={"--global": ("global", "For the work of every project.")},
    )  # fmt: skip
    project: ProjectPath | None = field(
        None, "the project; else that of the directory: its name, or the repository's path",
        metavar="NAME", complete="project",
    )  # fmt: skip
    directory: Directory | None = field(None, "a directory of the project", hidden=True)


class LearningEdit(Spec):
    """What is to be changed of a learning; the rest stays."""

    title: Title | None = None
    content: Content | None = None
    tags: Annotated[list[Name], Field(max_length=10)] | None = None
    scope: LearningScope | None = None
    project: ProjectPath | None = None


class Learning(Record):
    id: LearningId
    title: str
    content: str
    tags: list[str]
    scope: LearningScope
    project: str | None  # of a global one, the project that it comes from
    status: LearningStatus
    reason: str | None = None  # why it was discarded, or how it was judged
    author: str  # the agent that said it, or person
    task_id: str | None
    created_at: datetime
    changed_at: datetime


class LearningFilter(Record):
    """Which learnings are listed: with a query the best first, else the newest; a project's are
    its own and the global ones. cursor is the last id of the page before."""

    query: Annotated[str, Field(max_length=1000)] | None = None
    project: ProjectPath | None = None
    directory: Directory | None = None  # one of the project
    tag: Name | None = None
    status: LearningStatus = "kept"
    limit: Limit = 50
    cursor: LearningId | None = None


def format_markdown(learnings: Iterable[Learning]) -> str:
    """Learnings as one page, from which they can be read back."""
    return "\n".join(["# Learnings\n", *map(_section, learnings)])


def _section(learning: Learning) -> str:
    facts = learning.model_dump(mode="json", exclude={"title", "content"})
    # Two hyphens would end the comment.
    told = json.dumps(facts, ensure_ascii=False).replace("--", "-\\u002d")
    # What is a heading in the text is none of the page.
    text = re.sub(r"^(\\*## )", r"\\\1", learning.content, flags=re.MULTILINE)
    return f"## {learning.title}\n<!-- {told} -->\n\n{text}\n"


def parse_markdown(text: str) -> list[dict[str, Any]]:
    """The fields of the learnings on a page; one that a person wrote has a heading and a text."""
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        facts = re.match(r"<!-- (\{.*\}) -->\n", rest)
        try:
            told = json.loads(facts[1]) if facts else {}
        except ValueError as error:
            raise ValueError(f"below `## {title}`, {error}") from None
        content = re.sub(r"^\\(\\*## )", r"\1", rest[facts.end() if facts else 0 :], flags=re.M)
        found.append({**told, "title": title, "content": content.strip()})
    return found
