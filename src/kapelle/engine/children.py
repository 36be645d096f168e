"""Children: what an attempt may ask for, what that takes over, and the limits of the whole tree."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kapelle.domain.budget import subtract_usd
from kapelle.domain.errors import Forbidden, InvalidInput, LimitReached, NotFound
from kapelle.domain.ids import is_id
from kapelle.domain.specs import CheckKind, WorkspaceKind
from kapelle.domain.states import RunStatus, StopCause, Stopper, TaskStatus
from kapelle.engine.parts import Parts
from kapelle.engine.runs.control import end_child
from kapelle.settings.models import ChildrenSettings
from kapelle.store import attempts, children, tasks
from kapelle.store.database import Connection
from kapelle.store.ids import resolve_id
from kapelle.store.query import Row
from kapelle.store.rows import rows_of_work
from kapelle.workspaces import repository_of

# What may hold secrets, or commands that Kapelle would start: a child has its parent's. What it
# starts itself has also its places.
_OWN = ("env", "mcp", "shell")
_PLACES = ("base", "workspace")
# Where `ci` is a word like any other.
_WORDS = ("tags", "title", "project", "prompt")
_DEEPEST = 10
# An attempt may have work go on again that one of these has stopped.
_LIFTABLE = frozenset({Stopper.ATTEMPT, Stopper.DEPENDENCY})


class NoRoom(LimitReached):
    """As much is open below a task as may be."""


async def as_child(parts: Parts, parent_id: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Return the valid specification of a child, completed with values of its parent task.

    Raises Forbidden or LimitReached for a request that an attempt may not make.
    """
    parent = await parts.db.read(tasks.load_row, parent_id)
    require_modest(spec)
    own_attempts = await parts.db.read(attempts.list_rows, parent_id)
    last_attempt_id = own_attempts[-1]["id"]
    clean_spec = await parts.without_secrets(parent_id, last_attempt_id, spec)
    if "directory" in spec:
        clean_spec = {**clean_spec, "directory": spec["directory"]}
    spec = _resolve_directories(parent, clean_spec)
    for other in (*(spec.get("depends_on") or ()), spec.get("continue_from")):
        if other and not await parts.db.read(is_own, parent_id, str(other), itself=False):
            raise not_own(str(other))
    of_root = parts.settings().children.budget_usd
    tightest = await parts.db.read(children.find_tightest_budget, parent_id, of_root)
    if tightest is None:
        left = None
    else:
        left = subtract_usd(*tightest)
    budget_usd = spec.get("budget_usd")
    if left is not None and (not left or (budget_usd and budget_usd > left)):
        raise LimitReached(
            f"${left:.4g} is left for {parent_id} and all that it asks for"
            + (f", and ${budget_usd:g} is asked for." if budget_usd else "."),
            hint="What every attempt of the tree cost counts, of those that failed too.",
        )
    parent_values = {
        "directory": parent["directory"],
        "project": parent["project"],
        "workspace": parent["workspace_kind"],
        "env": parts.secrets.env(parent_id),
        "shell": parts.secrets.shell(parent["shell"]),
        "budget_usd": budget_usd or left,
        "priority": f"P{max(parent['priority'], int(str(spec.get('priority', 'P0'))[1:] or 0))}",
    }
    # A read-only task cannot start a task that changes files.
    if parent["read_only"]:
        parent_values["read_only"] = True
    is_worktree = parent["workspace_kind"] == WorkspaceKind.WORKTREE
    begins = is_worktree and not spec.get("continue_from")
    parent_values["base"] = parent["workspace_branch"] if begins else None
    if not spec.get("agent"):
        parent_values["agent"] = parent["agent"]
        parent_values["fallback_agents"] = parent["fallback_agents"]
        parent_values["model"] = spec.get("model") or parent["model"]
    return {**spec, **parent_values}


def require_modest(spec: Any, around: str = "") -> None:
    """Raise Forbidden for a specification that an attempt may not submit.

    Nested specifications, such as the options of a batch, are checked too; `around` names the
    field that contains them.
    """
    if isinstance(spec, list):
        for one in spec:
            require_modest(one, around)
    elif isinstance(spec, dict):
        own_names = [*_OWN]
        if around:
            own_names += _PLACES
        for name in own_names:
            if spec.get(name):
                raise Forbidden(f"An attempt hands on its own `{name}`: leave it out.")
        if spec.get("deliver", "branch") not in ("branch", "branch" if around else "merge"):
            raise Forbidden("An attempt has work delivered to its own branch alone, by itself.")
        if spec.get("push"):
            raise Forbidden("An attempt pushes nothing: leave push out.")
        for name, value in spec.items():
            require_modest(value, name)
    elif spec == CheckKind.CI and around not in _WORDS:
        raise Forbidden("An attempt pushes nothing, so there is no check ci.")


