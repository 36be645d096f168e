"""Runs: stored, listed, with their families, usage, verification and changes of status."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from kapelle.domain.budget import Spent, format_call_limit
from kapelle.domain.needs import find_need
from kapelle.domain.run import Run, RunFilter
from kapelle.domain.states import FINAL, RUN_FINAL, RunStatus, TaskStatus, require_transition
from kapelle.domain.task import CheckResult
from kapelle.store import deliveries, events, projects, questions, steps
from kapelle.store.attempts import is_verified
from kapelle.store.query import Conditions, count_rows, group, select_in_parts
from kapelle.store.query import Row as Row
from kapelle.store.rows import RUNS, view_workspace
from kapelle.store.statements import Statement
from kapelle.store.tables import attempts, checks, runs, tasks
from kapelle.store.tables import steps as step_rows

_COUNT_QUEUED = Statement(sa.select(sa.func.count()).where(runs.c.status == RunStatus.QUEUED))
_MAY_ASK = frozenset({RunStatus.RUNNING, RunStatus.WAITING, RunStatus.PAUSED})
_LENGTH = sa.func.length(sa.cast(runs.c.spec, sa.Text)) + sa.func.coalesce(
    sa.func.length(sa.cast(runs.c.result, sa.Text)), 0
)


_OPEN = [status for status in RunStatus if status not in RUN_FINAL]

_tops = sa.select(runs.c.id).where(runs.c.status.in_(_OPEN)).cte("going", recursive=True)
_going = _tops.union(sa.select(runs.c.id).join(_tops, runs.c.parent_id == _tops.c.id))
# The open runs and all runs inside them, including ended ones.
GOING = sa.select(_going.c.id)


class RunClaim(NamedTuple):
    """The performer of a run: a daemon, and the number of the run's execution."""

    performer: str
    execution: int

    def holds(self, run: Row) -> bool:
        """Return whether this execution may still write to the run."""
        claim = RunClaim(run["performer"], run["executions"])
        return run["status"] == RunStatus.RUNNING and claim == self


def load_row(connection: sa.Connection, run_id: str) -> Row:
    """Return the stored row of a run; raise NotFound if there is none."""
    return RUNS.load(connection, run_id)


def find(connection: sa.Connection, run_id: str) -> Row | None:
    """Return the stored row of a run, if there is one."""
    return RUNS.find(connection, run_id)


def update(connection: sa.Connection, run_id: str, /, **values: Any) -> None:
    """Change columns of a run."""
    RUNS.update(connection, run_id, **values)


def resolve(connection: sa.Connection, text: str) -> str:
    """Return the whole id of a run for the part that a person typed, or raise NotFound."""
    return RUNS.resolve(connection, text)


def find_by_key(connection: sa.Connection, key: str) -> Row | None:
    """Return the row that was stored with an idempotency key, if there is one."""
    return RUNS.find_by_key(connection, key)


def list_ended(
    connection: sa.Connection, ids: Sequence[str], before: datetime, limit: int
) -> list[str]:
    """Return the given ids of runs that ended before a time, at most `limit` of them."""
    return RUNS.list_ended(connection, ids, before, limit)


def take_over(connection: sa.Connection, performer: str) -> int:
    """Claim the running runs of other performers; return their number."""
    return RUNS.take_over(connection, performer)


def insert(connection: sa.Connection, values: dict[str, Any]) -> None:
    """Store a new run."""
    projects.join(connection, values)
    connection.execute(runs.insert(), values)


def get(connection: sa.Connection, text: str) -> Run:
    """Return a run by its whole id or a unique part of it; raise NotFound."""
    return _build_runs(connection, [load_row(connection, resolve(connection, text))])[0]


def list_page(
    connection: sa.Connection,
    filter_: RunFilter,
    among: Sequence[str] | None = None,
    conditions: Conditions = (),
) -> tuple[list[Run], str | None]:
    """Return one page of runs, the newest first, and the cursor of the next page.

    With `among`, only these runs count. conditions are added to those of the filter.
    """
    base = _select_ids(filter_, conditions)
    rows, cursor = RUNS.list_page(connection, filter_, base, _LENGTH, among)
    return _build_runs(connection, rows), cursor


