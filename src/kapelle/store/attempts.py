"""Attempts of tasks, the results of their checks, and proofs of checks."""

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kapelle.domain.specs import CheckKind
from kapelle.domain.states import AttemptStatus
from kapelle.domain.task import Attempt, CheckResult, Exit, Usage
from kapelle.store.query import Row, group, has_row
from kapelle.store.rows import Rows
from kapelle.store.statements import Statement
from kapelle.store.tables import attempts, checks, proofs, questions, tasks

_INSERT = Statement(attempts.insert())
_LATEST = Statement(
    sa.select(attempts)
    .where(attempts.c.task_id == sa.bindparam("task_id"))
    .order_by(attempts.c.number.desc())
    .limit(1)
)
_asks = sa.exists().where(questions.c.task_id == tasks.c.id, ~questions.c.told)
_asks = _asks.where(questions.c.attempt_id == attempts.c.id, questions.c.status != "withdrawn")
_CLAIM = Statement(
    sa.select(attempts.c.status, attempts.c.performer, attempts.c.handed_in, tasks.c.stop)
    .add_columns(_asks.label("asks"))
    .join(tasks, tasks.c.id == attempts.c.task_id)
    .where(attempts.c.id == sa.bindparam("attempt_id"))
)
_RUNNING = Statement(
    sa.select(attempts.c.id, tasks.c.status)
    .join(tasks, tasks.c.id == attempts.c.task_id)
    .where(attempts.c.status == AttemptStatus.RUNNING)
    .where(attempts.c.performer == sa.bindparam("performer"))
    .order_by(attempts.c.id)
)
_IDS: sa.BindParameter[str] = sa.bindparam("ids", expanding=True)
_OF_TASKS = sa.select(attempts).where(attempts.c.task_id.in_(_IDS))
_OF_TASKS = _OF_TASKS.order_by(attempts.c.task_id, attempts.c.number)
_CHECKS_OF = sa.select(checks).where(checks.c.attempt_id.in_(_IDS))
_CHECKS_OF = _CHECKS_OF.order_by(checks.c.attempt_id, checks.c.position)
_rows = Rows(attempts, "attempt")


def load_row(connection: sa.Connection, attempt_id: str) -> Row:
    """Return the stored row of an attempt; raise NotFound if there is none."""
    return _rows.load(connection, attempt_id)


def update(connection: sa.Connection, attempt_id: str, /, **values: Any) -> None:
    """Change columns of an attempt."""
    _rows.update(connection, attempt_id, **values)


def list_ended(
    connection: sa.Connection, ids: Sequence[str], before: datetime, limit: int
) -> list[str]:
    """Return the given ids of attempts that ended before a time, at most `limit` of them."""
    return _rows.list_ended(connection, ids, before, limit)


def take_over(connection: sa.Connection, performer: str) -> int:
    """Claim the running attempts of other performers; return their number."""
    return _rows.take_over(connection, performer)


def insert(connection: sa.Connection, /, **values: Any) -> None:
    """Store an attempt, with a new secret for the records of its agent's process."""
    _INSERT.write(connection, secret=secrets.token_hex(32), **values)


def find_latest(connection: sa.Connection, task_id: str) -> Row | None:
    """Return the newest attempt of a task, if there is one."""
    return _LATEST.first(connection, task_id=task_id)


def find_open(connection: sa.Connection, task_id: str) -> Row | None:
    """Return the attempt of a task that has not ended, if there is one."""
    row = find_latest(connection, task_id)
    if row is not None and row["ended_at"] is None:
        return row
    return None


def find_claim(connection: sa.Connection, attempt_id: str) -> Row | None:
    """Return what an attempt checks again and again while it works.

    The columns are its status and performer, the result that it handed in (`handed_in`), the
    request to stop ("cancel" or "requeue"), and whether it has a question whose end was not
    delivered to it (`asks`).
    """
    return _CLAIM.first(connection, attempt_id=attempt_id)


