"""Every table, as SQLAlchemy Core; the migrations bring a database to exactly this."""

import math
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.ids import SHORT


class Instant(sa.TypeDecorator[datetime]):
    """An aware UTC time, stored as microseconds so that both databases compare it alike."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> int | None:
        return None if value is None else round(value.timestamp() * 1_000_000)

    def process_result_value(self, value: int | None, dialect: Any) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value / 1_000_000, UTC)


class SafeText(sa.TypeDecorator[str]):
    """Text of any origin; what no database can keep (NUL, half a surrogate pair) is replaced."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else storable(value)


class SafeJson(sa.TypeDecorator[Any]):
    """JSON of any origin, its texts treated alike; numbers that JSON does not know are null."""

    impl = sa.JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return _storable_all(value)


def storable(text: str) -> str:
    """A text as both databases can keep it."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _storable_all(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {storable(str(key)): _storable_all(item) for key, item in value.items()}
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


def _work_columns() -> list[sa.Column[Any]]:
    """What tasks and runs have in common."""
    return [
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("title", SafeText, nullable=False),
        sa.Column("directory", SafeText, nullable=False),
        # The top of the repository that the directory is in; in none, the directory.
        sa.Column("repository", SafeText),
        sa.Column("project", SafeText),
        sa.Column("schedule_id", sa.String(40)),
        # The task whose attempt asked for it.
        sa.Column("parent_task_id", sa.String(40)),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", SafeText),
        sa.Column("waiting_for", sa.String(20)),
        # A person's request: of a running task "cancel" or "requeue"; of a run "pause", "cancel" or
        # "abandon" (cancel, but let its tasks go on).
        sa.Column("stop", sa.String(20)),
        # The limit of the run around it, where it was cancelled because that was reached.
        sa.Column("limit_reached", SafeText),
        # The digest of the environment that it was asked for in, which is kept beside the secrets.
        sa.Column("shell", sa.String(64)),
        sa.Column("workspace_kind", sa.String(20), nullable=False),
        sa.Column("workspace_path", SafeText, nullable=False),
        sa.Column("workspace_branch", SafeText),
        sa.Column("workspace_base", SafeText),
        sa.Column("workspace_base_commit", SafeText),
        sa.Column("workspace_commit", SafeText),
        # Whose worktree it works in, where that is not its own: a run's.
        sa.Column("workspace_owner", sa.String(40)),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("started_at", Instant),
        sa.Column("ended_at", Instant),
        sa.Column("archived_at", Instant),
        sa.Column("merged_at", Instant),
        # What a person marked it with.
        sa.Column("seen_at", Instant),
        sa.Column("flagged_at", Instant),
        sa.Column("snoozed_until", Instant),
        sa.Column("idempotency_key", sa.String(200), unique=True),
    ]


tasks = sa.Table(
    "tasks",
    metadata,
    *_work_columns(),
    sa.Column("prompt", SafeText, nullable=False),
    sa.Column("system_prompt", SafeText),
    sa.Column("agent", SafeText, nullable=False),
    sa.Column("model", SafeText),
    sa.Column("question", SafeText),
    # How far it is, in its agent's own words.
    sa.Column("report", SafeText),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("deps_policy", sa.String(20), nullable=False),
    sa.Column("continue_from", sa.String(40)),
    sa.Column("fork_session", sa.Boolean, nullable=False),
    sa.Column("fallback_agents", SafeJson, nullable=False),
    sa.Column("timeout_s", sa.Float),
    sa.Column("max_turns", sa.Integer),
    sa.Column("budget_usd", sa.Float),
    sa.Column("retry", SafeJson, nullable=False),
    sa.Column("check_specs", SafeJson, nullable=False),
    sa.Column("env", SafeJson, nullable=False),
    sa.Column("mcp", SafeJson, nullable=False),
    sa.Column("tags", SafeJson, nullable=False),
    sa.Column("context", SafeJson, nullable=False),
    sa.Column("requested_base", SafeText),
    # The content before the agent began, where that is not simply the base commit's.
    sa.Column("starting_tree", SafeText),
    sa.Column("not_before", Instant),
    sa.Column("result", SafeText),
    # What the next attempt is: fresh or resume, the message it is given, and how many attempts
    # the retry policy has already spent on this round.
    sa.Column("next_mode", sa.String(10), nullable=False, server_default="fresh"),
    sa.Column("next_message", SafeText),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    # Whether its agent is given Kapelle's own tools.
    sa.Column("coordinate", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("interactive", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("tools", SafeJson, nullable=False, server_default="[]"),
    sa.Column("read_only", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("browser", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("run_id", sa.String(40)),
    # The template that it was asked for by, and what that said then.
    sa.Column("template", SafeText),
    sa.Column("guidelines", SafeText),
    sa.Index("ix_tasks_template", "template"),
    sa.Index("ix_tasks_run_id_id", "run_id", "id"),
    sa.Index("ix_tasks_parent_task_id", "parent_task_id"),
    sa.Index("ix_tasks_status_priority_id", "status", "priority", "id"),
    sa.Index("ix_tasks_status_id", "status", "id"),
    sa.Index("ix_tasks_status_not_before", "status", "not_before"),
    sa.Index("ix_tasks_project_id", "project", "id"),
    sa.Index("ix_tasks_repository_id", "repository", "id"),
    sa.Index("ix_tasks_archived_at_id", "archived_at", "id"),
    sa.Index("ix_tasks_ended_at_id", "ended_at", "id"),
    sa.Index("ix_tasks_workspace_owner", "workspace_owner"),
)

task_tags = sa.Table(
    "task_tags",
    metadata,
    sa.Column("tag", SafeText, primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
)

dependencies = sa.Table(
    "dependencies",
    metadata,
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("depends_on", sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    sa.Index("ix_dependencies_depends_on", "depends_on"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("status", sa.String(20), nullable=False),
    sa.Column("mode", sa.String(10), nullable=False),
    sa.Column("message", SafeText),
    sa.Column("agent", SafeText, nullable=False),
    sa.Column("model", SafeText),
    sa.Column("model_reason", SafeText),
    # Whose limits it works under; see the accounts.
    sa.Column("account", SafeText),
    # Who performs it: a home on a host, as the daemon that claimed it is called.
    sa.Column("performer", SafeText),
    # What the records of its agent's process are signed with.
    sa.Column("secret", sa.String(64)),
    # What its checks are made on, written before the first of them.
    sa.Column("checked_commit", SafeText),
    # What the user's repository was like before its agent began.
    sa.Column("repository", SafeJson),
    sa.Column("diagnosis", SafeText),
    # The learnings that its prompt told: id and title.
    sa.Column("memory", SafeJson),
    sa.Column("question", SafeText),
    # What its agent handed in as the result, and whether it says that this is a success.
    sa.Column("handed_in", SafeJson),
    sa.Column("exit_kind", sa.String(20)),
    sa.Column("exit_code", sa.Integer),
    sa.Column("exit_signal", sa.Integer),
    sa.Column("reason", SafeText),
    sa.Column("claimed", sa.String(20)),
    sa.Column("failure", sa.String(20)),
    sa.Column("evidence", SafeText),
    sa.Column("warnings", SafeJson, nullable=False),
    # The session that it went on with, and the one that it left.
    sa.Column("started_from", SafeText),
    sa.Column("session_id", SafeText),
    sa.Column("input_tokens", sa.BigInteger),
    sa.Column("output_tokens", sa.BigInteger),
    sa.Column("cached_tokens", sa.BigInteger),
    sa.Column("turns", sa.BigInteger),
    sa.Column("cost_usd", sa.Float),
    # Counters of the whole session as the agent told them, to be taken off the next time.
    sa.Column("session_usage", SafeJson),
    sa.Column("output_bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("started_at", Instant, nullable=False),
    sa.Column("ended_at", Instant),
    sa.UniqueConstraint("task_id", "number"),
    sa.Index("ix_attempts_status", "status"),
)

accounts = sa.Table(
    "accounts",
    metadata,
    sa.Column("id", sa.String(120), primary_key=True),
    sa.Column("paused_until", Instant),
    sa.Column("reason", SafeText),
    sa.Column("failures_in_a_row", sa.Integer, nullable=False, server_default="0"),
    sa.Column("verified_at", Instant),
)

checks = sa.Table(
    "checks",
    metadata,
    sa.Column("attempt_id", sa.ForeignKey("attempts.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("name", SafeText, nullable=False),
    sa.Column("passed", sa.Boolean, nullable=False),
    sa.Column("output", SafeText, nullable=False),
    sa.Column("duration_s", sa.Float, nullable=False),
    sa.Column("command", SafeText),
    sa.Column("exit_code", sa.Integer),
    sa.Column("commit", SafeText),
    sa.Column("directory", SafeText),
    sa.Column("out_sha256", sa.String(64)),
    sa.Column("err_sha256", sa.String(64)),
    sa.Column("proved", sa.Boolean),
    sa.Column("proof", SafeText),
)

# What is known of the checks of a repository: whether they look at the work.
proofs = sa.Table(
    "proofs",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),  # of the repository and the command
    sa.Column("proved", sa.Boolean),
    sa.Column("proof", SafeText, nullable=False),
)

# Where the work of a task or run is delivered to, and how far that is.
deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("owner", sa.String(40), primary_key=True),
    sa.Column("mode", sa.String(10), nullable=False),
    sa.Column("status", sa.String(10), nullable=False),
    # Even with a secret in it.
    sa.Column("force", sa.Boolean, nullable=False),
    # Asked for by a person: of what failed too.
    sa.Column("draft", sa.Boolean, nullable=False),
    sa.Column("reason", SafeText),
    # What was delivered, or could not be.
    sa.Column("commit", SafeText),
    # The commits that were or are to be pushed: on the remote branch nothing else is replaced.
    sa.Column("pushed", SafeJson, nullable=False),
    sa.Column("forge", SafeText),
    sa.Column("branch", SafeText),
    sa.Column("number", sa.Integer),
    sa.Column("url", SafeText),
    sa.Column("state", sa.String(10)),
    sa.Column("ci", sa.String(10)),
    sa.Column("tries", sa.Integer, nullable=False),
    # When the last comment was made that an agent was told, by its forge's clock.
    sa.Column("heard_at", Instant),
    # When it is tried again, or when its forge is asked again.
    sa.Column("next_at", Instant),
    sa.Column("updated_at", Instant),
    sa.Index("ix_deliveries_status_next_at", "status", "next_at"),
)

# Processes beside the agents': set-up commands, questions, checks, and the steps of runs. A row is
# written before its process is begun.
processes = sa.Table(
    "processes",
    metadata,
    # The attempt or run that it belongs to.
    sa.Column("owner", sa.String(40), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("directory", sa.String(40), nullable=False, unique=True),
    sa.Column("secret", sa.String(64), nullable=False),
    sa.Column("begun_at", Instant, nullable=False),
    sa.Column("succeeded", sa.Boolean),  # noted of set-up commands
)

events = sa.Table(
    "events",
    metadata,
    sa.Column(
        "seq",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        sa.Identity(always=False),
        primary_key=True,
    ),
    sa.Column("at", Instant, nullable=False),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("task_id", sa.String(40)),
    sa.Column("attempt_id", sa.String(40)),
    # The task's run as well: an event of a run's task is one of the run.
    sa.Column("run_id", sa.String(40)),
    sa.Column("data", SafeJson, nullable=False),
    sa.Index("ix_events_task_id_seq", "task_id", "seq"),
    sa.Index("ix_events_run_id_seq", "run_id", "seq"),
    sqlite_autoincrement=True,
)

runs = sa.Table(
    "runs",
    metadata,
    *_work_columns(),
    sa.Column("pattern", SafeText, nullable=False),
    sa.Column("spec", SafeJson, nullable=False),
    sa.Column("parent_id", sa.String(40)),
    # Whether its tasks may wait for a person; where they may not, one that asks is ended.
    sa.Column("may_ask", sa.Boolean, nullable=False, server_default=sa.true()),
    sa.Column("progress", SafeJson, nullable=False),
    sa.Column("result", SafeJson),
    # Who performs it: a home on a host, as the daemon that claimed it is called.
    sa.Column("performer", SafeText),
    # How often it was taken up: each time is one execution inside the engine.
    sa.Column("executions", sa.Integer, nullable=False, server_default="0"),
    # Time under way before the present execution, which began at active_since.
    sa.Column("active_s", sa.Float, nullable=False, server_default="0"),
    sa.Column("active_since", Instant),
    sa.Index("ix_runs_status_id", "status", "id"),
    sa.Index("ix_runs_repository_id", "repository", "id"),
    sa.Index("ix_runs_parent_id_id", "parent_id", "id"),
    sa.Index("ix_runs_parent_task_id", "parent_task_id"),
    sa.Index("ix_runs_ended_at_id", "ended_at", "id"),
)

steps = sa.Table(
    "steps",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    # As long as what is nested is deep.
    sa.Column("position", sa.Text, primary_key=True),
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("label", SafeText, nullable=False),
    # The task or run that it started.
    sa.Column("subject", sa.String(40)),
    sa.Column("data", SafeJson, nullable=False),
    sa.Column("result", SafeJson),
    sa.Column("error", SafeJson),
    sa.Column("started_at", Instant, nullable=False),
    sa.Column("ended_at", Instant),
)

# What tasks and runs ask of people.
questions = sa.Table(
    "questions",
    metadata,
    # The id of the task or run, and its place there.
    sa.Column("token", sa.Text, primary_key=True),
    sa.Column("task_id", sa.ForeignKey("tasks.id", ondelete="CASCADE")),
    sa.Column("run_id", sa.ForeignKey("runs.id", ondelete="CASCADE")),
    # The attempt whose agent asks while it works, and whether it was told the answer.
    sa.Column("attempt_id", sa.String(40)),
    sa.Column("told", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("text", SafeText, nullable=False),
    sa.Column("choices", SafeJson, nullable=False),
    sa.Column("default", SafeText),
    sa.Column("status", sa.String(20), nullable=False),
    sa.Column("answer", SafeText),
    sa.Column("asked_at", Instant, nullable=False),
    sa.Column("expires_at", Instant),
    sa.Column("ended_at", Instant),
    sa.Index("ix_questions_status_asked_at", "status", "asked_at"),
    sa.Index("ix_questions_task_id", "task_id"),
    sa.Index("ix_questions_run_id", "run_id"),
)

schedules = sa.Table(
    "schedules",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("title", SafeText, nullable=False),
    # What it starts: "task", or the name of a pattern, and the specification of that.
    sa.Column("kind", SafeText, nullable=False),
    sa.Column("spec", SafeJson, nullable=False),
    sa.Column("directory", SafeText, nullable=False),
    sa.Column("project", SafeText),
    sa.Column("cron", SafeText),
    sa.Column("timezone", SafeText),
    sa.Column("at", Instant),
    sa.Column("every_s", sa.Float),
    sa.Column("after", sa.String(40)),
    sa.Column("missed", sa.String(20), nullable=False),
    sa.Column("overlap", sa.Boolean, nullable=False),
    sa.Column("max_runs", sa.Integer),
    sa.Column("expires_at", Instant),
    sa.Column("status", sa.String(20), nullable=False),
    sa.Column("reason", SafeText),
    # The next slot; NULL while there is none or while another schedule decides.
    sa.Column("next_at", Instant),
    sa.Column("started", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("ended_at", Instant),
    sa.Column("idempotency_key", sa.String(200), unique=True),
    sa.Index("ix_schedules_status_next_at", "status", "next_at"),
    sa.Index("ix_schedules_after", "after"),
)

firings = sa.Table(
    "firings",
    metadata,
    sa.Column("schedule_id", sa.ForeignKey("schedules.id", ondelete="CASCADE"), primary_key=True),
    # The moment that it was meant for: there is one firing for each.
    sa.Column("slot", Instant, primary_key=True),
    sa.Column("at", Instant, nullable=False),
    sa.Column("outcome", sa.String(20), nullable=False),
    sa.Column("reason", SafeText),
    # The task or run that it started.
    sa.Column("subject", sa.String(40)),
    sa.Index("ix_firings_subject", "subject"),
)

learnings = sa.Table(
    "learnings",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("title", SafeText, nullable=False),
    sa.Column("content", SafeText, nullable=False),
    sa.Column("tags", SafeJson, nullable=False),
    sa.Column("scope", sa.String(10), nullable=False),
    sa.Column("project", SafeText),
    sa.Column("status", sa.String(10), nullable=False),
    sa.Column("reason", SafeText),
    sa.Column("author", SafeText, nullable=False),
    # Not a foreign key: what was learned outlives the task.
    sa.Column("task_id", sa.String(40)),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("changed_at", Instant, nullable=False),
    # When it was last compared with the others.
    sa.Column("reviewed_at", Instant),
    sa.Index("ix_learnings_project_id", "project", "id"),
    sa.Index("ix_learnings_task_id", "task_id"),
    sa.Index("ix_learnings_status_reviewed_at", "status", "reviewed_at"),
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
positions = sa.Table(
    "positions",
    metadata,
    sa.Column("reader", sa.String(20), primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("name", SafeText, primary_key=True),
    # The repositories of which it is the current one.
    sa.Column("directories", SafeJson, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("archived_at", Instant),
)

templates = sa.Table(
    "templates",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("guidelines", SafeText, nullable=False),
    sa.Column("agent", SafeText),
    sa.Column("model", SafeText),
    sa.Column("directory", SafeText),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("changed_at", Instant, nullable=False),
)

notes = sa.Table(
    "notes",
    metadata,
    # global, project:NAME, or the id of the run or task at the top of a family.
    sa.Column("scope", SafeText, primary_key=True),
    sa.Column("key", SafeText, primary_key=True),
    # NULL is a deleted one, whose version says when it changed.
    sa.Column("value", SafeText),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("author", sa.String(40), nullable=False),
    sa.Column("task_id", sa.String(40)),
    sa.Column("updated_at", Instant, nullable=False),
)

locks = sa.Table(
    "locks",
    metadata,
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


def end_of(table: sa.Table) -> sa.ColumnElement[str]:
    """The end of a row's id, by which people know it."""
    before = len(table.name) + 26 - SHORT  # the kind is the table's name without its s
    # A literal, or the index would not be found by it.
    return sa.func.substr(table.c.id, sa.literal_column(str(before + 1)))


for _table in (tasks, runs, schedules, learnings):
    sa.Index(f"ix_{_table.name}_end", end_of(_table))
