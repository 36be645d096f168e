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
        description="Scope: global, project:NAME, or the id of a task or run, for its family. "
        "Default: your own family; global without one."
    ),
]
NoteKey = Annotated[Name, Field(description="Key, for example results/step1.")]
Version = Annotated[int, Field(ge=0, le=2**53)]
ExpectedVersion = Annotated[
    Version | None,
    Field(description="Version that the note must have; 0: the note must not exist."),
]


class NoteSpec(Spec):
    """A value to store under a key."""

    key: NoteKey
    value: Text = Field(max_length=MAX_VALUE)
    scope: NoteScope = None
    expected_version: ExpectedVersion = None


class NoteFilter(Spec):
    """Filter for the notes of a scope."""

    scope: NoteScope = None
    prefix: Annotated[Text, Field(max_length=200)] = ""
    limit: Limit = 50
    cursor: Annotated[Name | None, Field(description="next_cursor of the previous page.")] = None


class NoteWatch(Spec):
    """Notes to wait for: all of the keys, or, without keys, any change under the prefix."""

    keys: list[NoteKey] = Field(default=[], max_length=100)
    prefix: Annotated[Text, Field(max_length=200)] = ""
    scope: NoteScope = None
    equals: Annotated[Text | None, Field(max_length=MAX_VALUE)] = None
    after: Annotated[Version, Field(description="Wait for changes after this version.")] = 0
    timeout_s: WaitSeconds = 25


class Note(Record):
    """A stored note. Every write and deletion in a database gets a higher version."""

    scope: str
    key: str
    version: int
    # Left out in lists.
    value: str | None = None
    size: int
    deleted: bool = False
    # "person", or the id of the run or attempt that wrote it; then the attempt's task.
    author: str
    task_id: str | None
    updated_at: datetime


class NotesChanged(Record):
    """Result of a wait for notes; met is false after a timeout: repeat the request."""

    met: bool
    notes: list[Note]