def list_rows(connection: sa.Connection, task_id: str) -> list[Row]:
    """Return the rows of a task's attempts, the oldest first."""
    query = sa.select(attempts).where(attempts.c.task_id == task_id).order_by(attempts.c.number)
    return list(connection.execute(query).mappings())


def load_session_usage(connection: sa.Connection, session_id: str) -> dict[str, float]:
    """Return the usage counters of a session at the end of the last attempt that reported them."""
    counters = attempts.c.session_usage
    query = sa.select(counters).where(attempts.c.session_id == session_id, counters.is_not(None))
    return connection.execute(query.order_by(attempts.c.id.desc()).limit(1)).scalar() or {}


def add_warning(connection: sa.Connection, attempt_id: str, what: str, text: str) -> bool:
    """Add a warning to an attempt; return False if it already has one of this kind."""
    warnings = load_row(connection, attempt_id)["warnings"]
    if any(warning["what"] == what for warning in warnings):
        return False
    at = datetime.now(UTC).isoformat()
    update(connection, attempt_id, warnings=[*warnings, {"at": at, "what": what, "text": text}])
    return True


def load_running(connection: sa.Connection, performer: str) -> dict[str, str]:
    """Return the running attempts of a performer, each with the status of its task."""
    return {row["id"]: row["status"] for row in _RUNNING.rows(connection, performer=performer)}


def has_running_trial(
    connection: sa.Connection, account: str, recently: datetime, since: datetime, *model: str | None
) -> bool:
    """Return whether an attempt is testing right now if a rate limit has ended.

    The test is the first attempt with the account since the end of the pause (`since`), and with
    the model if one is given. It counts only while it runs and if it started after `recently`: a
    long attempt must not hold up the others.
    """
    conditions = [attempts.c.account == account]
    for name in model:
        conditions.append(attempts.c.model.is_not_distinct_from(name))
    started = attempts.c.started_at
    has_running = has_row(
        connection,
        *conditions,
        attempts.c.status == AttemptStatus.RUNNING,
        started >= max(since, recently),
    )
    if not has_running:
        return False
    return not has_row(connection, *conditions, started >= since, started < recently)


def load_ids(connection: sa.Connection) -> set[str]:
    """Return the ids of all attempts."""
    return set(connection.execute(sa.select(attempts.c.id)).scalars())


def list_in_workspace(connection: sa.Connection, owner: str) -> list[str]:
    """Return the attempts that worked in the worktree of a task or run."""
    shares = sa.or_(tasks.c.id == owner, tasks.c.workspace_owner == owner)
    query = sa.select(attempts.c.id).join(tasks, tasks.c.id == attempts.c.task_id).where(shares)
    return list(connection.execute(query).scalars())


def load_beginnings(connection: sa.Connection, owner: str) -> list[tuple[int, int]]:
    """Return the starts of attempts in the worktree of a task or run.

    Each is a time in nanoseconds of the file system's clock, and the inode of the worktree.
    """
    shares = sa.or_(tasks.c.id == owner, tasks.c.workspace_owner == owner)
    query = sa.select(attempts.c.began_ns, attempts.c.began_inode)
    query = query.join(tasks, tasks.c.id == attempts.c.task_id)
    query = query.where(shares, attempts.c.began_ns.is_not(None))
    return [(row.began_ns, row.began_inode) for row in connection.execute(query)]


def group_by_task(connection: sa.Connection, ids: Sequence[str]) -> dict[str, list[Attempt]]:
    """Return the attempts of each task, the oldest first."""
    if not ids:
        return {}
    rows = connection.execute(_OF_TASKS, {"ids": ids}).mappings()
    return group((row["task_id"], _read_attempt(row)) for row in rows)


def add_check(
    connection: sa.Connection, attempt_id: str, position: int, result: CheckResult
) -> None:
    """Store the result of a check in place of an earlier one at the same position."""
    same = (checks.c.attempt_id == attempt_id, checks.c.position == position)
    connection.execute(checks.delete().where(*same))
    values = {"attempt_id": attempt_id, "position": position, **result.model_dump(mode="json")}
    values["doubted"] = result.is_doubted
    connection.execute(checks.insert(), values)


