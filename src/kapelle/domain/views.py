"""What the daemon tells besides tasks, runs and schedules: changes, usage, agents, itself."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from kapelle.domain.learning import Learning
from kapelle.domain.needs import NeedKind
from kapelle.domain.specs import Name, RepositoryPath, Text
from kapelle.domain.task import CheckResult, Delivery, Record

LoginSource = Literal["task", "settings", "environment", "stored", "login", "none"]
By = Literal["agent", "model", "project", "task", "run", "template", "outcome", "day"]
IdPrefix = Annotated[Text | None, Field(max_length=100)]
MomentText = Annotated[
    Text | None, Field(max_length=100, description="An ISO date or time; UTC without an offset.")
]


class ReportFilter(Record):
    """The time that a report is about; by default the last 24 hours."""

    since: MomentText = None
    until: MomentText = None
    project: Name | None = None
    repository: RepositoryPath | None = None  # any directory in it, or its name


class WorkView(Record):
    """What is told of a task or run wherever it is named."""

    id: str
    title: str
    status: str
    reason: str | None
    verified: bool | None


class ReportPart(WorkView):
    """A task or run inside a run; next is what to type about it."""

    cost_usd: float | None
    next: str


class NextCommand(Record):
    command: str
    does: str


class ReportEntry(WorkView):
    """What became of one task or run, and what to type next."""

    asked: str
    need: NeedKind | None  # why it needs a person now
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
    changed: bool | None  # whether done work changed a file
    merged: bool
    delivery: Delivery | None
    parts: list[ReportPart]
    next: list[NextCommand]


class ReportView(Record):
    """What was begun, went on or ended in a time; cost is that of every attempt begun in it."""

    since: datetime
    until: datetime
    entries: list[ReportEntry]
    left_out: int
    learnings: list[Learning]  # of agents, which later agents are told
    needs_total: int  # all that needs a person now, whenever it began
    cost: "UsageSum"
    markdown: str


class BatchView(Record):
    """A saved list of work; problem says why what stands there is none."""

    name: str
    items: list[dict[str, Any]]
    problem: str | None
    markdown: str
    csv: str
    version: int
    updated_at: datetime


class DiffView(Record):
    patch: str
    stat: str
    files: list[str]
    truncated: bool = False


class MergeView(Record):
    """The merge of a task or run, by its id; while it is under way, phase says what it is at."""

    id: str
    status: Literal["merged", "under_way"]
    base: str | None
    commit: str | None = None
    already: bool = False
    checkout_updated: str | None = None
    # Those that were made on the result because the base had moved.
    checks: list[CheckResult] = Field(default=[])
    phase: str | None = None
    # Whether it changed .kapelle of a repository that was trusted, and now is not.
    trust_dropped: bool = False
    signed: bool = False
    # The hooks of the repository that git would have run, and Kapelle did not.
    hooks_not_run: list[str] = Field(default=[])
    # Whether only the repository's own configuration asks for signatures, which is not followed.
    signature_missing: bool = False
    # Whether git knows no user.name and user.email, so that the commit is by Kapelle.
    identity_missing: bool = False


class UndoView(Record):
    """An undone merge: the branch went back, or a commit on it reverts the merge."""

    id: str
    base: str
    commit: str
    how: Literal["moved_back", "reverted"]
    checkout_updated: str | None = None


class Comment(Record):
    """What somebody said to a pull request, of a file where there is a path."""

    # Of its kind and its number at the forge: review-7.
    id: str
    author: str
    text: str
    path: str | None
    url: str | None
    at: datetime


class PullRequestView(Record):
    """The pull request of a task or run, as its forge tells it now, with what was said to it."""

    id: str
    delivery: Delivery
    comments: list[Comment] = Field(default=[])


class AttemptFile(Record):
    """A picture of what an agent saw."""

    attempt: int
    name: str
    bytes: int


class MergePreview(Record):
    """How the merge of a task or run would go: how many commits its branch is ahead of the base and
    behind it, files in conflict, files with uncommitted changes that are in the way, whether the
    result is other than what was checked, and what else keeps it from being merged."""

    id: str
    base: str
    ahead: int
    behind: int
    already: bool
    conflicts: list[str]
    dirty: list[str]
    check_again: bool
    problem: str | None
    doubts: list[str] = Field(default=[])  # why a check that passed does not verify it


Standing = Literal["not_needed", "trusted", "changed", "not_trusted"]


class Project(Record):
    """What work belongs to, with how many tasks and runs it has."""

    name: str
    directories: list[str]  # the repositories of which it is the current one
    created_at: datetime
    archived_at: datetime | None
    work: int
    open: int


class MovedRepository(Record):
    """A repository that is gone from its old place, and one with the same commits."""

    old: str
    new: str


class RelocationView(MovedRepository):
    """The rows and worktrees of a moved repository that follow it, by kind."""

    tasks: int
    runs: int
    schedules: int
    templates: int
    learnings: int
    projects: int
    worktrees: int
    problems: list[str]  # of worktrees that could not be linked to the new place
    # None if the repository was not trusted at its old place.
    trust: Standing | None


class NotifyView(Record):
    """What came of telling a person something by one way."""

    way: Literal["webhook", "command"]
    problem: str | None


class TrustItem(Record):
    """A setting, or a file, of a repository that would be executed or would reach what is."""

    name: str
    text: str


class TrustView(Record):
    """What a repository could execute, and whether it may; difference is what changed since."""

    directory: str
    status: Standing
    digest: str
    trusted_at: datetime | None
    items: list[TrustItem]
    difference: list[str]


class IntegrationAnswer(Record):
    """What another system answered; truncated if there was more."""

    answer: Any
    truncated: bool = False


class PruneView(Record):
    """The tasks and runs that were archived, or would be, and what of the disk is free by that."""

    dry_run: bool
    archived: list[str]
    # Attempts and runs whose files are put into one archive each, which a dry run does not weigh.
    packed: int
    bytes: int
    inodes: int


class OutputHits(Record):
    """Where a text stands in the output of an attempt; null when it was searched to its end."""

    attempt: int
    offsets: list[int]
    next_offset: int | None


class UsageSum(Record):
    """What some attempts used together; input_tokens includes cached_tokens.

    cost_usd is the sum of the costs that are known, null when none is. unknown_cost counts the
    attempts that used tokens of an unknown price, unreported those that told nothing at all, and
    verified those whose result was.
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
    """Which attempts are added up, and by which of their properties; times are of their start."""

    by: By = "agent"
    across: By | None = None  # a second one: a row for each pair
    agent: Name | None = None
    model: Name | None = None
    task: IdPrefix = None
    run: IdPrefix = None


