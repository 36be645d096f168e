"""A task, its attempts and checks, as every front end shows them."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from kapelle.domain.failures import FailureClass
from kapelle.domain.needs import NeedKind
from kapelle.domain.question import Question
from kapelle.domain.specs import (
    CheckSpec,
    DepsPolicy,
    Name,
    Priority,
    RepositoryPath,
    RetrySpec,
    WorkspaceKind,
)
from kapelle.domain.states import AttemptStatus, Stopper, TaskStatus
from kapelle.domain.text import cut

ExitKind = Literal["exited", "signaled", "not_started", "lost", "tampered"]
Limit = Annotated[int, Field(ge=1, le=1000)]
TaskCursor = Annotated[str, StringConstraints(pattern="^task_[0-9a-z]{26}$")]
RunCursor = Annotated[str, StringConstraints(pattern="^run_[0-9a-z]{26}$")]


# A text of a row is cut to so much.
_LONG = 300


class Record(BaseModel):
    """Something that was stored or told; it does not change."""

    # Built when the first is made: most of a start was building what it does not use.
    model_config = ConfigDict(frozen=True, defer_build=True)


class Exit(Record):
    """How a process ended; lost means that nobody saw it end, tampered that somebody
    else than its supervisor says so; neither is ever success."""

    kind: ExitKind
    code: int | None = None
    signal: int | None = None


class Usage(Record):
    """What was used; input_tokens includes cached_tokens, and a cost of None is unknown."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    turns: int = 0
    cost_usd: float | None = None


class Warning(Record):
    """Something to look at, told once for each what: stalled, long, turns, budget, price …"""

    at: datetime
    what: str
    text: str


class Remembered(Record):
    """A learning that a prompt told, as it was called then."""

    id: str
    title: str


class Attempt(Record):
    id: str
    number: int
    status: AttemptStatus
    agent: str
    model: str | None
    model_reason: str | None
    exit: Exit | None
    started_at: datetime
    ended_at: datetime | None
    output_bytes: int
    reason: str | None
    question: str | None = None  # what it ended with, where the agent asked a person something
    failure: FailureClass | None
    evidence: str | None
    diagnosis: str | None
    memory: list[Remembered] | None = None  # the learnings that it was told
    warnings: list[Warning]
    mode: Literal["fresh", "resume", "merge"]  # merge: until its base is in its branch
    claimed: Literal["success", "failure"] | None
    session_id: str | None
    usage: Usage | None


# The name of the check that an answer for a pattern can be read; it is recorded if it failed.
ANSWER_CHECK = "answer"


class CheckResult(Record):
    """What came of a check, and what it was made on; a built-in one has no command."""

    name: str
    passed: bool
    output: str
    duration_s: float
    command: str | None = None
    exit_code: int | None = None
    commit: str | None = None  # of the worktree; what is worked on in place has none
    directory: str | None = None
    out_sha256: str | None = None  # of all that it printed, not of the part that is shown
    err_sha256: str | None = None
    # Whether it looks at the work: False if it passes where that holds nonsense, None if not known.
    proved: bool | None = None
    proof: str | None = None
    proved_earlier: bool = False  # the proof was made for other work, and holds for this as well
    # Tests and settings that the work changed, or ignored files, without which it fails.
    passes_only_with: list[str] = []
    # Files that changed while it ran or, outside of the worktree, during the work.
    changed_meanwhile: list[str] = []
    # Changed files that may hold nonsense without its noticing.
    overlooks: list[str] = []

    def as_row(self) -> Self:
        """As a list tells it: of one that failed, the end of what it printed."""
        return self.model_copy(update={"output": "" if self.passed else self.output[-_LONG:]})

    @property
    def is_doubted(self) -> bool:
        """Tell whether it passed for a reason that a person has to look at."""
        return bool(self.passes_only_with or self.changed_meanwhile)

    @property
    def verdict(self) -> str:
        """Its name; with why that is not enough, where it passed and had to be proved."""
        if not self.passed and self.exit_code == 0:
            return f"{self.name} ({self.proof})"
        return self.name


class RunningCheck(Record):
    """A check, or a command that gives a score, while it is made; the command may be cut."""

    name: str
    command: str
    started_at: datetime

    def words(self, now: datetime) -> str:
        return f"checking: {self.name}, {(now - self.started_at).total_seconds():.0f} s"


class WorkspaceView(Record):
    """Where a task or run works, as it is shown; a worktree that is not made yet has no path."""

    kind: WorkspaceKind
    path: str | None
    branch: str | None
    base: str | None
    base_commit: str | None
    commit: str | None
    owner: str | None = None  # the run whose worktree it is, where it is not its own
    # Whether there is no git repository and nobody asked for work in place.
    in_place_by_default: bool = False


class Workspace(WorkspaceView):
    path: str


class MergeRefusal(Record):
    """The check that failed on what the base would have been."""

    at: datetime
    base: str
    commit: str
    name: str
    exit_code: int | None
    output: str