def is_own(connection: Connection, parent_id: str, text: str, itself: bool) -> bool:
    """Return whether a task or run belongs to the tree below an attempt's task.

    With `itself`, the task and its run belong to the tree as well.
    """
    try:
        id_ = resolve_id(connection, text, "task", "run")
        run_id = tasks.load_row(connection, parent_id)["run_id"]
    except (NotFound, InvalidInput):
        return False
    if id_ == parent_id:
        return itself
    # What others of its run did is there to be read as well.
    if itself:
        above = {parent_id, run_id}
    else:
        above = {parent_id}
    return any(row["id"] in above for row in children.load_ancestry(connection, id_))


def not_own(text: str) -> Forbidden:
    """Return the error for work outside the tree; it does not reveal which other tasks exist."""
    return Forbidden(
        f"{text!r} is nothing that this attempt asked for, so it may not do that.",
        hint="It may look at its own task and run, and at what it asked for.",
    )


def _resolve_directories(parent: Row, spec: Any, field: str = "") -> Any:
    """Return a specification with the links of every directory resolved, also in its steps.

    Raises Forbidden for a directory in another repository than the parent's.
    """
    if isinstance(spec, list):
        return [_resolve_directories(parent, one) for one in spec]
    if isinstance(spec, dict):
        return {name: _resolve_directories(parent, value, name) for name, value in spec.items()}
    if field != "directory" or not isinstance(spec, str):
        return spec
    place = os.path.realpath(spec)
    inside = Path(place).is_relative_to(os.path.realpath(parent["workspace_path"]))
    if not inside and repository_of(place) != parent["repository"]:
        raise Forbidden(
            f"What an attempt asks for is done in its own repository, {parent['repository']}.",
            hint="Leave the directory out.",
        )
    return place


def own_key(parent_id: str | None, key: str | None) -> str | None:
    """An idempotency key; an attempt's is none that another attempt or the owner can have."""
    if parent_id and key:
        return f"{parent_id}/{hashlib.sha256(key.encode()).hexdigest()}"
    return key


def room_for(parts: Parts, parent_id: str) -> Callable[[Connection, str], None]:
    """Return the check for the transaction that stores or reopens a child.

    The check raises LimitReached if the tree is too deep or has too many open tasks.
    """
    limits = parts.settings().children

    def require(connection: Connection, _child_id: str) -> None:
        line = children.load_ancestry(connection, parent_id)
        root = line[-1]
        deepest = _of_run(root).get("max_depth") or limits.max_depth
        depth = 1 + sum(row["parent_task_id"] is not None for row in line)
        if depth > deepest:
            raise LimitReached(
                f"This would be level {depth} below {root['id']}, and {deepest} are allowed "
                "(children.max_depth).",
                hint="Do it yourself, or leave it to the task that asked for this one.",
            )
        _require_width(connection, root, limits)

    return require


def require_room(connection: Connection, run_id: str, limits: ChildrenSettings) -> None:
    """Raise NoRoom unless what a run has just stored fits into the tree, if attempts led to it."""
    if children.is_in_tree(connection, run_id):
        _require_width(connection, children.load_ancestry(connection, run_id)[-1], limits)


def _require_width(connection: Connection, root: Row, limits: ChildrenSettings) -> None:
    most = _of_run(root).get("max_workers") or limits.max_live
    if (going := children.count_open(connection, root["id"])) > most:
        raise NoRoom(
            f"{going - 1} tasks below {root['id']} are open, and {most} may be "
            "(children.max_live): those that wait count too.",
            hint="Wait until one has ended, or cancel one.",
        )


def _of_run(root: Row) -> dict[str, Any]:
    if is_id("task", root["id"]):
        return {}
    spec: dict[str, Any] = root["spec"]
    return spec


def stop_cause(verb: str, parent: str | None, reason: str | None = None) -> StopCause:
    """Return why a person or an attempt stops something; the task of an attempt is named."""
    if parent is None:
        return StopCause(Stopper.PERSON, reason or f"{verb} by a person")
    words = f"{verb} by {parent}"
    if reason:
        words += f": {reason}"
    return StopCause(Stopper.ATTEMPT, words)


def require_undecided(connection: Connection, work_id: str) -> None:
    """Raise Forbidden where a task or run waits for a person, or a person has stopped it: no
    attempt has it go on."""
    row = rows_of_work(work_id).load(connection, work_id)
    if is_id("task", work_id) and row["waiting_for"] == "input":
        raise Forbidden(f"{work_id} asks a person something, and only a person may answer.")
    is_stopped = row["status"] in {TaskStatus.CANCELLED, RunStatus.PAUSED} or row["stop"] == "pause"
    if is_stopped and row["stopped_by"] not in _LIFTABLE:
        raise Forbidden(
            f"{work_id} was stopped, and not by an attempt: only a person may have it go on.",
            hint="Ask a person, or go without it.",
        )


async def end_orphans(parts: Parts) -> None:
    """End what is open below a task that failed or was cancelled."""
    for _generation in range(_DEEPEST):
        orphan_ids = await parts.db.read(children.list_orphans)
        if not orphan_ids:
            return
        for child_id in orphan_ids:
            cause = StopCause(Stopper.PARENT, "the task that asked for it was ended")
            await end_child(parts, child_id, cause)
