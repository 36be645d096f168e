"""The JSON objects that the REST API returns, as types for a type checker.

Made by `make docs` from the schemas of docs/openapi.json: do not edit.
"""

from typing import Any, Literal, TypeAlias, TypedDict, final

AttemptStatusName: TypeAlias = Literal["running", "completed", "failed", "cancelled", "lost"]

FailureClassName: TypeAlias = Literal[
    "rate_limit",
    "overloaded",
    "authentication",
    "billing",
    "capability",
    "context_overflow",
    "tool",
    "environment",
    "out_of_memory",
    "disk_full",
    "timeout",
    "stalled",
    "limit",
    "crash",
    "session_lost",
    "checks",
    "task",
    "lost",
    "tampered",
    "unknown",
]

CheckKindName: TypeAlias = Literal["command", "diff_not_empty", "no_error_in_output", "ci"]

DepsPolicyName: TypeAlias = Literal["cancel", "run"]

OutcomeName: TypeAlias = Literal["held", "starting", "started", "skipped", "missed", "failed"]

MissedPolicyName: TypeAlias = Literal["skip", "catchup", "fail"]

NeedKindName: TypeAlias = Literal[
    "question",
    "failure",
    "delivery",
    "merge",
    "look",
    "paused",
    "flag",
]

StopperName: TypeAlias = Literal[
    "person",
    "attempt",
    "parent",
    "dependency",
    "limit",
    "rate_limit",
    "input",
    "daemon",
]

WorkspaceKindName: TypeAlias = Literal["worktree", "in_place"]

TaskStatusName: TypeAlias = Literal[
    "blocked",
    "queued",
    "running",
    "waiting",
    "completed",
    "failed",
    "cancelled",
]

PriorityName: TypeAlias = Literal["P0", "P1", "P2"]

RunStatusName: TypeAlias = Literal[
    "queued",
    "running",
    "waiting",
    "paused",
    "completed",
    "failed",
    "cancelled",
]

ScheduleStatusName: TypeAlias = Literal[
    "active",
    "paused",
    "completed",
    "failed",
    "cancelled",
    "expired",
]


@final
class AccountWindowJson(TypedDict):
    """JSON of `AccountWindow`."""

    name: str
    used: float | None
    resets_at: str | None
    told_at: str


@final
class LoginJson(TypedDict):
    """JSON of `LoginView`."""

    source: Literal["task", "settings", "environment", "stored", "login", "none"]
    variable: str | None
    variables: list[str]
    needed: bool
    verified_at: str | None


@final
class PausedModelJson(TypedDict):
    """JSON of `PausedModel`."""

    model: str
    until: str
    reason: str


@final
class AgentJson(TypedDict):
    """JSON of `AgentView`."""

    name: str
    type: str
    installed: str | None
    default: bool
    status: str
    problem: str | None
    hint: str | None
    model: str | None
    capabilities: dict[str, bool]
    login: LoginJson
    tested: str | None
    paused_until: str | None
    paused_reason: str | None
    paused_models: list[PausedModelJson]
    windows: list[AccountWindowJson]


@final
class ExitJson(TypedDict):
    """JSON of `Exit`."""

    kind: Literal["exited", "signaled", "not_started", "lost", "tampered"]
    code: int | None
    signal: int | None


@final
class RememberedJson(TypedDict):
    """JSON of `Remembered`."""

    id: str
    title: str


@final
class WarningJson(TypedDict):
    """JSON of `Warning`."""

    at: str
    what: str
    text: str


