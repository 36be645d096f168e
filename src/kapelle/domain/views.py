"""Views of the daemon, patterns, projects, repositories and settings."""

from datetime import datetime
from typing import Any, Literal

from kapelle.domain.task import Record

Standing = Literal["not_needed", "trusted", "changed", "not_trusted"]


class Project(Record):
    """A project with the numbers of its tasks and runs."""

    name: str
    directories: list[str]  # the repositories whose current project it is
    created_at: datetime
    archived_at: datetime | None
    work: int
    open: int


class MovedRepository(Record):
    """A repository that is missing at its old path, and one with the same commits at a new path."""

    old: str
    new: str


class RelocationView(MovedRepository):
    """Numbers of rows and worktrees that were changed for the new path of a repository."""

    tasks: int
    runs: int
    schedules: int
    templates: int
    learnings: int
    projects: int
    worktrees: int
    problems: list[str]  # worktrees that could not be linked to the new path
    # None if the repository was not trusted at its old path.
    trust: Standing | None


class NotifyView(Record):
    """Result of a test notification by one channel."""

    way: Literal["webhook", "command"]
    problem: str | None


class TrustItem(Record):
    """A setting or file of a repository that is executed or that affects what is executed."""

    name: str
    text: str


class TrustView(Record):
    """Executable configuration of a repository, and whether it is trusted.

    difference lists the changes since the repository was trusted.
    """

    directory: str
    status: Standing
    digest: str
    trusted_at: datetime | None
    items: list[TrustItem]
    difference: list[str]


class IntegrationAnswer(Record):
    """Answer of an integrated system; truncated if it was longer."""

    answer: Any
    truncated: bool = False


class PruneView(Record):
    """Tasks and runs that were archived, or would be in a dry run, and the freed disk space."""

    dry_run: bool
    archived: list[str]
    # Attempts and runs whose files were packed into one archive each; unknown in a dry run.
    packed: int
    bytes: int
    inodes: int


class DaemonView(Record):
    """State of the daemon."""

    version: str
    pid: int
    started_at: datetime
    home: str
    url: str
    database: str
    full_text: bool = True  # whether its SQLite has full-text search
    running: int
    max_attempts: int
    queued: int
    runs_under_way: int
    runs_queued: int
    held: str | None


class Finding(Record):
    """Result of one examination; broken means that no work can start."""

    name: str
    state: Literal["ok", "warning", "broken"]
    text: str
    hint: str | None = None


class DoctorView(Record):
    """Findings for a directory; ok is false if anything is broken."""

    ok: bool
    findings: list[Finding]


class PatternView(Record):
    """A pattern with its specification."""

    name: str
    summary: str
    origin: str
    spec_schema: dict[str, Any]
    # The file of an untrusted pattern is read, but not executed.
    trusted: bool = True
    is_broken: bool = False  # whether its file is unusable; the summary has the reason
