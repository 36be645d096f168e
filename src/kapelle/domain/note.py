"""A note: a text under a key that agents and people share within a scope."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from kapelle.domain.specs import Name, Spec, Text, WaitSeconds
from kapelle.domain.task import Limit, Record

MAX_VALUE = 100_000
MAX_NOTES = 1_000

NoteScope = Annotated[
    Name | None,
    Field(
        description="global, project:NAME, or an id: the family of that task or run. By default "
        "your own family; without one global."
    ),
]
NoteKey = Annotated[Name, Field(description="such as results/step1")]
Version = Annotated[int, Field(ge=0, le=2**53)]
ExpectedVersion = Annotated[
    Version | None,
    Field(description="Only if it has this version now; 0: only if there is none."),
]


class NoteSpec(Spec):
    """What is to stand under a key."""

    key: NoteKey
    value: Text = Field(max_length=MAX_VALUE)
    scope: NoteScope = None
    expected_version: ExpectedVersion = None


class NoteFilter(Spec):
    scope: NoteScope = None
    prefix: Annotated[Text, Field(max_length=200)] = ""
    limit: Limit = 50
    cursor: Annotated[Name | None, Field(description="next_cursor of the page before")] = None


class NoteWatch(Spec):
    """What is waited for: all of the keys, or, without any, something under the prefix."""

    keys: list[NoteKey] = Field(default=[], max_length=100)
    prefix: Annotated[Text, Field(max_length=200)] = ""
    scope: NoteScope = None
    equals: Annotated[Text | None, Field(max_length=MAX_VALUE)] = None
    after: Annotated[
        Version, Field(description="Only what has a higher version: what changed since.")
    ] = 0
    timeout_s: WaitSeconds = 25


class Note(Record):
    """A note as it stands; versions of one database only grow, whatever is written or deleted."""

    scope: str
    key: str
    version: int
    # Not told in lists.
    value: str | None = None
    size: int
    deleted: bool = False
    # "person", the run or the attempt that wrote it, and the attempt's task.
    author: str
    task_id: str | None
    updated_at: datetime


class NotesChanged(Record):
    """What was waited for; met is false when time was up before: call again."""

    met: bool
    notes: list[Note]
