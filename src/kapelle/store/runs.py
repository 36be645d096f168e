"""Runs: insert, find, list, who belongs to whom, changes of status."""

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
_BEGUN = frozenset({RunStatus.RUNNING, RunStatus.WAITING, RunStatus.PAUSED})
_LETTERS = sa.func.length(sa.cast(runs.c.spec, sa.Text)) + sa.func.coalesce(
    sa.func.length(sa.cast(runs.c.result, sa.Text)), 0
)


_OPEN = [status for status in RunStatus if status not in RUN_FINAL]

_tops = sa.select(runs.c.id).where(runs.c.status.in_(_OPEN)).cte("going", recursive=True)
_going = _tops.union(sa.select(runs.c.id).join(_tops, runs.c.parent_id == _tops.c.id))
# The open runs and all runs inside of them, ended ones too.
GOING = sa.select(_going.c.id)


class RunClaim(NamedTuple):
    """Who performs a run: a daemon, and which of the run's executions it is."""

    performer: str
    execution: int

    def holds(self, run: Row) -> bool:
        """Whether this execution may still write anything about the run."""
        found = (run["performer"], run["executions"])
        return run["status"] == RunStatus.RUNNING and found == self


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
    projects.join(connection, values)
    connection.execute(runs.insert(), values)


def get(connection: sa.Connection, text: str) -> Run:
    """A run by id or unique prefix."""
    return _complete(connection, [load_row(connection, resolve(connection, text))])[0]


def list_page(
    connection: sa.Connection,
    wanted: RunFilter,
    among: Sequence[str] | None = None,
    own: Conditions = (),
) -> tuple[list[Run], str | None]:
    """Runs, newest first, and the cursor of the next page, if there is one; of these alone, and
    only those for which own conditions hold."""
    rows, cursor = RUNS.list_page(connection, wanted, _chosen(wanted, own), _LETTERS, among)
    return _complete(connection, rows), cursor


def count_matches(connection: sa.Connection, wanted: RunFilter, own: Conditions) -> int:
    """How many runs there are on all pages of a filter."""
    return RUNS.count_matches(connection, wanted, _chosen(wanted, own))


def list_by_ids(connection: sa.Connection, ids: Sequence[str]) -> list[Run]:
    return _complete(connection, RUNS.list_by_ids(connection, ids))


def _chosen(wanted: RunFilter, own: Conditions) -> sa.Select[Any]:
    query = sa.select(runs.c.id).where(*own)
    if wanted.parent_id is None and not wanted.nested:
        query = query.where(runs.c.parent_id.is_(None))
    return query


def find_end_reason(connection: sa.Connection, run_id: str) -> str | None:
    """The reason for which a run is to end, if somebody asked for that."""
    found = find(connection, run_id)
    if found is None or found["stop"] not in {"cancel", "abandon"}:
        return None
    return found["reason"] or "cancelled"


def list_queued(connection: sa.Connection, limit: int) -> list[str]:
    """Queued runs in order; children of other runs come first, for their parents wait for them."""
    query = sa.select(runs.c.id).where(runs.c.status == RunStatus.QUEUED).order_by(runs.c.id)
    children = query.where(runs.c.parent_id.is_not(None))
    tops = query.where(runs.c.parent_id.is_(None)).limit(max(0, limit))
    return [run_id for part in (children, tops) for run_id in connection.execute(part).scalars()]


def count_queued(connection: sa.Connection) -> int:
    """Return the number of queued runs."""
    number: int = _COUNT_QUEUED.scalar(connection)
    return number


def list_running(connection: sa.Connection) -> list[str]:
    query = sa.select(runs.c.id).where(runs.c.status == RunStatus.RUNNING).order_by(runs.c.id)
    return list(connection.execute(query).scalars())


def list_executions(connection: sa.Connection, performer: str) -> list[str]:
    """The present executions (run id and number) of the runs that this performer has claimed."""
    query = sa.select(runs.c.id, runs.c.executions).where(runs.c.status == RunStatus.RUNNING)
    query = query.where(runs.c.performer == performer).order_by(runs.c.id)
    return [f"{run_id}.{number}" for run_id, number in connection.execute(query)]


