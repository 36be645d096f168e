"""Starting a run: what is asked for is examined, then stored at once or not at all."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kapelle.domain.errors import Conflict, InvalidInput, invalid_field, invalid_spec
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.states import RunStatus
from kapelle.engine.parts import Parts
from kapelle.engine.processes.environment import search_path_of
from kapelle.engine.runs.git import foreign, is_here
from kapelle.engine.runs.patterns import find_pattern
from kapelle.engine.tasks import submit
from kapelle.engine.tasks.protection import is_by_default, require_harmless
from kapelle.engine.tasks.submit import ALONE, Also, Belonging, require_directory
from kapelle.patterns.spec import PatternSpec
from kapelle.store import deliveries, events, runs
from kapelle.store.database import Connection
from kapelle.store.ids import make_unused_id
from kapelle.workspaces import checkouts_around, repository_of

_DEEPEST = 20


async def start(
    parts: Parts, pattern: str, spec: dict[str, Any], idempotency_key: str | None = None,
    belonging: Belonging = ALONE, also: Also | None = None,
) -> str:  # fmt: skip
    """Store a run, which the queue takes up, and return its id; also is done in the same
    transaction, if the run is a new one."""
    checked, kind = await examine(parts, pattern, spec)
    checked, _ = await submit.with_template(parts, checked)
    run_id = await parts.db.glance(make_unused_id, "run")
    directory = os.path.normpath(checked.directory)
    values: dict[str, Any] = {
        "id": run_id,
        "pattern": pattern,
        "title": _title(checked) or pattern,
        "spec": checked.model_dump(mode="json", exclude={"env", "shell"}, exclude_unset=True),
        "directory": directory,
        "repository": repository_of(directory),
        "project": checked.project or parts.settings(checked.directory).project,
        "parent_id": belonging.run_id,
        "schedule_id": belonging.schedule_id,
        "parent_task_id": belonging.parent_task_id,
        "status": RunStatus.QUEUED,
        "may_ask": not checked.never_blocks,
        "progress": {},
        "workspace_kind": kind,
        "workspace_in_place_by_default": is_by_default(
            checked, parts.settings(checked.directory), kind
        ),
        "workspace_path": directory,
        "workspace_owner": belonging.workspace_owner,
        "idempotency_key": idempotency_key,
        "shell": parts.secrets.keep_shell(checked.shell),
    }
    with parts.secrets.keep_values(run_id, {"env": checked.env}):
        stored_id = await parts.db.write(_insert, values, also)
    if stored_id != run_id:
        parts.secrets.forget(run_id)
    return stored_id


async def examine(
    parts: Parts, pattern: str, spec: dict[str, Any]
) -> tuple[PatternSpec, WorkspaceKind]:
    """The specification, and where its run would work; raises what would keep it from that."""
    checked = await validated(parts, pattern, spec)
    settings = parts.work_settings(checked.directory).on_path(search_path_of(checked.shell))
    by_template, _ = await submit.with_template(parts, checked)
    for role in dict.fromkeys(by_template.roles):
        field = "agent" if role.agent in (None, by_template.agent) else ""
        agent = submit.require_agent(role.agent, settings, field)
        given: dict[str, Any] = {"model": role.model, "system_prompt": role.system_prompt}
        submit.require_abilities(agent, settings, budget=checked.budget_usd, **given)
        limits: dict[str, Any] = {"limit_of_turns": role.max_turns, "list_of_tools": role.tools}
        limits |= {"budget": role.budget_usd, "field": role.field}
        submit.require_abilities(agent, settings, **limits)
        given = {"tools": role.tools, "model": role.model}
        submit.require_command(parts, agent, settings, checked.directory, **given)
    for name in checked.fallback_agents:
        submit.require_agent(name, settings, "fallback_agents")
    shared = {"directory": checked.directory, "agent": checked.agent, "model": checked.model}
    for name, inner in checked.inner_runs:
        await examine(parts, name, {**shared, **inner})
    kind = await submit.workspace_kind(parts, checked, settings)
    for place, shares in checked.places:
        here = await is_here(parts.workspaces, checked, require_directory(place, ""))
        if shares and not here and kind is WorkspaceKind.WORKTREE:
            raise foreign(place)
        if is_by_default(checked, settings, kind) and not checkouts_around(Path(place)):
            await asyncio.to_thread(require_harmless, place, parts.environ)
    if checked.needs_git and kind is not WorkspaceKind.WORKTREE:
        raise InvalidInput(
            f"The pattern {pattern} needs a git repository with worktrees.",
            hint="Leave out --in-place, or go to a repository.",
        )
    return checked, kind


async def validated(parts: Parts, pattern: str, spec: dict[str, Any]) -> PatternSpec:
    """The specification of a run, or InvalidInput that names every field that is wrong."""
    directory = spec.get("directory")
    if not isinstance(directory, str) or not directory.startswith("/"):
        raise invalid_field("directory", "the directory must be given as an absolute path")
    found = await find_pattern(parts, pattern, Path(require_directory(directory)))
    try:
        return found.spec.model_validate(spec)
    except ValidationError as error:
        raise invalid_spec(error, f"{pattern}: ") from None


def _title(spec: PatternSpec) -> str:
    try:
        return str(spec.display_title)
    except Exception as error:  # it is made by the pattern's own code
        raise InvalidInput(
            f"The subject of {type(spec).__name__} cannot be told: {type(error).__name__}: {error}"
        ) from error


def _insert(connection: Connection, values: dict[str, Any], also: Also | None) -> str:
    key = values["idempotency_key"]
    if key:
        earlier = runs.find_by_key(connection, key)
    else:
        earlier = None
    if earlier is not None:
        if (earlier["pattern"], earlier["spec"]) != (values["pattern"], values["spec"]):
            raise Conflict(f"This idempotency key was used for another run, {earlier['id']}.")
        return str(earlier["id"])
    if runs.count_depth(connection, values["parent_id"]) >= _DEEPEST:
        raise InvalidInput(
            f"Runs are nested {_DEEPEST} deep.", hint="Does a pattern start itself without end?"
        )
    runs.insert(connection, {**values, "created_at": datetime.now(UTC)})
    run_id: str = values["id"]
    about = {"title": values["title"], "pattern": values["pattern"]}
    events.append(connection, "run.created", run_id, **about)
    if (deliver := values["spec"].get("deliver", "branch")) != "branch":
        if values["spec"].get("push"):
            mode = "push"
        else:
            mode = deliver
        deliveries.request(connection, run_id, mode)
    if also is not None:
        also(connection, run_id)
    return run_id
