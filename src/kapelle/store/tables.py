"""All tables in SQLAlchemy Core. The migrations upgrade a database to exactly this schema."""

import math
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.ids import SHORT
from kapelle.domain.text import make_storable


class Instant(sa.TypeDecorator[datetime]):
    """An aware UTC time, stored in microseconds, which both databases compare alike."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> int | None:
        if value is None:
            return None
        return round(value.timestamp() * 1_000_000)

    def process_result_value(self, value: int | None, dialect: Any) -> datetime | None:
        if value is None:
            return None
        return datetime.fromtimestamp(value / 1_000_000, UTC)


class SafeText(sa.TypeDecorator[str]):
    """Text of any origin; characters that databases cannot store (NUL, surrogates) are replaced."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        if value is None:
            return None
        return make_storable(value)


class SafeJson(sa.TypeDecorator[Any]):
    """JSON of any origin, with safe texts; numbers that JSON does not support become null."""

    impl = sa.JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return _make_storable(value)


def _make_storable(value: Any) -> Any:
    if isinstance(value, str):
        return make_storable(value)
    if isinstance(value, dict):
        return {make_storable(str(key)): _make_storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_make_storable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


_Columns = list[sa.Column[Any]]
_ID = sa.String(40)


def _columns(kind: Any, *names: str, nullable: bool = True) -> _Columns:
    return [sa.Column(name, kind, nullable=nullable) for name in names]


def _not_null(kind: Any, *names: str) -> _Columns:
    return _columns(kind, *names, nullable=False)


def _flags(*names: str) -> _Columns:
    """Return boolean columns, which are false in rows from before the column existed."""
    return [
        sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false()) for name in names
    ]


def _indexes(*columns: tuple[str, ...]) -> list[sa.Index]:
    return [sa.Index(None, *names) for names in columns]


def _table(name: str, *parts: Any, **options: Any) -> sa.Table:
    return sa.Table(name, metadata, *parts, **options)


def _work_columns() -> _Columns:
    """Return the common columns of tasks and runs."""
    return [
        sa.Column("id", sa.String(40), primary_key=True),
        *_not_null(SafeText, "title", "directory", "workspace_path"),
        # The top of the repository that contains the directory; without one, the directory.
        *_columns(SafeText, "repository", "project", "reason"),
        # The schedule that started it, and the task whose attempt started it.
        *_columns(_ID, "schedule_id", "parent_task_id"),
        *_not_null(sa.String(20), "status", "workspace_kind"),
        # Whether the work is in place because there is no repository, not because of a request.
        *_flags("workspace_in_place_by_default"),
        # The request to stop: "cancel" or "requeue" for a running task; "pause", "cancel" or
        # "abandon" (cancel, but let its tasks continue) for a run.
        *_columns(sa.String(20), "waiting_for", "stop"),
        # Who or what cancelled or paused it, or requested that: one of Stopper.
        *_columns(sa.String(20), "stopped_by"),
        # The limit of the outer run that led to the cancellation.
        *_columns(SafeText, "limit_reached"),
        # The digest of the client's environment, which is stored with the secrets.
        sa.Column("shell", sa.String(64)),
        *_columns(
            SafeText,
            "workspace_branch",
            "workspace_base",
            "workspace_base_commit",
            "workspace_commit",
        ),
        # The run whose worktree it uses, if it has none of its own.
        *_columns(_ID, "workspace_owner"),
        *_not_null(Instant, "created_at"),
        *_columns(Instant, "started_at", "ended_at", "archived_at", "merged_at"),
        # The branch of the last merge, its commits after and before the merge, and the undo.
        *_columns(SafeText, "merged_into", "merge_commit", "merge_parent"),
        # The tip of its own branch at the merge: later commits are new.
        *_columns(SafeText, "merged_tip"),
        *_columns(Instant, "merge_undone_at"),
        # The marks of a person.
        *_columns(Instant, "seen_at", "flagged_at", "snoozed_until"),
        sa.Column("idempotency_key", sa.String(200), unique=True),
    ]