def count_running_tops(connection: sa.Connection) -> int:
    return count_rows(connection, runs.c.status == RunStatus.RUNNING, runs.c.parent_id.is_(None))


def list_family(connection: sa.Connection, run_id: str) -> list[str]:
    """The run and all runs below it, parents before their children."""
    return _families(connection, [run_id])[run_id]


def _families(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, list[str]]:
    """Each of the runs with all runs below it, with one query for each generation."""
    query = sa.select(runs.c.parent_id, runs.c.id).order_by(runs.c.id)
    links = list[tuple[str, str]]()
    generation = {*run_ids}
    while generation:
        found = [*select_in_parts(connection, query, runs.c.parent_id, sorted(generation))]
        generation = {child for _, child in found} - {*run_ids}
        links += found
    below = group(links)
    families = {run_id: [run_id] for run_id in run_ids}
    for family in families.values():
        for member in family:  # which grows meanwhile
            family += below.get(member, ())
    return families


def count_depth(connection: sa.Connection, run_id: str | None) -> int:
    """How many runs a run is inside of, itself included."""
    around = 0
    while run_id is not None:
        run_id = load_row(connection, run_id)["parent_id"]
        around = around + 1
    return around


def list_open_tasks(connection: sa.Connection, run_ids: Sequence[str]) -> list[Row]:
    """Tasks of these runs that have not ended."""
    names = ("id", "run_id", "title", "status", "reason", "waiting_for", "question", "stop")
    query = sa.select(*(tasks.c[name] for name in names), runs.c.may_ask)
    query = query.join(runs, runs.c.id == tasks.c.run_id).where(tasks.c.run_id.in_(run_ids))
    query = query.where(tasks.c.status.not_in(FINAL)).order_by(tasks.c.id)
    return list(connection.execute(query).mappings())


def list_open(connection: sa.Connection, run_ids: Sequence[str]) -> list[Row]:
    """Those of these runs that have not ended."""
    query = sa.select(runs).where(runs.c.id.in_(run_ids), runs.c.status.not_in(RUN_FINAL))
    return list(connection.execute(query.order_by(runs.c.id)).mappings())


def list_ended_tasks(connection: sa.Connection, run_id: str) -> list[str]:
    query = sa.select(tasks.c.id).where(tasks.c.run_id == run_id, tasks.c.status.in_(FINAL))
    return list(connection.execute(query.order_by(tasks.c.id)).scalars())


def sum_usage(connection: sa.Connection, run_ids: Sequence[str]) -> tuple[int, float | None]:
    """How many attempts of agents these runs made, and what is known of their cost."""
    return _sum(_spent(connection, run_ids), run_ids)


def _spent(
    connection: sa.Connection, run_ids: Sequence[str]
) -> dict[str, tuple[int, float | None]]:
    """The same of each run by itself; of those that made none nothing."""
    query = sa.select(tasks.c.run_id, sa.func.count(), sa.func.sum(attempts.c.cost_usd))
    query = query.join_from(attempts, tasks, tasks.c.id == attempts.c.task_id)
    found = select_in_parts(connection, query.group_by(tasks.c.run_id), tasks.c.run_id, run_ids)
    return {run_id: (calls, cost) for run_id, calls, cost in found}


def _sum(
    spent: Mapping[str, tuple[int, float | None]], run_ids: Sequence[str]
) -> tuple[int, float | None]:
    own = [spent[run_id] for run_id in run_ids if run_id in spent]
    known = [cost for _, cost in own if cost is not None]
    return sum(calls for calls, _ in own), sum(known) if known else None


def count_calls(connection: sa.Connection, run_id: str, *, begun: bool = False) -> int:
    """How many agents a run and those inside it have called, or, unless only what was begun counts,
    have promised to call."""
    members = list_family(connection, run_id)
    called = sa.exists().where(attempts.c.task_id == tasks.c.id)
    promised = (tasks.c.run_id.in_(members), ~called, tasks.c.status.not_in(FINAL))
    return sum_usage(connection, members)[0] + (0 if begun else count_rows(connection, *promised))