def count_matches(connection: sa.Connection, filter_: RunFilter, conditions: Conditions) -> int:
    """Return the number of runs on all pages of a filter."""
    return RUNS.count_matches(connection, filter_, _select_ids(filter_, conditions))


def list_by_ids(connection: sa.Connection, ids: Sequence[str]) -> list[Run]:
    """Return the runs of the ids that exist, the newest first."""
    return _build_runs(connection, RUNS.list_by_ids(connection, ids))


def _select_ids(filter_: RunFilter, conditions: Conditions) -> sa.Select[Any]:
    query = sa.select(runs.c.id).where(*conditions)
    if filter_.parent_id is None and not filter_.nested:
        query = query.where(runs.c.parent_id.is_(None))
    return query


def find_end_reason(connection: sa.Connection, run_id: str) -> str | None:
    """Return the reason of a request to end a run, if there is a request."""
    run = find(connection, run_id)
    if run is None or run["stop"] not in {"cancel", "abandon"}:
        return None
    return run["reason"] or "cancelled"


def list_queued(connection: sa.Connection, limit: int) -> list[str]:
    """Return queued runs in order, at most `limit` top-level ones.

    Runs inside other runs come first and are not limited, because their parents wait for them.
    """
    query = sa.select(runs.c.id).where(runs.c.status == RunStatus.QUEUED).order_by(runs.c.id)
    nested = connection.execute(query.where(runs.c.parent_id.is_not(None))).scalars().all()
    top_level = query.where(runs.c.parent_id.is_(None)).limit(max(0, limit))
    return [*nested, *connection.execute(top_level).scalars()]


def count_queued(connection: sa.Connection) -> int:
    """Return the number of queued runs."""
    """Return the number of queued runs."""
    number: int = _COUNT_QUEUED.scalar(connection)
    return number


def list_running(connection: sa.Connection) -> list[str]:
    """Return the ids of all running runs."""
    query = sa.select(runs.c.id).where(runs.c.status == RunStatus.RUNNING).order_by(runs.c.id)
    return list(connection.execute(query).scalars())


def list_executions(connection: sa.Connection, performer: str) -> list[str]:
    """Return the executions of a performer that are under way, each as `<run id>.<number>`."""
    query = sa.select(runs.c.id, runs.c.executions).where(runs.c.status == RunStatus.RUNNING)
    query = query.where(runs.c.performer == performer).order_by(runs.c.id)
    return [f"{run_id}.{number}" for run_id, number in connection.execute(query)]


def count_running_tops(connection: sa.Connection) -> int:
    """Return the number of running top-level runs."""
    return count_rows(connection, runs.c.status == RunStatus.RUNNING, runs.c.parent_id.is_(None))


def list_family(connection: sa.Connection, run_id: str) -> list[str]:
    """Return a run and all runs below it, parents before their children."""
    return _load_families(connection, [run_id])[run_id]


