"""Views of tasks and runs: reports, diffs, merges, pull requests, messages and search results."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from kapelle.domain.learning import Learning
from kapelle.domain.needs import NeedKind
from kapelle.domain.task import CheckResult, Delivery, Record
from kapelle.domain.usage import UsageSum


class WorkView(Record):
    """Common fields of a task or run in reports and answers."""

    id: str
    title: str
    status: str
    reason: str | None
    verified: bool | None


class ReportPart(WorkView):
    """A task or run inside a run; next is the command to type for it."""

    cost_usd: float | None
    next: str


class NextCommand(Record):
    """A command to type next, and its effect."""

    command: str
    does: str


class ReportEntry(WorkView):
    """Result of one task or run, with the commands to type next."""

    asked: str
    need: NeedKind | None  # why the work needs a person now
    repository: str | None
    group: Literal["needs", "failed", "done", "open"]
    question: str | None
    pattern: str | None
    project: str | None
    schedule_id: str | None
    directory: str
    created_at: datetime
    ended_at: datetime | None
    attempts: int
    cost_usd: float | None
    evidence: list[CheckResult]
    scores: list[str]  # the commands that scored a run
    branch: str | None
    base: str | None
    changed: bool | None  # whether completed work changed a file
    merged: bool
    delivery: Delivery | None
    parts: list[ReportPart]
    next: list[NextCommand]


class ReportView(Record):
    """Work that was active in a time span; cost is the cost of the attempts started in it."""

    since: datetime
    until: datetime
    entries: list[ReportEntry]
    left_out: int
    learnings: list[Learning]  # reported by agents, and part of the prompts of later agents
    needs_total: int  # the number of all needs now, also of earlier work
    cost: UsageSum
    markdown: str


class BatchView(Record):
    """A saved list of work; problem explains why the stored text is not a valid list."""

    name: str
    items: list[dict[str, Any]]
    problem: str | None
    markdown: str
    csv: str
    version: int
    updated_at: datetime


class DiffView(Record):
    """Changes of a task or run."""

    patch: str
    stat: str
    files: list[str]
    truncated: bool = False


class MergeView(Record):
    """The merge of a task or run; phase is the current phase while the merge is under way."""

    id: str
    status: Literal["merged", "under_way"]
    base: str | None
    commit: str | None = None
    already: bool = False
    checkout_updated: str | None = None
    # The checks that ran on the merged result because the base had moved.
    checks: list[CheckResult] = Field(default=[])
    phase: str | None = None
    # Whether the merge changed .kapelle, so that the repository is no longer trusted.
    trust_dropped: bool = False
    signed: bool = False
    # Hooks of the repository that git would have run. Kapelle never runs them.
    hooks_not_run: list[str] = Field(default=[])
    # Whether the repository's own configuration asks for signatures, which Kapelle ignores.
    signature_missing: bool = False
    # Whether git has no user.name and user.email, so that Kapelle is the author of the commit.
    identity_missing: bool = False


class UndoView(Record):
    """An undone merge: the branch was moved back, or a new commit reverts the merge."""

    id: str
    base: str
    commit: str
    how: Literal["moved_back", "reverted"]
    checkout_updated: str | None = None


class Comment(Record):
    """A comment on a pull request, or on a file of it if there is a path."""

    # The kind and the number of the comment at the forge, for example review-7.
    id: str
    author: str
    text: str
    path: str | None
    url: str | None
    at: datetime


class PullRequestView(Record):
    """The pull request of a task or run in its current state, with its comments."""

    id: str
    delivery: Delivery
    comments: list[Comment] = Field(default=[])


class AttemptFile(Record):
    """A screenshot that an agent saved."""

    attempt: int
    name: str
    bytes: int


class MergePreview(Record):
    """Preview of the merge of a task or run.

    ahead and behind are numbers of commits relative to the base. conflicts are files in conflict,
    and dirty are files with uncommitted changes that prevent the merge. check_again is true if the
    result differs from what was checked. problem is any other obstacle.
    """

    id: str
    base: str
    ahead: int
    behind: int
    already: bool
    conflicts: list[str]
    dirty: list[str]
    check_again: bool
    problem: str | None
    doubts: list[str] = Field(default=[])  # why a passed check does not verify the work


class RestingView(WorkView):
    """A task or run that has ended or waits for a person."""

    question: str | None
    result: Any


class WaitView(Record):
    """Result of a wait for tasks and runs."""

    resting: list[RestingView]
    pending: list[str]


class SayView(Record):
    """Delivery of a message: to the running agent now, or in the next attempt."""

    id: str
    told: Literal["now", "next_attempt"]


class PersonMessage(Record):
    """A person's text for a task.

    A hint starts an attempt, an answer ends a question, and a message is for an active agent. A
    refused text was read by no agent before the task ended.
    """

    id: str
    kind: Literal["hint", "answer", "message"]
    text: str
    question: str | None = None  # the question that it answers
    state: Literal["waiting", "delivered", "refused"]
    attempt: int | None = None  # the number of its attempt, once that has started
    at_work: bool = False  # whether the agent was active when the text was sent
    at: datetime


class OutputHits(Record):
    """Positions of a text in the output of an attempt; next_offset is null at its end."""

    attempt: int
    offsets: list[int]
    next_offset: int | None


SearchKind = Literal["prompt", "message", "result", "output", "commit", "learning", "note"]


class Hit(Record):
    """A search result with its context and position.

    In the output of an attempt, offset is the first byte of the line, and position the
    Last-Event-ID after which the transcript continues with that line.
    """

    kind: SearchKind
    id: str
    title: str
    project: str | None
    text: str
    attempt: int | None = None
    stream: Literal["out", "err"] | None = None
    offset: int | None = None
    position: str | None = None


class SearchView(Record):
    """Search results: learnings, notes, then work, the newest first.

    complete is false while some ended work is not indexed yet.
    """

    hits: list[Hit]
    complete: bool