def find_call_limit(connection: sa.Connection, run_id: str | None, *, one_more: bool) -> str | None:
    """The limit of calls that a run, or one around it, is past; one_more counts one to come."""
    around = run_id
    while around is not None:
        run = load_row(connection, around)
        limit = run["spec"].get("max_agent_calls")
        if limit is not None and limit < count_calls(connection, around, begun=one_more) + one_more:
            return format_call_limit(limit, None if around == run_id else around)
        around = run["parent_id"]
    return None


def skip_downtime(connection: sa.Connection, run_id: str, last_alive: datetime | None) -> None:
    """Count the time up to the last sign of life of the daemon that died, and from now on."""
    row_ = load_row(connection, run_id)
    since = row_["active_since"]
    now = datetime.now(UTC)
    signs = (since, last_alive, steps.find_last_activity(connection, run_id))
    alive = min(now, max(sign for sign in signs if sign is not None))
    seconds = row_["active_s"] + (alive - since).total_seconds()
    update(connection, run_id, active_since=now, active_s=seconds)


def change(
    connection: sa.Connection,
    run_id: str,
    status: RunStatus,
    reason: str | None = None,
    /,
    **values: Any,
) -> None:
    """Move a run to a status; the time that it was under way is added up."""
    row_ = load_row(connection, run_id)
    require_transition(run_id, RunStatus(row_["status"]), status)
    now = datetime.now(UTC)
    if status is RunStatus.RUNNING:
        values |= {"active_since": now, "started_at": row_["started_at"] or now}
    elif row_["active_since"] is not None:
        under_way = (now - row_["active_since"]).total_seconds()
        values |= {"active_since": None, "active_s": row_["active_s"] + max(0.0, under_way)}
    if status in RUN_FINAL:
        questions.withdraw(connection, run_id)
        values |= {"ended_at": max(now, row_["started_at"] or now), "stop": None}
    values.setdefault("waiting_for", None)
    values.setdefault("stopped_by", None)
    update(connection, run_id, status=status, reason=reason, **values)
    facts = {"title": row_["title"], "pattern": row_["pattern"], "reason": reason}
    if values["stopped_by"] is not None:
        facts["stopped_by"] = values["stopped_by"]
    if status is RunStatus.COMPLETED:
        seen = _verified(connection, _families(connection, [run_id]))
        facts["verified"] = run_id in seen and not _denies(values.get("result"))
    events.append(connection, f"run.{status}", run_id, **facts)


def list_ended_before(connection: sa.Connection, moment: datetime, limit: int) -> list[str]:
    """Runs to be forgotten, those that ended first first; what is inside an open run is not."""
    query = sa.select(runs.c.id).where(runs.c.ended_at < moment, runs.c.id.not_in(GOING))
    query = query.order_by(runs.c.ended_at, runs.c.id).limit(limit)
    return list(connection.execute(query).scalars())


def delete(connection: sa.Connection, run_id: str) -> None:
    deliveries.delete(connection, run_id)
    connection.execute(runs.delete().where(runs.c.id == run_id))


def find_verified(connection: sa.Connection, run_ids: Sequence[str]) -> set[str]:
    """Return which of these completed runs are verified."""
    if not run_ids:
        return set()
    query = sa.select(runs.c.id, runs.c.result)
    results = select_in_parts(connection, query, runs.c.id, run_ids)
    sure = [run_id for run_id, result in results if not _denies(result)]
    if sure:
        return _verified(connection, _families(connection, sure))
    return set()