tasks = _table(
    "tasks",
    *_work_columns(),
    *_not_null(SafeText, "prompt", "agent"),
    # The report is the progress in the words of the agent.
    *_columns(SafeText, "system_prompt", "model", "question", "report", "requested_base", "result"),
    *_not_null(sa.Integer, "priority"),
    *_not_null(sa.String(20), "deps_policy"),
    *_columns(_ID, "continue_from", "run_id"),
    *_not_null(sa.Boolean, "fork_session"),
    *_not_null(SafeJson, "fallback_agents", "retry", "check_specs", "env", "mcp", "tags"),
    *_not_null(SafeJson, "context"),
    *_columns(sa.Float, "timeout_s", "budget_usd"),
    sa.Column("max_turns", sa.Integer),
    # The tree before the agent started, if it differs from the tree of the base commit.
    *_columns(SafeText, "starting_tree"),
    *_columns(Instant, "not_before"),
    # The mode of the next attempt (fresh, resume or merge), its message, and the number of tries
    # that the retry policy has counted in this round.
    sa.Column("next_mode", sa.String(10), nullable=False, server_default="fresh"),
    *_columns(SafeText, "next_message"),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    # Attempts of this round that neither the retry policy nor a person requested.
    sa.Column("uncounted", sa.Integer, nullable=False, server_default="0"),
    # Whether the agent gets Kapelle's tools, a terminal, only tools that read, and a browser.
    *_flags("coordinate", "interactive", "read_only", "browser"),
    sa.Column("tools", SafeJson, nullable=False, server_default="[]"),
    # The template, and its guidelines at submission.
    *_columns(SafeText, "template", "guidelines"),
    *_indexes(
        ("template",), ("run_id", "id"), ("parent_task_id",), ("status", "priority", "id"),
        ("status", "id"), ("status", "not_before"), ("project", "id"), ("repository", "id"),
        ("archived_at", "id"), ("ended_at", "id"), ("workspace_owner",),
    ),
)  # fmt: skip