class UsageRow(UsageSum):
    """The sum of one key, which is null for attempts without such a property."""

    key: str | None
    across: str | None = None
    title: str | None = None  # of a task


class UsageReport(Record):
    by: By
    across: By | None = None
    rows: list[UsageRow]
    total: UsageSum


class LoginView(Record):
    """Where an agent's credential comes from; its value is never shown."""

    source: LoginSource
    variable: str | None
    variables: list[str]
    needed: bool
    verified_at: datetime | None


class PausedModel(Record):
    """A model whose limit is used up while others of its account are not; "default" is that of an
    agent that was told of none."""

    model: str
    until: datetime
    reason: str


class AccountWindow(Record):
    """A limit of an account as its provider told it last; used is the share of it, None where it
    was not told or is over since."""

    name: str
    used: float | None
    resets_at: datetime | None
    told_at: datetime


class AgentView(Record):
    name: str
    type: str
    installed: str | None
    default: bool
    status: str
    problem: str | None
    hint: str | None
    model: str | None
    capabilities: dict[str, bool]
    login: LoginView
    tested: str | None
    paused_until: datetime | None
    paused_reason: str | None
    paused_models: list[PausedModel]
    windows: list[AccountWindow]


class DaemonView(Record):
    version: str
    pid: int
    started_at: datetime
    home: str
    url: str
    database: str
    full_text: bool = True  # whether its SQLite can search
    running: int
    max_attempts: int
    queued: int
    runs_under_way: int
    runs_queued: int
    held: str | None


class Finding(Record):
    """One thing that was examined; broken means that no work starts."""

    name: str
    state: Literal["ok", "warning", "broken"]
    text: str
    hint: str | None = None


class DoctorView(Record):
    """What was found in a directory; ok if nothing is broken."""

    ok: bool
    findings: list[Finding]


class PatternView(Record):
    name: str
    summary: str
    origin: str
    spec_schema: dict[str, Any]
    # Of one that is not, only what its file says is known.
    trusted: bool = True
    is_broken: bool = False  # its file cannot be used, and the summary says why


class RestingView(WorkView):
    """A task or run that has ended, or that waits for a person."""

    question: str | None
    result: Any


class WaitView(Record):
    resting: list[RestingView]
    pending: list[str]


class SayView(Record):
    """Whether an agent is told at once, or when its present attempt has ended."""

    id: str
    told: Literal["now", "next_attempt"]


class PersonMessage(Record):
    """What a person said to a task: a hint begins an attempt, an answer ends a question, a message
    is for an agent at work. Refused is one that no agent has read, for the task has ended."""

    id: str
    kind: Literal["hint", "answer", "message"]
    text: str
    question: str | None = None  # the question that it answers
    state: Literal["waiting", "delivered", "refused"]
    attempt: int | None = None  # the number of the attempt that it belongs to, once it has begun
    at_work: bool = False  # whether the attempt's agent was at work when it was said
    at: datetime


SearchKind = Literal["prompt", "message", "result", "output", "commit", "learning", "note"]


class Hit(Record):
    """Some text in its context, and where it stands: in an attempt's output the byte at which its
    line begins, and the Last-Event-ID behind which its transcript goes on with that line."""

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
    """What was found: learnings, notes, then work, the newest first; complete is false while some
    ended work is not indexed."""

    hits: list[Hit]
    complete: bool