def _verified(connection: sa.Connection, families: Mapping[str, Sequence[str]]) -> set[str]:
    """Return those of the runs that, or any of whose completed tasks, have made a check that looked
    at the work.

    A score is no check: any number is one, also that of work that does not run.
    """
    members = [member for family in families.values() for member in family]
    made = step_rows.c
    of_tasks = sa.select(
        tasks.c.run_id, checks.c.proved, checks.c.command, checks.c.name,
        checks.c.doubted.label("is_doubted"),
    )  # fmt: skip
    of_tasks = of_tasks.join_from(checks, attempts, attempts.c.id == checks.c.attempt_id)
    of_tasks = of_tasks.join(tasks, tasks.c.id == attempts.c.task_id).distinct()
    of_tasks = of_tasks.where(tasks.c.status == TaskStatus.COMPLETED, checks.c.passed)
    made_by = select_in_parts(connection, of_tasks, tasks.c.run_id, members)
    by_run = group((check.run_id, check) for check in made_by)
    found = {
        top
        for top, family in families.items()
        if is_verified([one for run in family for one in by_run[run]])
    }
    # What steps said is long: it is read where nothing else tells.
    rest = {member for top in families.keys() - found for member in families[top]}
    results = sa.select(made.run_id, made.result).where(made.kind == "check")
    sees = {
        run_id
        for run_id, result in select_in_parts(connection, results, made.run_id, sorted(rest))
        if is_verified([CheckResult.model_validate(one) for one in result or () if one["passed"]])
    }
    found |= {top for top, family in families.items() if not sees.isdisjoint(family)}
    return found - _doubted(connection, sorted(found))


def _doubted(connection: sa.Connection, ids: Sequence[str]) -> set[str]:
    """Those of the runs of which the last check passed for a reason to be looked at."""
    made = step_rows.c
    newest = sa.select(made.run_id, sa.func.max(made.position).label("position"))
    last = newest.where(made.kind == "check").group_by(made.run_id).subquery()
    query = sa.select(made.run_id, made.result).join(
        last, sa.and_(last.c.run_id == made.run_id, last.c.position == made.position)
    )
    return {
        run_id
        for run_id, result in select_in_parts(connection, query, made.run_id, ids)
        if any(CheckResult.model_validate(one).is_doubted for one in result or ())
    }


def _denies(result: Any) -> bool:
    """Whether a pattern itself says that not all of its work was verified."""
    return isinstance(result, dict) and result.get("verified") is False


def _complete(connection: sa.Connection, rows: Sequence[Row]) -> list[Run]:
    """The runs of these rows, with as many queries for many of them as for one."""
    ids = [row["id"] for row in rows]
    delivered = deliveries.load_by_owner(connection, ids)
    families = _families(connection, ids)
    spent = _spent(connection, sorted({one for family in families.values() for one in family}))
    ended = {row["id"] for row in rows if row["status"] == RunStatus.COMPLETED}
    sure = {row["id"] for row in rows if row["id"] in ended and not _denies(row["result"])}
    verified = _verified(connection, {run_id: families[run_id] for run_id in sure})
    # One branch of a run may ask while another is at work.
    begun = [row["id"] for row in rows if row["status"] in _BEGUN]
    asked = group((one.work_id, one) for one in questions.list_open(connection, begun))
    found = []
    now = datetime.now(UTC)
    for row in rows:
        run_id = row["id"]
        (calls, cost) = _sum(spent, families[row["id"]])
        delivery = delivered.get(run_id)
        if run_id in ended:
            is_verified = run_id in verified
        else:
            is_verified = None
        need = find_need(
            row,
            now,
            verified=is_verified,
            delivery=vars(delivery) if delivery else None,
            has_question=bool(asked[run_id]),
        )
        values = {
            **row,
            "workspace": view_workspace(row),
            "verified": is_verified,
            "questions": asked[run_id],
            "question": asked[run_id][0].text if asked[run_id] else None,
            "delivery": delivery,
            "need": need,
            "spent": Spent(seconds=_seconds(row), agent_calls=calls, cost_usd=cost),
        }
        found.append(Run.model_validate(values))
    return found


def _seconds(row: Row) -> float:
    """Time under way; of one that is under way, up to now."""
    seconds: float = row["active_s"]
    if row["active_since"] is not None:
        seconds += (datetime.now(row["active_since"].tzinfo) - row["active_since"]).total_seconds()
    return round(seconds, 3)