def load_checks(connection: sa.Connection, attempt_id: str) -> dict[int, CheckResult]:
    """Return the results of an attempt's checks by their positions."""
    query = sa.select(checks).where(checks.c.attempt_id == attempt_id)
    rows = connection.execute(query).mappings()
    return {row["position"]: CheckResult.model_validate({**row}) for row in rows}


def load_commits(connection: sa.Connection, task_id: str) -> dict[int, str | None]:
    """Return the commit that each attempt of a task had before its checks, by its number."""
    columns = (attempts.c.number, attempts.c.checked_commit)
    query = sa.select(*columns).where(attempts.c.task_id == task_id)
    return {row.number: row.checked_commit for row in connection.execute(query)}


def group_checks(connection: sa.Connection, ids: Sequence[str]) -> dict[str, list[CheckResult]]:
    """Return the check results of each attempt in order; an attempt without checks has []."""
    if not ids:
        return group([])
    rows = connection.execute(_CHECKS_OF, {"ids": ids}).mappings()
    return group((row["attempt_id"], CheckResult.model_validate({**row})) for row in rows)


_others = checks.alias()
# The condition of `is_verified` in SQL, for one check: it looked at the work, and no check of its
# attempt passed for a reason that a person has to review.
LOOKS_AT_WORK = sa.and_(
    checks.c.proved.is_not(False),
    sa.or_(checks.c.command != "", checks.c.name == CheckKind.CI),
    ~sa.exists().where(_others.c.attempt_id == checks.c.attempt_id, _others.c.doubted),
)


def is_verified(results: Sequence[Any]) -> bool:
    """Return whether one of these checks looked at the work, and none has to be reviewed.

    Only commands and CI look at the work: the other built-in checks also pass on nonsense, because
    they only require a change, or output without an error.
    """
    if any(result.is_doubted for result in results):
        return False
    for result in results:
        if result.proved is not False and (result.command or result.name == CheckKind.CI):
            return True
    return False


def find_proof(connection: sa.Connection, digest: str) -> Row | None:
    """Return the stored proof of a check command in a repository, if there is one."""
    return connection.execute(proofs.select().where(proofs.c.digest == digest)).mappings().first()


def list_proofs(connection: sa.Connection, digests: Sequence[str]) -> list[Row]:
    """Return the stored proofs with any of these digests."""
    query = proofs.select().where(proofs.c.digest.in_(digests))
    return list(connection.execute(query).mappings())


def load_session_model(connection: sa.Connection, session_id: str) -> str | None:
    """Return the model of the last attempt of a session that reported a model."""
    query = (
        sa.select(attempts.c.model)
        .where(attempts.c.session_id == session_id, attempts.c.model.is_not(None))
        .order_by(attempts.c.id.desc())
        .limit(1)
    )
    model: str | None = connection.execute(query).scalar()
    return model


def store_proof(
    connection: sa.Connection, digests: Sequence[str], proved: bool | None, proof: str
) -> None:
    """Store the proof of a check command under each of its digests."""
    connection.execute(proofs.delete().where(proofs.c.digest.in_(digests)))
    rows = [{"digest": digest, "proved": proved, "proof": proof} for digest in digests]
    connection.execute(proofs.insert(), rows)


def _read_attempt(row: Row) -> Attempt:
    exit_fields = {name: row[f"exit_{name}"] for name in Exit.model_fields}
    process_exit = None
    if exit_fields["kind"]:
        process_exit = exit_fields
    return Attempt.model_validate({**row, "exit": process_exit, "usage": read_usage(row)})


def read_usage(row: Mapping[str, Any]) -> Usage | None:
    """Return the usage in the row of an attempt; None if the agent reported none."""
    if row["input_tokens"] is None:
        return None
    return Usage(**{name: row[name] for name in Usage.model_fields})