task_tags = _table(
    "task_tags",
    sa.Column("tag", SafeText, primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
)

dependencies = _table(
    "dependencies",
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("depends_on", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    *_indexes(("depends_on",)),
)

attempts = _table(
    "attempts",
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    *_not_null(sa.Integer, "number"),
    *_not_null(sa.String(20), "status"),
    *_not_null(sa.String(10), "mode"),
    *_not_null(SafeText, "agent"),
    *_columns(
        SafeText, "message", "model", "model_reason", "diagnosis", "question", "reason", "evidence"
    ),
    # The account whose rate limits apply, and the daemon that claimed it: a home on a host.
    *_columns(SafeText, "account", "performer"),
    # The key for the signatures of its agent's process records.
    sa.Column("secret", sa.String(64)),
    # Why the daemon stopped the agent (a failure), and the location of the agent's own log. Both
    # are stored here because the agent could change a file.
    *_columns(SafeJson, "ended_for", "side_log"),
    # The commit that is checked, written before the first check.
    *_columns(SafeText, "checked_commit"),
    # The state of the user's repository before the agent started.
    sa.Column("repository", SafeJson),
    # The time at which the worktree was ready, by the file system's clock, and its inode.
    *_columns(sa.BigInteger, "began_ns", "began_inode"),
    # The level of the agent's sandbox; "none" if the person had turned it off.
    sa.Column("confinement", sa.String(20)),
    # The learnings in its prompt: id and title.
    sa.Column("memory", SafeJson),
    # The result that the agent handed in, and its claim of success.
    sa.Column("handed_in", SafeJson),
    *_columns(sa.String(20), "exit_kind", "claimed", "failure"),
    *_columns(sa.Integer, "exit_code", "exit_signal"),
    *_not_null(SafeJson, "warnings"),
    # The session that it continued, and the session at its end.
    *_columns(SafeText, "started_from", "session_id"),
    *_columns(sa.BigInteger, "input_tokens", "output_tokens", "cached_tokens", "turns"),
    sa.Column("cost_usd", sa.Float),
    # Usage counters of the whole session, to be subtracted in the next attempt.
    sa.Column("session_usage", SafeJson),
    sa.Column("output_bytes", sa.BigInteger, nullable=False, server_default="0"),
    *_not_null(Instant, "started_at"),
    *_columns(Instant, "ended_at"),
    sa.UniqueConstraint("task_id", "number"),
    *_indexes(("status",)),
)

accounts = _table(
    "accounts",
    sa.Column("id", sa.String(120), primary_key=True),
    *_columns(Instant, "paused_until", "verified_at"),
    *_columns(SafeText, "reason"),
    sa.Column("failures_in_a_row", sa.Integer, nullable=False, server_default="0"),
    # The rate limits reported by the provider, by name: used share, reset time, report time.
    sa.Column("windows", SafeJson),
)

checks = _table(
    "checks",
    sa.Column("attempt_id", sa.ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    *_not_null(SafeText, "name", "output"),
    *_not_null(sa.Boolean, "passed"),
    *_not_null(sa.Float, "duration_s"),
    *_columns(SafeText, "command", "commit", "directory", "proof"),
    sa.Column("exit_code", sa.Integer),
    *_columns(sa.String(64), "out_sha256", "err_sha256"),
    sa.Column("proved", sa.Boolean),
    # Lists of paths; doubted if one of the first two has any.
    *(
        sa.Column(name, SafeJson, nullable=False, server_default="[]")
        for name in ("passes_only_with", "changed_meanwhile", "overlooks")
    ),
    *_flags("doubted", "proved_earlier"),
)

# Proofs that check commands look at the work.
proofs = _table(
    "proofs",
    sa.Column("digest", sa.String(64), primary_key=True),  # of the repository and the command
    sa.Column("proved", sa.Boolean),
    *_not_null(SafeText, "proof"),
)

# The delivery of the work of a task or run, and its state.
deliveries = _table(
    "deliveries",
    sa.Column("owner", sa.String(40), primary_key=True),
    *_not_null(sa.String(10), "mode", "status"),
    # Deliver even with a secret in the work; deliver unfinished work as a draft.
    *_not_null(sa.Boolean, "force", "draft"),
    # Requested by a person: make the pull request ready for review.
    sa.Column("ready", sa.Boolean),
    # commit: the commit that was delivered, or whose delivery failed.
    *_columns(SafeText, "reason", "commit", "forge", "branch", "url"),
    # Commits that were or will be pushed. On the remote branch only these are replaced.
    *_not_null(SafeJson, "pushed"),
    sa.Column("number", sa.Integer),
    *_columns(sa.String(10), "state", "ci"),
    *_not_null(sa.Integer, "tries"),
    # The ids of the comments that an agent has received. Older rows have the time of the last one,
    # heard_at.
    sa.Column("heard", SafeJson),
    # next_at: the next try, or the next query at the forge.
    *_columns(Instant, "heard_at", "next_at", "updated_at"),
    *_indexes(("status", "next_at")),
)

# Processes other than agents: set-up commands, questions, checks and the steps of runs. A row is
# written before its process starts.
processes = _table(
    "processes",
    # The attempt or run that it belongs to.
    sa.Column("owner", sa.String(40), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("directory", sa.String(40), nullable=False, unique=True),
    *_not_null(sa.String(64), "secret"),
    *_not_null(Instant, "begun_at"),
    sa.Column("succeeded", sa.Boolean),  # of set-up commands
    sa.Column("side_log", SafeJson),  # of agents that answer questions; see the attempts
)

events = _table(
    "events",
    sa.Column(
        "seq",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        sa.Identity(always=False),
        primary_key=True,
    ),
    *_not_null(Instant, "at"),
    *_not_null(sa.String(40), "kind"),
    # An event of a run's task has the id of the run too.
    *_columns(_ID, "task_id", "attempt_id", "run_id"),
    *_not_null(SafeJson, "data"),
    *_indexes(("task_id", "seq"), ("run_id", "seq")),
    sqlite_autoincrement=True,
)

runs = _table(
    "runs",
    *_work_columns(),
    *_not_null(SafeText, "pattern"),
    *_not_null(SafeJson, "spec", "progress"),
    *_columns(_ID, "parent_id"),
    # Whether its tasks may wait for a person; otherwise a task with a question is stopped.
    sa.Column("may_ask", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("result", SafeJson),
    # The daemon that claimed it: a home on a host.
    *_columns(SafeText, "performer"),
    # The number of its executions; a run is executed again after a pause or a crash.
    sa.Column("executions", sa.Integer, nullable=False, server_default="0"),
    # The active time before the present execution, which started at active_since.
    sa.Column("active_s", sa.Float, nullable=False, server_default="0"),
    *_columns(Instant, "active_since"),
    *_indexes(
        ("status", "id"), ("repository", "id"), ("parent_id", "id"), ("parent_task_id",),
        ("ended_at", "id"),
    ),
)  # fmt: skip

# The tables of tasks and runs, each with the column of the run that the work is part of.
WORK = ((tasks, tasks.c.run_id), (runs, runs.c.parent_id))

steps = _table(
    "steps",
    sa.Column("run_id", sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    # A path: it is as long as the steps are nested.
    sa.Column("position", sa.Text, primary_key=True),
    *_not_null(sa.String(20), "kind"),
    *_not_null(SafeText, "label"),
    # The role of its task in the pattern, and the number of the cycle, round or iteration.
    *_columns(SafeText, "role"),
    sa.Column("cycle", sa.Integer),
    # The task or run that it started.
    *_columns(_ID, "subject"),
    *_not_null(SafeJson, "data"),
    *_columns(SafeJson, "result", "error"),
    *_not_null(Instant, "started_at"),
    *_columns(Instant, "ended_at"),
)

# Questions of tasks and runs to people.
questions = _table(
    "questions",
    # The id of the task or run, and its place there.
    sa.Column("token", sa.Text, primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE")),
    sa.Column("run_id", sa.ForeignKey("runs.id", ondelete="CASCADE")),
    # The attempt whose agent asks while it works, and whether the answer was sent to it.
    *_columns(_ID, "attempt_id"),
    *_flags("told"),
    *_not_null(SafeText, "text"),
    *_not_null(SafeJson, "choices"),
    *_columns(SafeText, "default", "answer"),
    *_not_null(sa.String(20), "status"),
    *_not_null(Instant, "asked_at"),
    *_columns(Instant, "expires_at", "ended_at"),
    *_indexes(("status", "asked_at"), ("task_id",), ("run_id",)),
)

# Texts of people for the agents of tasks. A file delivers them, but only the row counts.
messages = _table(
    "messages",
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    # The run of the task, and the attempt that received the text.
    *_columns(_ID, "run_id", "attempt_id"),
    # Kind: say, resume. State: waiting, delivered, ended.
    *_not_null(sa.String(20), "kind", "state"),
    *_not_null(SafeText, "text", "author"),
    *_not_null(Instant, "created_at"),
    *_columns(Instant, "delivered_at"),
    *_indexes(("task_id", "id"), ("run_id", "id"), ("attempt_id",)),
)

schedules = _table(
    "schedules",
    sa.Column("id", sa.String(40), primary_key=True),
    # The kind of its work, "task" or the name of a pattern, and the specification.
    *_not_null(SafeText, "title", "kind", "directory"),
    *_not_null(SafeJson, "spec"),
    *_columns(SafeText, "project", "cron", "timezone", "reason"),
    sa.Column("every_s", sa.Float),
    *_columns(_ID, "after"),
    *_not_null(sa.String(20), "missed", "status"),
    *_not_null(sa.Boolean, "overlap"),
    sa.Column("max_runs", sa.Integer),
    # next_at: the next slot; NULL if there is none or if another schedule triggers this one.
    *_columns(Instant, "at", "expires_at", "next_at", "ended_at"),
    sa.Column("started", sa.Integer, nullable=False, server_default="0"),
    *_not_null(Instant, "created_at"),
    sa.Column("idempotency_key", sa.String(200), unique=True),
    *_indexes(("status", "next_at"), ("after",)),
)

firings = _table(
    "firings",
    sa.Column("schedule_id", sa.ForeignKey("schedules.id", ondelete="CASCADE"), primary_key=True),
    # The planned time; each slot has one firing.
    sa.Column("slot", Instant, primary_key=True),
    *_not_null(Instant, "at"),
    *_not_null(sa.String(20), "outcome"),
    *_columns(SafeText, "reason"),
    # The task or run that it started.
    *_columns(_ID, "subject"),
    *_indexes(("subject",)),
)

learnings = _table(
    "learnings",
    sa.Column("id", sa.String(40), primary_key=True),
    *_not_null(SafeText, "title", "content", "author"),
    *_not_null(SafeJson, "tags"),
    *_not_null(sa.String(10), "scope", "status"),
    *_columns(SafeText, "project", "reason"),
    # Not a foreign key: learnings outlive their tasks.
    *_columns(_ID, "task_id"),
    *_not_null(Instant, "created_at", "changed_at"),
    # The last comparison with the other learnings.
    *_columns(Instant, "reviewed_at"),
    *_indexes(("project", "id"), ("task_id",), ("status", "reviewed_at")),
)
# The full-text index, in SQL: SQLAlchemy supports the index tables of neither database.
INDEX = "learnings_index"
_INDEXES = {
    "sqlite": [
        f"CREATE VIRTUAL TABLE {INDEX} USING fts5"
        "(id UNINDEXED, title, content, tags, tokenize='porter unicode61')"
    ],
    "postgresql": [
        f"CREATE TABLE {INDEX} (id VARCHAR(40) PRIMARY KEY, vector tsvector NOT NULL)",
        f"CREATE INDEX ix_{INDEX}_vector ON {INDEX} USING gin (vector)",
    ],
}


def create_index(connection: sa.Connection) -> None:
    """Create the full-text index of learnings, unless SQLite was built without FTS5."""
    for statement in _INDEXES[connection.dialect.name]:
        if connection.dialect.name != "sqlite" or has_fts5(connection):
            connection.exec_driver_sql(statement)


def has_fts5(connection: sa.Connection) -> bool:
    """Return whether SQLite was built with FTS5."""
    options = connection.exec_driver_sql("PRAGMA compile_options").scalars()
    return "ENABLE_FTS5" in options


sa.event.listen(learnings, "after_create", lambda _, connection, **__: create_index(connection))

# The positions of readers that follow the history across restarts.
positions = _table(
    "positions",
    sa.Column("reader", sa.String(20), primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
)

projects = _table(
    "projects",
    sa.Column("name", SafeText, primary_key=True),
    # The repositories whose current project it is.
    *_not_null(SafeJson, "directories"),
    *_not_null(Instant, "created_at"),
    *_columns(Instant, "archived_at"),
)

templates = _table(
    "templates",
    sa.Column("name", sa.String(64), primary_key=True),
    *_not_null(SafeText, "guidelines"),
    *_columns(SafeText, "agent", "model", "directory"),
    *_not_null(Instant, "created_at", "changed_at"),
)

notes = _table(
    "notes",
    # global, project:NAME, or the id of the run or task at the top of a family.
    sa.Column("scope", SafeText, primary_key=True),
    sa.Column("key", SafeText, primary_key=True),
    # NULL: a deleted note, whose row keeps the version of the deletion.
    sa.Column("value", SafeText),
    *_not_null(sa.BigInteger, "version"),
    *_not_null(_ID, "author"),
    *_columns(_ID, "task_id"),
    *_not_null(Instant, "updated_at"),
)

locks = _table(
    "locks",
    sa.Column("checkout", SafeText, primary_key=True),
    sa.Column("path", SafeText, primary_key=True),
    # An attempt, or "person".
    sa.Column("owner", sa.String(40), primary_key=True),
    sa.Column("task_id", sa.String(40)),
    sa.Column("reason", SafeText),
    # The lifetime since the lock was taken or renewed, or since the start of the daemon.
    sa.Column("ttl_s", sa.Float, nullable=False),
    sa.Column("taken_at", Instant, nullable=False),
)


def id_ending(table: sa.Table) -> sa.ColumnElement[str]:
    """Return the expression for the end of a row's id, which people read and type."""
    # The prefix is the name of the table without its s, and an underscore.
    prefix_length = len(table.name) + 26 - SHORT
    # A literal, because the database would not use the index for a parameter.
    return sa.func.substr(table.c.id, sa.literal_column(str(prefix_length + 1)))


for _table_with_ids in (tasks, runs, schedules, learnings):
    sa.Index(f"ix_{_table_with_ids.name}_end", id_ending(_table_with_ids))
