"""Tasks, attempts and checks, as every front end shows them."""

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
    Text,
    WorkspaceKind,
)
from kapelle.domain.states import AttemptStatus, Stopper, TaskStatus
from kapelle.domain.text import cut

ExitKind = Literal["exited", "signaled", "not_started", "lost", "tampered"]
Limit = Annotated[int, Field(ge=1, le=1000)]
TaskCursor = Annotated[str, StringConstraints(pattern="^task_[0-9a-z]{26}$")]
RunCursor = Annotated[str, StringConstraints(pattern="^run_[0-9a-z]{26}$")]
MomentText = Annotated[
    Text | None, Field(max_length=100, description="ISO date or time; UTC without an offset.")
]

# The length of texts in rows of lists.
_LONG = 300


class Record(BaseModel):
    """Output of Kapelle: frozen data that was stored or computed."""

    # Pydantic builds a class on first use: building all of them took most of the start-up time.
    model_config = ConfigDict(frozen=True, defer_build=True)


class Exit(Record):
    """How a process ended.

    lost: nobody observed the end. tampered: another process than its supervisor recorded an end.
    Neither is ever a success.
    """

    kind: ExitKind
    code: int | None = None
    signal: int | None = None


class Usage(Record):
    """Tokens, turns and cost; input_tokens includes cached_tokens, and None is an unknown cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    turns: int = 0
    cost_usd: float | None = None


class Warning(Record):
    """A warning about an attempt, one of each kind at most: stalled, long, turns, budget …"""

    at: datetime
    what: str
    text: str


class Remembered(Record):
    """A learning that was part of a prompt, with its title at that time."""

    id: str
    title: str


class Attempt(Record):
    """One try of a task by one agent."""

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
    question: str | None = None  # the question for a person with which the attempt ended
    failure: FailureClass | None
    evidence: str | None
    diagnosis: str | None
    memory: list[Remembered] | None = None  # the learnings in its prompt
    warnings: list[Warning]
    # merge: merge the base into the branch of the task
    mode: Literal["fresh", "resume", "merge"]
    # The level of the sandbox: namespaces, bubblewrap or landlock; none if it was turned off.
    confinement: str | None = None
    claimed: Literal["success", "failure"] | None
    session_id: str | None
    usage: Usage | None


# The name of the check that a pattern can read the agent's answer; only a failure is recorded.
ANSWER_CHECK = "answer"


class CheckResult(Record):
    """Result of a check, and the commit that it ran on; a built-in check has no command."""

    name: str
    passed: bool
    output: str
    duration_s: float
    command: str | None = None
    exit_code: int | None = None
    commit: str | None = None  # the commit of the worktree; work in place has none
    directory: str | None = None
    out_sha256: str | None = None  # the digest of the whole output, which may be cut here
    err_sha256: str | None = None
    # Whether the check looks at the work: False if it passes on garbled files, None if unknown.
    proved: bool | None = None
    proof: str | None = None
    proved_earlier: bool = False  # the proof comes from earlier work and still applies
    # Tests and settings changed by the work, or ignored files, without which the check fails.
    passes_only_with: list[str] = []
    # Files that changed during the check or, outside the worktree, during the work.
    changed_meanwhile: list[str] = []
    # Changed files that the check does not look at.
    overlooks: list[str] = []

    def as_row(self) -> Self:
        """Return the result for a list: with the end of the output if the check failed."""
        output = ""
        if not self.passed:
            output = self.output[-_LONG:]
        return self.model_copy(update={"output": output})

    @property
    def is_doubted(self) -> bool:
        """Return whether the check passed for a reason that a person has to review."""
        return bool(self.passes_only_with or self.changed_meanwhile)

    @property
    def verdict(self) -> str:
        """Return the name, and the missing proof if the check passed but had to be proved."""
        if not self.passed and self.exit_code == 0:
            return f"{self.name} ({self.proof})"
        return self.name


class RunningCheck(Record):
    """A check or a score command that is running; the command may be shortened."""

    name: str
    command: str
    started_at: datetime

    def words(self, now: datetime) -> str:
        return f"checking: {self.name}, {(now - self.started_at).total_seconds():.0f} s"


class WorkspaceView(Record):
    """Workspace of a task or run; a worktree that does not exist yet has no path."""

    kind: WorkspaceKind
    path: str | None
    branch: str | None
    base: str | None
    base_commit: str | None
    commit: str | None
    owner: str | None = None  # the run whose worktree the task shares
    # Whether the work is in place because there is no git repository, not because of a request.
    in_place_by_default: bool = False


class Workspace(WorkspaceView):
    """Workspace of a task or run, always with a path."""

    path: str


class MergeRefusal(Record):
    """The check that failed on the result of a merge, so that the merge was refused."""

    at: datetime
    base: str
    commit: str
    name: str
    exit_code: int | None
    output: str


class Delivery(Record):
    """Delivery of work by a merge, or by a pull request with its last known state."""

    mode: Literal["merge", "push", "pr"]  # push: merge, then push the base
    status: Literal["pending", "delivered", "failed", "nothing", "undone"]
    reason: str | None = None  # why the delivery failed or waits
    draft: bool = False  # while pending: a draft pull request of unfinished work
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
    """Results of the checks of a task when they were repeated on its commit."""

    at: datetime
    commit: str
    passed: bool
    checks: list[CheckResult]


class Work(Record):
    """Common fields of tasks and runs."""

    id: str
    title: str
    reason: str | None
    # The pending request to stop: cancel or requeue for a task; pause, cancel or abandon for a run.
    stop: Literal["cancel", "requeue", "pause", "abandon"] | None = None
    # Who cancelled or paused the work, or requested it; null if nobody did or if it is unknown.
    stopped_by: Stopper | None = None
    question: str | None = None  # the question for a person, while the work waits for input
    directory: str
    repository: str | None = None  # the top of the repository that contains the directory
    project: str | None
    schedule_id: str | None
    parent_task_id: str | None = None  # the task whose attempt started it
    workspace: WorkspaceView
    checking: RunningCheck | None = None  # the check that is running
    verified: bool | None = None  # for completed work: whether a check looked at the work
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    archived_at: datetime | None
    merged_at: datetime | None
    merge_undone_at: datetime | None = None
    # The commit of the last merge of its branch, which can be undone.
    merge_commit: str | None = None
    # The marks of a person.
    seen_at: datetime | None = None
    flagged_at: datetime | None = None
    snoozed_until: datetime | None = None
    delivery: Delivery | None = None
    need: NeedKind | None = None  # why the work needs a person now

    def as_row(self) -> Self:
        """Return the work for a list: with every long text cut."""
        # A run has no prompt and no checks, for example.
        own_fields = vars(self)
        values = {name: cut(own_fields[name], _LONG) for name in _LONG_FIELDS if name in own_fields}
        if "checks" in own_fields:
            values["checks"] = [check.as_row() for check in own_fields["checks"]]
        return self.model_copy(update=values)


class Task(Work):
    """One piece of work for one agent, with its attempts."""

    prompt: str
    agent: str
    model: str | None
    status: TaskStatus
    waiting_for: Literal["input", "rate_limit", "trust"] | None
    questions: list[Question] = []
    report: str | None = None  # the progress, in the words of the agent
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
    merge_refused: MergeRefusal | None = None  # the last refusal, if the work is unchanged
    run_id: str | None
    children: list[str] = []  # the tasks and runs that its attempts started; not in lists
    coordinate: bool = False
    interactive: bool = False  # whether a person works with the agent in a terminal
    template: str | None = None
    guidelines: str | None = None  # the guidelines of the template at submission
    tools: list[str] = []
    read_only: bool = False
    browser: bool = False
    attempts: list[Attempt]
    check_specs: list[CheckSpec] = []
    checks: list[CheckResult]
    checked_again: CheckedAgain | None = None  # not in lists
    result: str | None


class ListFilter(Record):
    """Common filter for tasks and runs."""

    project: Name | None = None
    repository: RepositoryPath | None = None  # any directory in it, or its name
    parent_task_id: TaskCursor | None = None
    archived: bool = False
    flagged: bool = False  # true: only flagged work
    light: bool = False  # true: every long text is cut
    limit: Limit = 50


class TaskFilter(ListFilter):
    """Filter for tasks, newest first; cursor is the last id of the previous page."""

    status: list[TaskStatus] | None = None
    tag: Name | None = None
    run_id: RunCursor | None = None
    nested: bool = True  # false: without the tasks of runs
    cursor: TaskCursor | None = None


class Activity(Record):
    """Last text or tool call of a running agent; it is sent to clients and not stored."""

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
    """One entry of the append-only history."""

    seq: int
    at: datetime
    kind: str
    task_id: str | None
    attempt_id: str | None
    run_id: str | None
    data: dict[str, Any]