@final
class UsageJson(TypedDict):
    """JSON of `Usage`."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    turns: int
    cost_usd: float | None


@final
class AttemptJson(TypedDict):
    """JSON of `Attempt`."""

    id: str
    number: int
    status: AttemptStatusName
    agent: str
    model: str | None
    model_reason: str | None
    exit: ExitJson | None
    started_at: str
    ended_at: str | None
    output_bytes: int
    reason: str | None
    question: str | None
    failure: FailureClassName | None
    evidence: str | None
    diagnosis: str | None
    memory: list[RememberedJson] | None
    warnings: list[WarningJson]
    mode: Literal["fresh", "resume", "merge"]
    confinement: str | None
    claimed: Literal["success", "failure"] | None
    session_id: str | None
    usage: UsageJson | None


@final
class AttemptFileJson(TypedDict):
    """JSON of `AttemptFile`."""

    attempt: int
    name: str
    bytes: int


@final
class BackupJson(TypedDict):
    """JSON of `BackupView`."""

    path: str


@final
class BatchJson(TypedDict):
    """JSON of `BatchView`."""

    name: str
    items: list[dict[str, Any]]
    problem: str | None
    markdown: str
    csv: str
    version: int
    updated_at: str


@final
class CheckResultJson(TypedDict):
    """JSON of `CheckResult`."""

    name: str
    passed: bool
    output: str
    duration_s: float
    command: str | None
    exit_code: int | None
    commit: str | None
    directory: str | None
    out_sha256: str | None
    err_sha256: str | None
    proved: bool | None
    proof: str | None
    proved_earlier: bool
    passes_only_with: list[str]
    changed_meanwhile: list[str]
    overlooks: list[str]


@final
class CheckSpecJson(TypedDict):
    """JSON of `CheckSpec`."""

    kind: CheckKindName
    command: str | None
    directory: str | None
    name: str | None
    timeout_s: float
    prove: Literal["never", "once", "always", "required"] | None


@final
class LiveJson(TypedDict):
    """JSON of `LiveView`."""

    ok: bool
    answer: str | None
    failure: FailureClassName | None
    reason: str | None
    duration_s: float


@final
class CheckJson(TypedDict):
    """JSON of `CheckView`."""

    agent: AgentJson
    usable: bool
    version: str | None
    comparison: Literal["same", "newer", "older"] | None
    problem: str | None
    hint: str | None
    live: LiveJson | None


@final
class CheckedAgainJson(TypedDict):
    """JSON of `CheckedAgain`."""

    at: str
    commit: str
    passed: bool
    checks: list[CheckResultJson]


@final
class CommentJson(TypedDict):
    """JSON of `Comment`."""

    id: str
    author: str
    text: str
    path: str | None
    url: str | None
    at: str


@final
class DaemonJson(TypedDict):
    """JSON of `DaemonView`."""

    version: str
    pid: int
    started_at: str
    home: str
    url: str
    database: str
    full_text: bool
    running: int
    max_attempts: int
    queued: int
    runs_under_way: int
    runs_queued: int
    held: str | None


@final
class DeliveryJson(TypedDict):
    """JSON of `Delivery`."""

    mode: Literal["merge", "push", "pr"]
    status: Literal["pending", "delivered", "failed", "nothing", "undone"]
    reason: str | None
    draft: bool
    commit: str | None
    forge: str | None
    branch: str | None
    number: int | None
    url: str | None
    state: Literal["draft", "open", "merged", "closed"] | None
    ci: Literal["none", "pending", "passed", "failed"] | None
    updated_at: str | None


@final
class DiffJson(TypedDict):
    """JSON of `DiffView`."""

    patch: str
    stat: str
    files: list[str]
    truncated: bool


@final
class FindingJson(TypedDict):
    """JSON of `Finding`."""

    name: str
    state: Literal["ok", "warning", "broken"]
    text: str
    hint: str | None


@final
class DoctorJson(TypedDict):
    """JSON of `DoctorView`."""

    ok: bool
    findings: list[FindingJson]


@final
class FiringJson(TypedDict):
    """JSON of `Firing`."""

    schedule_id: str
    slot: str
    at: str
    outcome: OutcomeName
    reason: str | None
    subject: str | None
    subject_status: str | None


@final
class FiringPageJson(TypedDict):
    """JSON of `FiringPage`."""

    firings: list[FiringJson]
    next_cursor: str | None


@final
class HealthJson(TypedDict):
    """JSON of `Health`."""

    status: str
    version: str


@final
class HitJson(TypedDict):
    """JSON of `Hit`."""

    kind: Literal["prompt", "message", "result", "output", "commit", "learning", "note"]
    id: str
    title: str
    project: str | None
    text: str
    attempt: int | None
    stream: Literal["out", "err"] | None
    offset: int | None
    position: str | None


@final
class ImportJson(TypedDict):
    """JSON of `ImportView`."""

    added: int
    changed: int
    unchanged: int


@final
class IntegrationAnswerJson(TypedDict):
    """JSON of `IntegrationAnswer`."""

    answer: Any
    truncated: bool


@final
class KeyRemovedJson(TypedDict):
    """JSON of `KeyRemovedView`."""

    removed: bool


@final
class LearningJson(TypedDict):
    """JSON of `Learning`."""

    id: str
    title: str
    content: str
    tags: list[str]
    scope: Literal["project", "global"]
    project: str | None
    status: Literal["reported", "kept", "discarded"]
    reason: str | None
    author: str
    task_id: str | None
    created_at: str
    changed_at: str


@final
class LearningPageJson(TypedDict):
    """JSON of `LearningPage`."""

    learnings: list[LearningJson]
    next_cursor: str | None


@final
class LockJson(TypedDict):
    """JSON of `Lock`."""

    checkout: str
    path: str
    owner: str
    task_id: str | None
    status: Literal["held", "waiting", "released"]
    reason: str | None
    taken_at: str
    left_s: float


@final
class LocksJson(TypedDict):
    """JSON of `LocksView`."""

    held: bool
    locks: list[LockJson]
    waiting_for: list[LockJson]


@final
class LoginCodeJson(TypedDict):
    """JSON of `LoginCodeView`."""

    code: str
    expires_at: str


@final
class MergePreviewJson(TypedDict):
    """JSON of `MergePreview`."""

    id: str
    base: str
    ahead: int
    behind: int
    already: bool
    conflicts: list[str]
    dirty: list[str]
    check_again: bool
    problem: str | None
    doubts: list[str]


@final
class MergeRefusalJson(TypedDict):
    """JSON of `MergeRefusal`."""

    at: str
    base: str
    commit: str
    name: str
    exit_code: int | None
    output: str


@final
class MergeJson(TypedDict):
    """JSON of `MergeView`."""

    id: str
    status: Literal["merged", "under_way"]
    base: str | None
    commit: str | None
    already: bool
    checkout_updated: str | None
    checks: list[CheckResultJson]
    phase: str | None
    trust_dropped: bool
    signed: bool
    hooks_not_run: list[str]
    signature_missing: bool
    identity_missing: bool


@final
class MovedRepositoryJson(TypedDict):
    """JSON of `MovedRepository`."""

    old: str
    new: str


@final
class WorkspaceJson(TypedDict):
    """JSON of `WorkspaceView`."""

    kind: WorkspaceKindName
    path: str | None
    branch: str | None
    base: str | None
    base_commit: str | None
    commit: str | None
    owner: str | None
    in_place_by_default: bool


@final
class RunningCheckJson(TypedDict):
    """JSON of `RunningCheck`."""

    name: str
    command: str
    started_at: str


@final
class QuestionJson(TypedDict):
    """JSON of `Question`."""

    token: str
    task_id: str | None
    run_id: str | None
    title: str
    repository: str | None
    text: str
    choices: list[str]
    default: str | None
    status: Literal["open", "answered", "expired", "withdrawn"]
    answer: str | None
    asked_at: str
    expires_at: str | None
    ended_at: str | None


@final
class RetrySpecJson(TypedDict):
    """JSON of `RetrySpec`."""

    policy: Literal["none", "same", "analyze"]
    max_attempts: int
    delay_s: float
    max_delay_s: float


@final
class TaskJson(TypedDict):
    """JSON of `Task`."""

    id: str
    title: str
    reason: str | None
    stop: Literal["cancel", "requeue", "pause", "abandon"] | None
    stopped_by: StopperName | None
    question: str | None
    directory: str
    repository: str | None
    project: str | None
    schedule_id: str | None
    parent_task_id: str | None
    workspace: WorkspaceJson
    checking: RunningCheckJson | None
    verified: bool | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    archived_at: str | None
    merged_at: str | None
    merge_undone_at: str | None
    merge_commit: str | None
    seen_at: str | None
    flagged_at: str | None
    snoozed_until: str | None
    delivery: DeliveryJson | None
    need: NeedKindName | None
    prompt: str
    agent: str
    model: str | None
    status: TaskStatusName
    waiting_for: Literal["input", "rate_limit", "trust"] | None
    questions: list[QuestionJson]
    report: str | None
    priority: PriorityName
    tags: list[str]
    context: dict[str, str]
    depends_on: list[str]
    deps_policy: DepsPolicyName
    continue_from: str | None
    fork_session: bool
    fallback_agents: list[str]
    timeout_s: float | None
    max_turns: int | None
    budget_usd: float | None
    retry: RetrySpecJson
    env: list[str]
    mcp: list[str]
    not_before: str | None
    merge_refused: MergeRefusalJson | None
    run_id: str | None
    children: list[str]
    coordinate: bool
    interactive: bool
    template: str | None
    guidelines: str | None
    tools: list[str]
    read_only: bool
    browser: bool
    attempts: list[AttemptJson]
    check_specs: list[CheckSpecJson]
    checks: list[CheckResultJson]
    checked_again: CheckedAgainJson | None
    result: str | None


@final
class SpentJson(TypedDict):
    """JSON of `Spent`."""

    seconds: float
    agent_calls: int
    cost_usd: float | None


@final
class RunJson(TypedDict):
    """JSON of `Run`."""

    id: str
    title: str
    reason: str | None
    stop: Literal["cancel", "requeue", "pause", "abandon"] | None
    stopped_by: StopperName | None
    question: str | None
    directory: str
    repository: str | None
    project: str | None
    schedule_id: str | None
    parent_task_id: str | None
    workspace: WorkspaceJson
    checking: RunningCheckJson | None
    verified: bool | None
    created_at: str
    started_at: str | None
    ended_at: str | None
    archived_at: str | None
    merged_at: str | None
    merge_undone_at: str | None
    merge_commit: str | None
    seen_at: str | None
    flagged_at: str | None
    snoozed_until: str | None
    delivery: DeliveryJson | None
    need: NeedKindName | None
    pattern: str
    status: RunStatusName
    waiting_for: Literal["input"] | None
    questions: list[QuestionJson]
    parent_id: str | None
    spec: dict[str, Any]
    progress: dict[str, Any]
    result: Any
    limit_reached: str | None
    spent: SpentJson


@final
class NeedJson(TypedDict):
    """JSON of `Need`."""

    key: str
    kind: NeedKindName
    cause: str | None
    failure: str | None
    agent: str | None
    at: str
    blocked: int
    count: int
    repositories: list[str]
    work: TaskJson | RunJson


@final
class NeedPageJson(TypedDict):
    """JSON of `NeedPage`."""

    total: int
    rows: int
    needs: list[NeedJson]
    next_offset: int | None
    next_due: str | None
    last_event: int


@final
class NextCommandJson(TypedDict):
    """JSON of `NextCommand`."""

    command: str
    does: str


@final
class NoteJson(TypedDict):
    """JSON of `Note`."""

    scope: str
    key: str
    version: int
    value: str | None
    size: int
    deleted: bool
    author: str
    task_id: str | None
    updated_at: str


@final
class NotePageJson(TypedDict):
    """JSON of `NotePage`."""

    notes: list[NoteJson]
    next_cursor: str | None


@final
class NotedJson(TypedDict):
    """JSON of `Noted`."""

    noted: bool


@final
class NotesChangedJson(TypedDict):
    """JSON of `NotesChanged`."""

    met: bool
    notes: list[NoteJson]


@final
class NotifyJson(TypedDict):
    """JSON of `NotifyView`."""

    way: Literal["webhook", "command"]
    problem: str | None


@final
class OutputHitsJson(TypedDict):
    """JSON of `OutputHits`."""

    attempt: int
    offsets: list[int]
    next_offset: int | None


@final
class PatternJson(TypedDict):
    """JSON of `PatternView`."""

    name: str
    summary: str
    origin: str
    spec_schema: dict[str, Any]
    trusted: bool
    is_broken: bool


@final
class PermissionJson(TypedDict):
    """JSON of `Permission`."""

    allowed: bool
    reason: str | None


@final
class PersonMessageJson(TypedDict):
    """JSON of `PersonMessage`."""

    id: str
    kind: Literal["hint", "answer", "message"]
    text: str
    question: str | None
    state: Literal["waiting", "delivered", "refused"]
    attempt: int | None
    at_work: bool
    at: str


@final
class ProjectJson(TypedDict):
    """JSON of `Project`."""

    name: str
    directories: list[str]
    created_at: str
    archived_at: str | None
    work: int
    open: int


@final
class PruneJson(TypedDict):
    """JSON of `PruneView`."""

    dry_run: bool
    archived: list[str]
    packed: int
    bytes: int
    inodes: int


@final
class PullRequestJson(TypedDict):
    """JSON of `PullRequestView`."""

    id: str
    delivery: DeliveryJson
    comments: list[CommentJson]


@final
class QuestionListJson(TypedDict):
    """JSON of `QuestionList`."""

    questions: list[QuestionJson]


@final
class RelocationJson(TypedDict):
    """JSON of `RelocationView`."""

    old: str
    new: str
    tasks: int
    runs: int
    schedules: int
    templates: int
    learnings: int
    projects: int
    worktrees: int
    problems: list[str]
    trust: Literal["not_needed", "trusted", "changed", "not_trusted"] | None


@final
class ReportPartJson(TypedDict):
    """JSON of `ReportPart`."""

    id: str
    title: str
    status: str
    reason: str | None
    verified: bool | None
    cost_usd: float | None
    next: str


@final
class ReportEntryJson(TypedDict):
    """JSON of `ReportEntry`."""

    id: str
    title: str
    status: str
    reason: str | None
    verified: bool | None
    asked: str
    need: NeedKindName | None
    repository: str | None
    group: Literal["needs", "failed", "done", "open"]
    question: str | None
    pattern: str | None
    project: str | None
    schedule_id: str | None
    directory: str
    created_at: str
    ended_at: str | None
    attempts: int
    cost_usd: float | None
    evidence: list[CheckResultJson]
    scores: list[str]
    branch: str | None
    base: str | None
    changed: bool | None
    merged: bool
    delivery: DeliveryJson | None
    parts: list[ReportPartJson]
    next: list[NextCommandJson]


@final
class UsageSumJson(TypedDict):
    """JSON of `UsageSum`."""

    attempts: int
    verified: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    turns: int
    cost_usd: float | None
    unknown_cost: int
    unreported: int


@final
class ReportJson(TypedDict):
    """JSON of `ReportView`."""

    since: str
    until: str
    entries: list[ReportEntryJson]
    left_out: int
    learnings: list[LearningJson]
    needs_total: int
    cost: UsageSumJson
    markdown: str


@final
class RestingJson(TypedDict):
    """JSON of `RestingView`."""

    id: str
    title: str
    status: str
    reason: str | None
    verified: bool | None
    question: str | None
    result: Any


@final
class RunPageJson(TypedDict):
    """JSON of `RunPage`."""

    runs: list[RunJson]
    next_cursor: str | None
    last_event: int


@final
class SayJson(TypedDict):
    """JSON of `SayView`."""

    id: str
    told: Literal["now", "next_attempt"]


@final
class ScheduleJson(TypedDict):
    """JSON of `Schedule`."""

    id: str
    title: str
    kind: str
    spec: dict[str, Any]
    directory: str
    project: str | None
    cron: str | None
    at: str | None
    every_s: float | None
    after: str | None
    timezone: str
    missed: MissedPolicyName
    overlap: bool
    max_runs: int | None
    expires_at: str | None
    status: ScheduleStatusName
    reason: str | None
    next_at: str | None
    started: int
    in_flight: list[str]
    created_at: str
    ended_at: str | None


@final
class SchedulePageJson(TypedDict):
    """JSON of `SchedulePage`."""

    schedules: list[ScheduleJson]
    next_cursor: str | None


@final
class SearchJson(TypedDict):
    """JSON of `SearchView`."""

    hits: list[HitJson]
    complete: bool


@final
class StepJson(TypedDict):
    """JSON of `Step`."""

    position: str
    kind: str
    label: str
    role: str | None
    cycle: int | None
    subject: str | None
    data: dict[str, Any]
    result: Any
    error: str | None
    started_at: str
    ended_at: str | None


@final
class StoppedJson(TypedDict):
    """JSON of `Stopped`."""

    status: str
    version: str
    agents: int


@final
class SumsJson(TypedDict):
    """JSON of `SumsView`."""

    since: str
    started: int
    completed: int
    verified: int
    merged: int
    failed: int
    cancelled: int
    cost: UsageSumJson


@final
class TaskPageJson(TypedDict):
    """JSON of `TaskPage`."""

    tasks: list[TaskJson]
    next_cursor: str | None
    last_event: int


@final
class TemplateRecordJson(TypedDict):
    """JSON of `TemplateRecord`."""

    template: str
    agent: str
    model: str | None
    tasks: int
    completed: int
    success_rate: float
    cost_usd: float | None
    turns: float | None
    duration_s: float | None


@final
class TemplateJson(TypedDict):
    """JSON of `Template`."""

    name: str
    guidelines: str
    agent: str | None
    model: str | None
    directory: str | None
    created_at: str
    changed_at: str
    records: list[TemplateRecordJson]


@final
class TrustItemJson(TypedDict):
    """JSON of `TrustItem`."""

    name: str
    text: str


@final
class TrustJson(TypedDict):
    """JSON of `TrustView`."""

    directory: str
    status: Literal["not_needed", "trusted", "changed", "not_trusted"]
    digest: str
    trusted_at: str | None
    items: list[TrustItemJson]
    difference: list[str]


@final
class UndoJson(TypedDict):
    """JSON of `UndoView`."""

    id: str
    base: str
    commit: str
    how: Literal["moved_back", "reverted"]
    checkout_updated: str | None


@final
class UsageRowJson(TypedDict):
    """JSON of `UsageRow`."""

    attempts: int
    verified: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    turns: int
    cost_usd: float | None
    unknown_cost: int
    unreported: int
    key: str | None
    across: str | None
    title: str | None


@final
class UsageReportJson(TypedDict):
    """JSON of `UsageReport`."""

    by: Literal["agent", "model", "project", "task", "run", "template", "outcome", "day"]
    across: Literal["agent", "model", "project", "task", "run", "template", "outcome", "day"] | None
    rows: list[UsageRowJson]
    total: UsageSumJson


@final
class WaitJson(TypedDict):
    """JSON of `WaitView`."""

    resting: list[RestingJson]
    pending: list[str]


@final
class WorkPageJson(TypedDict):
    """JSON of `WorkPage`."""

    work: list[TaskJson | RunJson]
    total: int
    next_cursor: str | None
    last_event: int


@final
class EventJson(TypedDict):
    """JSON of `Event`."""

    seq: int
    at: str
    kind: str
    task_id: str | None
    attempt_id: str | None
    run_id: str | None
    data: dict[str, Any]


WorkJson: TypeAlias = TaskJson | RunJson
"""A task or a run; only a run has a "pattern"."""