def _load_families(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return each run with all runs below it, with one query for each generation."""
    query = sa.select(runs.c.parent_id, runs.c.id).order_by(runs.c.id)
    links = list[tuple[str, str]]()
    generation = {*run_ids}
    while generation:
        rows = [*select_in_parts(connection, query, runs.c.parent_id, sorted(generation))]
        generation = {row.id for row in rows} - {*run_ids}
        links += rows
    children_of = group(links)
    families = {}
    for run_id in run_ids:
        family = [run_id]
        for member in family:  # the list grows while it is read
            family += children_of.get(member, ())
        families[run_id] = family
    return families


def count_depth(connection: sa.Connection, run_id: str | None) -> int:
    """Return the number of runs around a run, including itself."""
    depth = 0
    while run_id is not None:
        run_id = load_row(connection, run_id)["parent_id"]
        depth += 1
    return depth


def list_open_tasks(connection: sa.Connection, run_ids: Sequence[str]) -> list[Row]:
    """Return the rows of the open tasks of these runs."""
    names = ("id", "run_id", "title", "status", "reason", "waiting_for", "question", "stop")
    query = sa.select(*(tasks.c[name] for name in names), runs.c.may_ask)
    query = query.join(runs, runs.c.id == tasks.c.run_id).where(tasks.c.run_id.in_(run_ids))
    query = query.where(tasks.c.status.not_in(FINAL)).order_by(tasks.c.id)
    return list(connection.execute(query).mappings())


def list_open(connection: sa.Connection, run_ids: Sequence[str]) -> list[Row]:
    """Return the rows of those of the runs that have not ended."""
    query = sa.select(runs).where(runs.c.id.in_(run_ids), runs.c.status.not_in(RUN_FINAL))
    return list(connection.execute(query.order_by(runs.c.id)).mappings())


def list_ended_tasks(connection: sa.Connection, run_id: str) -> list[str]:
    """Return the ids of the ended tasks of a run."""
    query = sa.select(tasks.c.id).where(tasks.c.run_id == run_id, tasks.c.status.in_(FINAL))
    return list(connection.execute(query.order_by(tasks.c.id)).scalars())


def sum_usage(connection: sa.Connection, run_ids: Sequence[str]) -> tuple[int, float | None]:
    """Return the number of attempts of these runs and their known cost."""
    return _add_up(_load_usage(connection, run_ids), run_ids)


def _load_usage(
    connection: sa.Connection, run_ids: Sequence[str]
) -> dict[str, tuple[int, float | None]]:
    """Return the number of attempts and the known cost of each run that has attempts."""
    query = sa.select(tasks.c.run_id, sa.func.count(), sa.func.sum(attempts.c.cost_usd))
    query = query.join_from(attempts, tasks, tasks.c.id == attempts.c.task_id)
    query = query.group_by(tasks.c.run_id)
    usage = {}
    for run_id, calls, cost in select_in_parts(connection, query, tasks.c.run_id, run_ids):
        usage[run_id] = (calls, cost)
    return usage


def _add_up(
    usage: Mapping[str, tuple[int, float | None]], run_ids: Sequence[str]
) -> tuple[int, float | None]:
    total_calls = 0
    total_cost: float | None = None
    for run_id in run_ids:
        calls, cost = usage.get(run_id, (0, None))
        total_calls += calls
        if cost is not None:
            total_cost = (total_cost or 0.0) + cost
    return total_calls, total_cost


def count_calls(connection: sa.Connection, run_id: str, *, started_only: bool = False) -> int:
    """Return the number of agent calls of a run and the runs inside it.

    Open tasks without an attempt count as calls too, unless only started calls are to be counted.
    """
    members = list_family(connection, run_id)
    calls = sum_usage(connection, members)[0]
    if started_only:
        return calls
    has_attempt = sa.exists().where(attempts.c.task_id == tasks.c.id)
    is_planned = (tasks.c.run_id.in_(members), ~has_attempt, tasks.c.status.not_in(FINAL))
    return calls + count_rows(connection, *is_planned)


def find_call_limit(connection: sa.Connection, run_id: str | None, *, one_more: bool) -> str | None:
    """Return the reason if a run, or a run around it, has exceeded its limit of agent calls.

    With one_more, a further call counts in addition to the started ones.
    """
    next_id = run_id
    while next_id is not None:
        run = load_row(connection, next_id)
        limit = run["spec"].get("max_agent_calls")
        if limit is not None:
            calls = count_calls(connection, next_id, started_only=one_more)
            if one_more:
                calls += 1
            if calls > limit:
                outer_run = None if next_id == run_id else next_id
                return format_call_limit(limit, outer_run)
        next_id = run["parent_id"]
    return None


def skip_downtime(connection: sa.Connection, run_id: str, last_alive: datetime | None) -> None:
    """Count the active time of a run up to the death of its daemon, and again from now on.

    The daemon died after its last sign of life, and after the last step of the run.
    """
    run = load_row(connection, run_id)
    since = run["active_since"]
    now = datetime.now(UTC)
    signs = (since, last_alive, steps.find_last_activity(connection, run_id))
    alive = min(now, max(sign for sign in signs if sign is not None))
    seconds = run["active_s"] + (alive - since).total_seconds()
    update(connection, run_id, active_since=now, active_s=seconds)


def change(
    connection: sa.Connection,
    run_id: str,
    status: RunStatus,
    reason: str | None = None,
    /,
    **values: Any,
) -> None:
    """Change the status of a run, add up its active time, and store an event."""
    run = load_row(connection, run_id)
    require_transition(run_id, RunStatus(run["status"]), status)
    now = datetime.now(UTC)
    if status is RunStatus.RUNNING:
        values |= {"active_since": now, "started_at": run["started_at"] or now}
    elif run["active_since"] is not None:
        seconds = (now - run["active_since"]).total_seconds()
        values |= {"active_since": None, "active_s": run["active_s"] + max(0.0, seconds)}
    if status in RUN_FINAL:
        questions.withdraw(connection, run_id)
        values |= {"ended_at": max(now, run["started_at"] or now), "stop": None}
    values.setdefault("waiting_for", None)
    values.setdefault("stopped_by", None)
    update(connection, run_id, status=status, reason=reason, **values)
    data = {"title": run["title"], "pattern": run["pattern"], "reason": reason}
    if values["stopped_by"] is not None:
        data["stopped_by"] = values["stopped_by"]
    if status is RunStatus.COMPLETED:
        verified_ids = _find_verified_families(connection, _load_families(connection, [run_id]))
        denies = _denies_verification(values.get("result"))
        data["verified"] = run_id in verified_ids and not denies
    events.append(connection, f"run.{status}", run_id, **data)


def list_ended_before(connection: sa.Connection, moment: datetime, limit: int) -> list[str]:
    """Return runs that ended before a time, the earliest first, except those inside open runs."""
    query = sa.select(runs.c.id).where(runs.c.ended_at < moment, runs.c.id.not_in(GOING))
    query = query.order_by(runs.c.ended_at, runs.c.id).limit(limit)
    return list(connection.execute(query).scalars())


def delete(connection: sa.Connection, run_id: str) -> None:
    """Delete a run with its steps and its delivery."""
    deliveries.delete(connection, run_id)
    connection.execute(runs.delete().where(runs.c.id == run_id))


def find_verified(connection: sa.Connection, run_ids: Sequence[str]) -> set[str]:
    """Return which of these completed runs are verified."""
    if not run_ids:
        return set()
    query = sa.select(runs.c.id, runs.c.result)
    rows = select_in_parts(connection, query, runs.c.id, run_ids)
    candidates = [row.id for row in rows if not _denies_verification(row.result)]
    if not candidates:
        return set()
    return _find_verified_families(connection, _load_families(connection, candidates))


def _find_verified_families(
    connection: sa.Connection, families: Mapping[str, Sequence[str]]
) -> set[str]:
    """Return the top runs whose checks, or those of their completed tasks, looked at the work.

    A score is not a check: any number is a score, also that of work that does not run.
    """
    task_checks = _load_task_checks(connection, families)
    verified_ids = set()
    for top, family in families.items():
        results = []
        for run_id in family:
            results += task_checks[run_id]
        if is_verified(results):
            verified_ids.add(top)
    # The results of steps are long, so they are read only if the tasks do not suffice.
    members: set[str] = set()
    for top in families.keys() - verified_ids:
        members.update(families[top])
    by_steps = _find_verified_by_steps(connection, sorted(members))
    for top, family in families.items():
        if not by_steps.isdisjoint(family):
            verified_ids.add(top)
    return verified_ids - _find_doubted(connection, sorted(verified_ids))


def _load_task_checks(
    connection: sa.Connection, families: Mapping[str, Sequence[str]]
) -> defaultdict[str, list[Any]]:
    """Return the passed checks of the completed tasks of each run."""
    members = list[str]()
    for family in families.values():
        members += family
    query = sa.select(
        tasks.c.run_id,
        checks.c.proved,
        checks.c.command,
        checks.c.name,
        checks.c.doubted.label("is_doubted"),
    )
    query = query.join_from(checks, attempts, attempts.c.id == checks.c.attempt_id)
    query = query.join(tasks, tasks.c.id == attempts.c.task_id).distinct()
    query = query.where(tasks.c.status == TaskStatus.COMPLETED, checks.c.passed)
    rows = select_in_parts(connection, query, tasks.c.run_id, members)
    return group((row.run_id, row) for row in rows)


def _find_verified_by_steps(connection: sa.Connection, run_ids: Sequence[str]) -> set[str]:
    """Return the runs with a step whose checks looked at the work."""
    query = sa.select(step_rows.c.run_id, step_rows.c.result).where(step_rows.c.kind == "check")
    verified_ids = set()
    for row in select_in_parts(connection, query, step_rows.c.run_id, run_ids):
        results = [CheckResult.model_validate(result) for result in row.result or ()]
        if is_verified([result for result in results if result.passed]):
            verified_ids.add(row.run_id)
    return verified_ids


def _find_doubted(connection: sa.Connection, run_ids: Sequence[str]) -> set[str]:
    """Return the runs whose last check passed for a reason that a person has to review."""
    columns = step_rows.c
    newest = sa.select(columns.run_id, sa.func.max(columns.position).label("position"))
    last = newest.where(columns.kind == "check").group_by(columns.run_id).subquery()
    is_last = sa.and_(last.c.run_id == columns.run_id, last.c.position == columns.position)
    query = sa.select(columns.run_id, columns.result).join(last, is_last)
    doubted_ids = set()
    for row in select_in_parts(connection, query, columns.run_id, run_ids):
        results = [CheckResult.model_validate(result) for result in row.result or ()]
        if any(result.is_doubted for result in results):
            doubted_ids.add(row.run_id)
    return doubted_ids


def _denies_verification(result: Any) -> bool:
    """Return whether a pattern reports that not all of its work was verified."""
    return isinstance(result, dict) and result.get("verified") is False


def _build_runs(connection: sa.Connection, rows: Sequence[Row]) -> list[Run]:
    """Return the runs of rows; the number of queries does not depend on the number of rows."""
    ids = [row["id"] for row in rows]
    deliveries_by_id = deliveries.load_by_owner(connection, ids)
    families = _load_families(connection, ids)
    members: set[str] = set()
    for family in families.values():
        members.update(family)
    usage = _load_usage(connection, sorted(members))
    candidates = {
        row["id"]: families[row["id"]]
        for row in rows
        if row["status"] == RunStatus.COMPLETED and not _denies_verification(row["result"])
    }
    verified_ids = _find_verified_families(connection, candidates)
    # A running run may have a question too: one branch asks while another one works.
    asking = [row["id"] for row in rows if row["status"] in _MAY_ASK]
    open_questions = group((one.work_id, one) for one in questions.list_open(connection, asking))
    now = datetime.now(UTC)
    result = []
    for row in rows:
        run_id = row["id"]
        own_questions = open_questions[run_id]
        verified = None
        if row["status"] == RunStatus.COMPLETED:
            verified = run_id in verified_ids
        delivery = deliveries_by_id.get(run_id)
        need = find_need(
            row,
            now,
            verified=verified,
            delivery=vars(delivery) if delivery else None,
            has_question=bool(own_questions),
        )
        calls, cost = _add_up(usage, families[run_id])
        values = {
            **row,
            "workspace": view_workspace(row),
            "verified": verified,
            "questions": own_questions,
            "question": own_questions[0].text if own_questions else None,
            "delivery": delivery,
            "need": need,
            "spent": Spent(seconds=_sum_seconds(row), agent_calls=calls, cost_usd=cost),
        }
        result.append(Run.model_validate(values))
    return result


def _sum_seconds(row: Row) -> float:
    """Return the active time of a run, up to now if it is active."""
    seconds: float = row["active_s"]
    if row["active_since"] is not None:
        seconds += (datetime.now(row["active_since"].tzinfo) - row["active_since"]).total_seconds()
    return round(seconds, 3)