class Delivery(Record):
    """What becomes of the work of a task or run, and how far that is: a merge, or a pull request
    with what its forge said of it last."""

    mode: Literal["merge", "push", "pr"]  # push: merged, and then the base is pushed
    status: Literal["pending", "delivered", "failed", "nothing", "undone"]
    reason: str | None = None  # why it is not delivered, or waits
    draft: bool = False  # while pending: a draft pull request of work as it is
    commit: str | None = None
    forge: str | None = None
    branch: str | None = None
    number: int | None = None
    url: str | None = None
    state: Literal["draft", "open", "merged", "closed"] | None = None
    ci: Literal["none", "pending", "passed", "failed"] | None = None
    updated_at: datetime | None = None


_LONG_FIELDS = ("prompt", "context", "report", "reason", "result", "spec")


class CheckedAgain(Record):
    """What the checks of a task said when they were made once more on what it committed."""

    at: datetime
    commit: str
    passed: bool
    checks: list[CheckResult]


class Work(Record):
    """What tasks and runs have in common."""

    id: str
    title: str
    reason: str | None
    # What it is to do as soon as it can: a task cancel or requeue, a run pause, cancel or abandon.
    stop: Literal["cancel", "requeue", "pause", "abandon"] | None = None
    # Who cancelled or paused it, or asks for that; null if nobody did, or if it is not known.
    stopped_by: Stopper | None = None
    question: str | None = None  # what a person is asked, while it waits for input
    directory: str
    repository: str | None = None  # the top of the one around the directory
    project: str | None
    schedule_id: str | None
    parent_task_id: str | None = None  # the task whose attempt asked for it
    workspace: WorkspaceView
    checking: RunningCheck | None = None  # the command that is being run
    verified: bool | None = None  # of a completed one: whether a check was made that is not blind
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    archived_at: datetime | None
    merged_at: datetime | None
    merge_undone_at: datetime | None = None
    # The commit of the last merge of its branch, which can be undone.
    merge_commit: str | None = None
    seen_at: datetime | None = None  # by a person, who flagged it or put it off
    flagged_at: datetime | None = None
    snoozed_until: datetime | None = None
    delivery: Delivery | None = None  # where it is to be delivered, or was
    need: NeedKind | None = None  # why it needs a person now

    def as_row(self) -> Self:
        """As a row of a list tells it: every long text in it is cut."""
        values = {name: cut(getattr(self, name, None), _LONG) for name in _LONG_FIELDS}
        values["checks"] = [one.as_row() for one in getattr(self, "checks", ())]
        return self.model_copy(update={k: v for k, v in values.items() if k in vars(self)})


class Task(Work):
    prompt: str
    agent: str
    model: str | None
    status: TaskStatus
    waiting_for: Literal["input", "rate_limit", "trust"] | None
    questions: list[Question] = []
    report: str | None = None  # how far it is, in its agent's own words
    priority: Priority
    tags: list[str]
    context: dict[str, str]
    depends_on: list[str]
    deps_policy: DepsPolicy
    continue_from: str | None
    fork_session: bool
    fallback_agents: list[str]
    timeout_s: float | None
    max_turns: int | None
    budget_usd: float | None
    retry: RetrySpec
    env: list[str]
    mcp: list[str]
    not_before: datetime | None
    merge_refused: MergeRefusal | None = None  # the last time, if it is as it was then
    run_id: str | None
    children: list[str] = []  # the tasks and runs that its attempts asked for; not in lists
    coordinate: bool = False
    interactive: bool = False  # whether a person talks to its agent in a terminal
    template: str | None = None
    guidelines: str | None = None  # what the template said when the task was asked for
    tools: list[str] = []
    read_only: bool = False
    browser: bool = False
    attempts: list[Attempt]
    check_specs: list[CheckSpec] = []  # the checks that it has
    checks: list[CheckResult]
    checked_again: CheckedAgain | None = None  # not in lists
    result: str | None


class ListFilter(Record):
    """Which of tasks or runs are listed."""

    project: Name | None = None
    repository: RepositoryPath | None = None  # any directory in it, or its name
    parent_task_id: TaskCursor | None = None
    archived: bool = False
    flagged: bool = False  # true leaves out those that are not
    light: bool = False  # as rows: every long text is cut
    limit: Limit = 50


class TaskFilter(ListFilter):
    """Which tasks are listed, newest first; cursor is the last id of the page before."""

    status: list[TaskStatus] | None = None
    tag: Name | None = None
    run_id: RunCursor | None = None
    nested: bool = True  # false leaves out those of runs
    cursor: TaskCursor | None = None


class Activity(Record):
    """What the agent of a running attempt said or did last; it is told and not kept."""

    at: datetime
    task_id: str
    attempt_id: str
    run_id: str | None
    kind: Literal["text", "tool_call"] | None
    name: str
    text: str
    data: dict[str, Any]
    usage: Usage | None
    output_bytes: int


class Event(Record):
    """One line of the append-only history."""

    seq: int
    at: datetime
    kind: str
    task_id: str | None
    attempt_id: str | None
    run_id: str | None
    data: dict[str, Any]
