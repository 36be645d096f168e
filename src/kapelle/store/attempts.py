"""Queries about attempts and the checks made on them."""

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
    """Store an attempt, with the secret of its agent's process."""
    _INSERT.write(connection, secret=secrets.token_hex(32), **values)


def find_latest(connection: sa.Connection, task_id: str) -> Row | None:
    return _LATEST.first(connection, task_id=task_id)


def find_open(connection: sa.Connection, task_id: str) -> Row | None:
    """The attempt of a task that has not ended, if there is one."""
    found = find_latest(connection, task_id)
    if found is not None and found["ended_at"] is None:
        return found
    return None


def find_claim(connection: sa.Connection, attempt_id: str) -> Row | None:
    """Its status, who performs it, what a person wants of it: "cancel", "requeue", nothing; what it
    handed in, and whether it asks what it was not told the end of."""
    return _CLAIM.first(connection, attempt_id=attempt_id)


def list_rows(connection: sa.Connection, task_id: str) -> list[Row]:
    """The rows of a task's attempts, oldest first."""
    query = sa.select(attempts).where(attempts.c.task_id == task_id).order_by(attempts.c.number)
    return list(connection.execute(query).mappings())


def load_session_usage(connection: sa.Connection, session_id: str) -> dict[str, float]:
    """What a session's counters stood at when the last attempt that told them ended."""
    used = attempts.c.session_usage
    query = sa.select(used).where(attempts.c.session_id == session_id, used.is_not(None))
    return connection.execute(query.order_by(attempts.c.id.desc()).limit(1)).scalar() or {}


def add_warning(connection: sa.Connection, attempt_id: str, what: str, text: str) -> bool:
    """Add a warning to an attempt; False when it has one of this kind already."""
    known = load_row(connection, attempt_id)["warnings"]
    if any(warning["what"] == what for warning in known):
        return False
    at = datetime.now(UTC).isoformat()
    update(connection, attempt_id, warnings=[*known, {"at": at, "what": what, "text": text}])
    return True


def load_running(connection: sa.Connection, performer: str) -> dict[str, str]:
    """The ids of the attempts that this performer has claimed and that have not ended, with the
    status of their tasks."""
    return {row["id"]: row["status"] for row in _RUNNING.rows(connection, performer=performer)}


def has_running_trial(
    connection: sa.Connection, account: str, recently: datetime, since: datetime, *model: str | None
) -> bool:
    """Whether of the attempts under this account since then, by this model if one is given, the
    first is a recent one and one still runs."""
    by_model = (attempts.c.model.is_not_distinct_from(one) for one in model)
    under = (attempts.c.account == account, *by_model)
    began = attempts.c.started_at
    running = (attempts.c.status == AttemptStatus.RUNNING, began >= max(since, recently))
    earlier = (began >= since, began < recently)
    return has_row(connection, *under, *running) and not has_row(connection, *under, *earlier)


def load_ids(connection: sa.Connection) -> set[str]:
    return set(connection.execute(sa.select(attempts.c.id)).scalars())


def list_in_workspace(connection: sa.Connection, owner: str) -> list[str]:
    """Attempts that worked in the worktree of a task or a run."""
    shares = sa.or_(tasks.c.id == owner, tasks.c.workspace_owner == owner)
    query = sa.select(attempts.c.id).join(tasks, tasks.c.id == attempts.c.task_id).where(shares)
    return list(connection.execute(query).scalars())


def load_beginnings(connection: sa.Connection, owner: str) -> list[tuple[int, int]]:
    """When attempts began to work in the worktree of a task or a run, and its inode then."""
    shares = sa.or_(tasks.c.id == owner, tasks.c.workspace_owner == owner)
    query = sa.select(attempts.c.began_ns, attempts.c.began_inode)
    query = query.join(tasks, tasks.c.id == attempts.c.task_id)
    query = query.where(shares, attempts.c.began_ns.is_not(None))
    return [(ns, inode) for ns, inode in connection.execute(query)]


