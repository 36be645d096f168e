"""Every table, as SQLAlchemy Core; the migrations bring a database to exactly this."""

import math
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.ids import SHORT
from kapelle.domain.text import make_storable


class Instant(sa.TypeDecorator[datetime]):
    """An aware UTC time, stored as microseconds so that both databases compare it alike."""

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
    """Text of any origin; what no database can keep (NUL, half a surrogate pair) is replaced."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        if value is None:
            return None
        return make_storable(value)


class SafeJson(sa.TypeDecorator[Any]):
    """JSON of any origin, its texts treated alike; numbers that JSON does not know are null."""

    impl = sa.JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return _storable_all(value)


def _storable_all(value: Any) -> Any:
    if isinstance(value, str):
        return make_storable(value)
    if isinstance(value, dict):
        return {make_storable(str(key)): _storable_all(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable_all(item) for item in value]
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


def _required(kind: Any, *names: str) -> _Columns:
    return _columns(kind, *names, nullable=False)


def _flags(*names: str) -> _Columns:
    """Whether something is so; what is older than the column is not."""
    return [
        sa.Column(name, sa.Boolean, nullable=False, server_default=sa.false()) for name in names
    ]


def _indexes(*columns: tuple[str, ...]) -> list[sa.Index]:
    return [sa.Index(None, *names) for names in columns]


def _table(name: str, *parts: Any, **options: Any) -> sa.Table:
    return sa.Table(name, metadata, *parts, **options)


def _work_columns() -> _Columns:
    """What tasks and runs have in common."""
    return [
        sa.Column("id", sa.String(40), primary_key=True),
        *_required(SafeText, "title", "directory", "workspace_path"),
        # The top of the repository that the directory is in; in none, the directory.
        *_columns(SafeText, "repository", "project", "reason"),
        # The task whose attempt asked for it.
        *_columns(_ID, "schedule_id", "parent_task_id"),
        *_required(sa.String(20), "status", "workspace_kind"),
        # Whether it works in place because there is no repository, and nobody asked for that.
        *_flags("workspace_in_place_by_default"),
        # A person's request: of a running task "cancel" or "requeue"; of a run "pause", "cancel" or
        # "abandon" (cancel, but let its tasks go on).
        *_columns(sa.String(20), "waiting_for", "stop"),
        # Who or what cancelled or paused it, or asks for that: one of Stopper.
        *_columns(sa.String(20), "stopped_by"),
        # The limit of the run around it, where it was cancelled because that was reached.
        *_columns(SafeText, "limit_reached"),
        # The digest of the environment that it was asked for in, which is kept beside the secrets.
        sa.Column("shell", sa.String(64)),
        *_columns(
            SafeText,
            "workspace_branch",
            "workspace_base",
            "workspace_base_commit",
            "workspace_commit",
        ),
        # Whose worktree it works in, where that is not its own: a run's.
        *_columns(_ID, "workspace_owner"),
        *_required(Instant, "created_at"),
        *_columns(Instant, "started_at", "ended_at", "archived_at", "merged_at"),
        # The branch that the last merge moved, its commit before and after, and the undoing.
        *_columns(SafeText, "merged_into", "merge_commit", "merge_parent"),
        # The tip of its own branch then: what goes on afterwards is new since that.
        *_columns(SafeText, "merged_tip"),
        *_columns(Instant, "merge_undone_at"),
        # What a person marked it with.
        *_columns(Instant, "seen_at", "flagged_at", "snoozed_until"),
        sa.Column("idempotency_key", sa.String(200), unique=True),
    ]


tasks = _table(
    "tasks",
    *_work_columns(),
    *_required(SafeText, "prompt", "agent"),
    # Its report is how far it is, in its agent's own words.
    *_columns(SafeText, "system_prompt", "model", "question", "report", "requested_base", "result"),
    *_required(sa.Integer, "priority"),
    *_required(sa.String(20), "deps_policy"),
    *_columns(_ID, "continue_from", "run_id"),
    *_required(sa.Boolean, "fork_session"),
    *_required(SafeJson, "fallback_agents", "retry", "check_specs", "env", "mcp", "tags"),
    *_required(SafeJson, "context"),
    *_columns(sa.Float, "timeout_s", "budget_usd"),
    sa.Column("max_turns", sa.Integer),
    # The content before the agent began, where that is not simply the base commit's.
    *_columns(SafeText, "starting_tree"),
    *_columns(Instant, "not_before"),
    # What the next attempt is: fresh or resume, the message it is given, and how many attempts
    # the retry policy has already spent on this round.
    sa.Column("next_mode", sa.String(10), nullable=False, server_default="fresh"),
    *_columns(SafeText, "next_message"),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    # Attempts of this round that the retry policy does not count and no person caused.
    sa.Column("uncounted", sa.Integer, nullable=False, server_default="0"),
    # Whether its agent is given Kapelle's own tools, and what else it is given or not.
    *_flags("coordinate", "interactive", "read_only", "browser"),
    sa.Column("tools", SafeJson, nullable=False, server_default="[]"),
    # The template that it was asked for by, and what that said then.
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
    *_required(sa.Integer, "number"),
    *_required(sa.String(20), "status"),
    *_required(sa.String(10), "mode"),
    *_required(SafeText, "agent"),
    *_columns(
        SafeText, "message", "model", "model_reason", "diagnosis", "question", "reason", "evidence"
    ),
    # Whose limits it works under (see the accounts), and who performs it: a home on a host, as the
    # daemon that claimed it is called.
    *_columns(SafeText, "account", "performer"),
    # What the records of its agent's process are signed with.
    sa.Column("secret", sa.String(64)),
    # Why the daemon ended its agent (a failure), and where its agent keeps a log of its own: both
    # are never read from a file, which the agent could write.
    *_columns(SafeJson, "ended_for", "side_log"),
    # What its checks are made on, written before the first of them.
    *_columns(SafeText, "checked_commit"),
    # What the user's repository was like before its agent began.
    sa.Column("repository", SafeJson),
    # When its worktree was ready, by the clock of the file system, and its inode then.
    *_columns(sa.BigInteger, "began_ns", "began_inode"),
    # The learnings that its prompt told: id and title.
    sa.Column("memory", SafeJson),
    # What its agent handed in as the result, and whether it says that this is a success.
    sa.Column("handed_in", SafeJson),
    *_columns(sa.String(20), "exit_kind", "claimed", "failure"),
    *_columns(sa.Integer, "exit_code", "exit_signal"),
    *_required(SafeJson, "warnings"),
    # The session that it went on with, and the one that it left.
    *_columns(SafeText, "started_from", "session_id"),
    *_columns(sa.BigInteger, "input_tokens", "output_tokens", "cached_tokens", "turns"),
    sa.Column("cost_usd", sa.Float),
    # Counters of the whole session as the agent told them, to be taken off the next time.
    sa.Column("session_usage", SafeJson),
    sa.Column("output_bytes", sa.BigInteger, nullable=False, server_default="0"),
    *_required(Instant, "started_at"),
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
    # What its provider told of its limits: by name the share used, its reset, and when it said so.
    sa.Column("windows", SafeJson),
)

checks = _table(
    "checks",
    sa.Column("attempt_id", sa.ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    *_required(SafeText, "name", "output"),
    *_required(sa.Boolean, "passed"),
    *_required(sa.Float, "duration_s"),
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

# What is known of the checks of a repository: whether they look at the work.
proofs = _table(
    "proofs",
    sa.Column("digest", sa.String(64), primary_key=True),  # of the repository and the command
    sa.Column("proved", sa.Boolean),
    *_required(SafeText, "proof"),
)

# Where the work of a task or run is delivered to, and how far that is.
deliveries = _table(
    "deliveries",
    sa.Column("owner", sa.String(40), primary_key=True),
    *_required(sa.String(10), "mode", "status"),
    # Even with a secret in it; asked for by a person: of what failed too.
    *_required(sa.Boolean, "force", "draft"),
    # Asked for by a person: the pull request is made ready for review.
    sa.Column("ready", sa.Boolean),
    # The commit is what was delivered, or could not be.
    *_columns(SafeText, "reason", "commit", "forge", "branch", "url"),
    # The commits that were or are to be pushed: on the remote branch nothing else is replaced.
    *_required(SafeJson, "pushed"),
    sa.Column("number", sa.Integer),
    *_columns(sa.String(10), "state", "ci"),
    *_required(sa.Integer, "tries"),
    # The ids of the comments that an agent was told. Rows from before these were kept have the time
    # of the last one, heard_at.
    sa.Column("heard", SafeJson),
    # When it is tried again, or when its forge is asked again.
    *_columns(Instant, "heard_at", "next_at", "updated_at"),
    *_indexes(("status", "next_at")),
)

# Processes beside the agents': set-up commands, questions, checks, and the steps of runs. A row is
# written before its process is begun.
processes = _table(
    "processes",
    # The attempt or run that it belongs to.
    sa.Column("owner", sa.String(40), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("directory", sa.String(40), nullable=False, unique=True),
    *_required(sa.String(64), "secret"),
    *_required(Instant, "begun_at"),
    sa.Column("succeeded", sa.Boolean),  # noted of set-up commands
    sa.Column("side_log", SafeJson),  # of agents that are asked; see the attempts
)

events = _table(
    "events",
    sa.Column(
        "seq",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        sa.Identity(always=False),
        primary_key=True,
    ),
    *_required(Instant, "at"),
    *_required(sa.String(40), "kind"),
    # The task's run as well: an event of a run's task is one of the run.
    *_columns(_ID, "task_id", "attempt_id", "run_id"),
    *_required(SafeJson, "data"),
    *_indexes(("task_id", "seq"), ("run_id", "seq")),
    sqlite_autoincrement=True,
)

runs = _table(
    "runs",
    *_work_columns(),
    *_required(SafeText, "pattern"),
    *_required(SafeJson, "spec", "progress"),
    *_columns(_ID, "parent_id"),
    # Whether its tasks may wait for a person; where they may not, one that asks is ended.
    sa.Column("may_ask", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("result", SafeJson),
    # Who performs it: a home on a host, as the daemon that claimed it is called.
    *_columns(SafeText, "performer"),
    # How often it was taken up: each time is one execution inside the engine.
    sa.Column("executions", sa.Integer, nullable=False, server_default="0"),
    # Time under way before the present execution, which began at active_since.
    sa.Column("active_s", sa.Float, nullable=False, server_default="0"),
    *_columns(Instant, "active_since"),
    *_indexes(
        ("status", "id"), ("repository", "id"), ("parent_id", "id"), ("parent_task_id",),
        ("ended_at", "id"),
    ),
)  # fmt: skip

# Tasks and runs, with what each may be part of.
WORK = ((tasks, tasks.c.run_id), (runs, runs.c.parent_id))

steps = _table(
    "steps",
    sa.Column("run_id", sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    # As long as what is nested is deep.
    sa.Column("position", sa.Text, primary_key=True),
    *_required(sa.String(20), "kind"),
    *_required(SafeText, "label"),
    # What part a task plays in its pattern, and in which cycle, round or iteration.
    *_columns(SafeText, "role"),
    sa.Column("cycle", sa.Integer),
    # The task or run that it started.
    *_columns(_ID, "subject"),
    *_required(SafeJson, "data"),
    *_columns(SafeJson, "result", "error"),
    *_required(Instant, "started_at"),
    *_columns(Instant, "ended_at"),
)

# What tasks and runs ask of people.
questions = _table(
    "questions",
    # The id of the task or run, and its place there.
    sa.Column("token", sa.Text, primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE")),
    sa.Column("run_id", sa.ForeignKey("runs.id", ondelete="CASCADE")),
    # The attempt whose agent asks while it works, and whether it was told the answer.
    *_columns(_ID, "attempt_id"),
    *_flags("told"),
    *_required(SafeText, "text"),
    *_required(SafeJson, "choices"),
    *_columns(SafeText, "default", "answer"),
    *_required(sa.String(20), "status"),
    *_required(Instant, "asked_at"),
    *_columns(Instant, "expires_at", "ended_at"),
    *_indexes(("status", "asked_at"), ("task_id",), ("run_id",)),
)

# Texts of people for the agents of tasks. A file may deliver one; only the row is believed.
messages = _table(
    "messages",
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    # The run of the task, and the attempt that the text was given to.
    *_columns(_ID, "run_id", "attempt_id"),
    # Kind: say, resume. State: waiting, delivered, ended.
    *_required(sa.String(20), "kind", "state"),
    *_required(SafeText, "text", "author"),
    *_required(Instant, "created_at"),
    *_columns(Instant, "delivered_at"),
    *_indexes(("task_id", "id"), ("run_id", "id"), ("attempt_id",)),
)

schedules = _table(
    "schedules",
    sa.Column("id", sa.String(40), primary_key=True),
    # What it starts, its kind: "task", or the name of a pattern; and the specification of that.
    *_required(SafeText, "title", "kind", "directory"),
    *_required(SafeJson, "spec"),
    *_columns(SafeText, "project", "cron", "timezone", "reason"),
    sa.Column("every_s", sa.Float),
    *_columns(_ID, "after"),
    *_required(sa.String(20), "missed", "status"),
    *_required(sa.Boolean, "overlap"),
    sa.Column("max_runs", sa.Integer),
    # The next slot; NULL while there is none or while another schedule decides.
    *_columns(Instant, "at", "expires_at", "next_at", "ended_at"),
    sa.Column("started", sa.Integer, nullable=False, server_default="0"),
    *_required(Instant, "created_at"),
    sa.Column("idempotency_key", sa.String(200), unique=True),
    *_indexes(("status", "next_at"), ("after",)),
)

firings = _table(
    "firings",
    sa.Column("schedule_id", sa.ForeignKey("schedules.id", ondelete="CASCADE"), primary_key=True),
    # The moment that it was meant for: there is one firing for each.
    sa.Column("slot", Instant, primary_key=True),
    *_required(Instant, "at"),
    *_required(sa.String(20), "outcome"),
    *_columns(SafeText, "reason"),
    # The task or run that it started.
    *_columns(_ID, "subject"),
    *_indexes(("subject",)),
)

learnings = _table(
    "learnings",
    sa.Column("id", sa.String(40), primary_key=True),
    *_required(SafeText, "title", "content", "author"),
    *_required(SafeJson, "tags"),
    *_required(sa.String(10), "scope", "status"),
    *_columns(SafeText, "project", "reason"),
    # Not a foreign key: what was learned outlives the task.
    *_columns(_ID, "task_id"),
    *_required(Instant, "created_at", "changed_at"),
    # When it was last compared with the others.
    *_columns(Instant, "reviewed_at"),
    *_indexes(("project", "id"), ("task_id",), ("status", "reviewed_at")),
)
# What is looked for in them, made by hand: SQLAlchemy knows the tables of neither database for it.
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
    """Make the full-text index of learnings; a SQLite that cannot have one goes without."""
    for statement in _INDEXES[connection.dialect.name]:
        if connection.dialect.name != "sqlite" or has_fts5(connection):
            connection.exec_driver_sql(statement)


def has_fts5(connection: sa.Connection) -> bool:
    options = connection.exec_driver_sql("PRAGMA compile_options").scalars()
    return "ENABLE_FTS5" in options


sa.event.listen(learnings, "after_create", lambda _, connection, **__: create_index(connection))

# How far those have come who follow the history across restarts.
positions = _table(
    "positions",
    sa.Column("reader", sa.String(20), primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
)

projects = _table(
    "projects",
    sa.Column("name", SafeText, primary_key=True),
    # The repositories of which it is the current one.
    *_required(SafeJson, "directories"),
    *_required(Instant, "created_at"),
    *_columns(Instant, "archived_at"),
)

templates = _table(
    "templates",
    sa.Column("name", sa.String(64), primary_key=True),
    *_required(SafeText, "guidelines"),
    *_columns(SafeText, "agent", "model", "directory"),
    *_required(Instant, "created_at", "changed_at"),
)

notes = _table(
    "notes",
    # global, project:NAME, or the id of the run or task at the top of a family.
    sa.Column("scope", SafeText, primary_key=True),
    sa.Column("key", SafeText, primary_key=True),
    # NULL is a deleted one, whose version says when it changed.
    sa.Column("value", SafeText),
    *_required(sa.BigInteger, "version"),
    *_required(_ID, "author"),
    *_columns(_ID, "task_id"),
    *_required(Instant, "updated_at"),
)

locks = _table(
    "locks",
    sa.Column("checkout", SafeText, primary_key=True),
    sa.Column("path", SafeText, primary_key=True),
    # An attempt, or "person".
    sa.Column("owner", sa.String(40), primary_key=True),
    sa.Column("task_id", sa.String(40)),
    sa.Column("reason", SafeText),
    # For how long, since it was taken or renewed, or since this daemon began.
    sa.Column("ttl_s", sa.Float, nullable=False),
    sa.Column("taken_at", Instant, nullable=False),
)


def id_ending(table: sa.Table) -> sa.ColumnElement[str]:
    """The end of a row's id, by which people know it."""
    before = len(table.name) + 26 - SHORT  # the kind is the table's name without its s
    # A literal, or the index would not be found by it.
    return sa.func.substr(table.c.id, sa.literal_column(str(before + 1)))


for _typed in (tasks, runs, schedules, learnings):
    sa.Index(f"ix_{_typed.name}_end", id_ending(_typed))