def group_by_task(connection: sa.Connection, ids: Sequence[str]) -> dict[str, list[Attempt]]:
    rows = connection.execute(_OF_TASKS, {"ids": ids}).mappings() if ids else ()
    return group((row["task_id"], _attempt(row)) for row in rows)


def add_check(
    connection: sa.Connection, attempt_id: str, position: int, result: CheckResult
) -> None:
    same = (checks.c.attempt_id == attempt_id, checks.c.position == position)
    connection.execute(checks.delete().where(*same))
    values = {"attempt_id": attempt_id, "position": position, **result.model_dump(mode="json")}
    values["doubted"] = result.is_doubted
    connection.execute(checks.insert(), values)


def load_checks(connection: sa.Connection, attempt_id: str) -> dict[int, CheckResult]:
    """The checks already made on an attempt, by their position."""
    query = sa.select(checks).where(checks.c.attempt_id == attempt_id)
    return {
        mapping["position"]: CheckResult.model_validate(dict(mapping))
        for mapping in connection.execute(query).mappings()
    }


def load_commits(connection: sa.Connection, task_id: str) -> dict[int, str | None]:
    """Return what each attempt of a task had committed before its checks, by its number."""
    columns = (attempts.c.number, attempts.c.checked_commit)
    query = sa.select(*columns).where(attempts.c.task_id == task_id)
    return {row.number: row.checked_commit for row in connection.execute(query)}


def group_checks(connection: sa.Connection, ids: Sequence[str]) -> dict[str, list[CheckResult]]:
    rows = connection.execute(_CHECKS_OF, {"ids": ids}).mappings() if ids else ()
    return group((row["attempt_id"], CheckResult.model_validate({**row})) for row in rows)


_others = checks.alias()
# The same as is_seen, in SQL, of the checks of one attempt.
LOOKS_AT_WORK = sa.and_(
    checks.c.proved.is_not(False),
    sa.or_(checks.c.command != "", checks.c.name == CheckKind.CI),
    ~sa.exists().where(_others.c.attempt_id == checks.c.attempt_id, _others.c.doubted),
)


def is_verified(made: Sequence[Any]) -> bool:
    """Whether one of these checks looked at the work, and none passed for a reason to be looked at:
    that something was changed, or that no error was printed, is true of nonsense as well."""
    if any(one.is_doubted for one in made):
        return False
    sees = (one for one in made if one.proved is not False)
    return any(one.command or one.name == CheckKind.CI for one in sees)


def find_proof(connection: sa.Connection, digest: str) -> Row | None:
    """What was found about a command in a repository before."""
    return connection.execute(proofs.select().where(proofs.c.digest == digest)).mappings().first()


def list_proofs(connection: sa.Connection, digests: Sequence[str]) -> list[Row]:
    """Return what was found before below any of these digests."""
    query = proofs.select().where(proofs.c.digest.in_(digests))
    return list(connection.execute(query).mappings())


def load_session_model(connection: sa.Connection, session_id: str) -> str | None:
    """Return the model of the last attempt in a session of which a model is known."""
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
    """Store what was found about a command, below each of its digests."""
    connection.execute(proofs.delete().where(proofs.c.digest.in_(digests)))
    rows = [{"digest": digest, "proved": proved, "proof": proof} for digest in digests]
    connection.execute(proofs.insert(), rows)


def _attempt(mapping: Row) -> Attempt:
    exit = {name: mapping[f"exit_{name}"] for name in Exit.model_fields}
    return Attempt.model_validate(
        {**mapping} | {"exit": exit if exit["kind"] else None} | {"usage": read_usage(mapping)}
    )


def read_usage(mapping: Mapping[str, Any]) -> Usage | None:
    """What an attempt's row says that it used; None if nothing was told."""
    if mapping["input_tokens"] is None:
        return None
    return Usage(**{name: mapping[name] for name in Usage.model_fields})
