"""Submit a task: validate its specification, then store it completely or not at all."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from kapelle.agents import registry
from kapelle.agents.base import AgentRequest
from kapelle.domain.errors import (
    AgentMisconfigured,
    Conflict,
    FieldProblem,
    InvalidInput,
    KapelleError,
)
from kapelle.domain.specs import CheckKind, CheckSpec, TaskSpec, WorkspaceKind, WorkSpec
from kapelle.domain.states import FINAL
from kapelle.domain.task import Task
from kapelle.engine.parts import Parts
from kapelle.engine.processes.environment import search_path_of
from kapelle.engine.tasks import actions
from kapelle.engine.tasks.protection import is_by_default, require_harmless
from kapelle.patterns.spec import PatternSpec
from kapelle.settings import Settings
from kapelle.store import deliveries, tasks, templates
from kapelle.store.database import Connection
from kapelle.store.ids import make_unused_id
from kapelle.workspaces import (
    checkouts_around,
    format_relocation_command,
    is_git_directory,
    repository_of,
)

_LARGE_PROMPT = 50_000
# Fields of a specification that are stored as they are.
_AS_GIVEN = {
    "prompt",
    "system_prompt",
    "model",
    "deps_policy",
    "fork_session",
    "timeout_s",
    "max_turns",
    "budget_usd",
    "retry",
    "context",
    "coordinate",
    "tools",
    "read_only",
    "browser",
    "template",
    "interactive",
}

Also = Callable[[Connection, str], None]
W = TypeVar("W", bound=WorkSpec)


@dataclass(frozen=True)
class Belonging:
    """The work that a task is part of, and the owner of its worktree if that is not the task."""

    run_id: str | None = None
    schedule_id: str | None = None
    parent_task_id: str | None = None
    workspace_owner: str | None = None


ALONE = Belonging()


async def submit(
    parts: Parts,
    spec: TaskSpec,
    idempotency_key: str | None = None,
    belonging: Belonging = ALONE,
    also: Also | None = None,
) -> Task:
    """Validate and store a task.

    also is called in the same transaction, but only if the task is new. A repeated idempotency key
    returns the stored task.
    """
    settings, agent, kind = await validate_spec(parts, spec, belonging)
    spec, guidelines = await with_template(parts, spec)
    values = _values(spec, settings, agent, belonging)
    values["guidelines"] = guidelines
    values["id"] = await parts.db.glance(make_unused_id, "task")
    values["workspace_kind"] = kind
    values["workspace_in_place_by_default"] = is_by_default(spec, settings, kind)
    values["idempotency_key"] = idempotency_key
    values["shell"] = parts.secrets.keep_shell(spec.shell)
    with parts.secrets.keep_values(
        values["id"], spec.model_dump(mode="json", include={"env", "mcp"})
    ):
        task = await parts.db.write(_submit, spec, values, also)
    # The key was used before, so the new id and its secrets are not needed.
    if task.id != values["id"]:
        parts.secrets.forget(values["id"])
    return task


async def validate_spec(
    parts: Parts, spec: TaskSpec, belonging: Belonging = ALONE
) -> tuple[Settings, str, WorkspaceKind]:
    """Return the settings, the agent and the workspace of a task. Raises if it could not run."""
    spec, _ = await with_template(parts, spec)
    settings = parts.work_settings(require_directory(spec.directory))
    settings = settings.on_path(search_path_of(spec.shell))
    agent = require_agent(spec.agent, settings)
    for name in spec.fallback_agents or settings.fallback_agents:
        registry.get(name, settings)
    if spec.interactive and (spec.retry.policy != "none" or belonging != ALONE):
        raise InvalidInput(
            "--interactive cannot be combined with schedules, retries or tasks started by agents.",
            hint="Leave out --interactive.",
        )
    # In a run, only agents that can use tools get them.
    servers = spec.mcp or ((spec.coordinate or spec.browser) and not belonging.run_id)
    require_abilities(
        agent,
        settings,
        interactive=spec.interactive,
        model=spec.model,
        mcp_server=servers,
        system_prompt=spec.system_prompt,
        limit_of_turns=spec.max_turns,
        budget=spec.budget_usd,
        list_of_tools=spec.tools,
    )
    options = {"model": spec.model, "mcp_servers": spec.mcp, "tools": spec.tools}
    require_command(
        parts,
        agent,
        settings,
        spec.directory,
        spec.prompt,
        spec.system_prompt,
        interactive=spec.interactive,
        **options,
    )
    if belonging.workspace_owner:
        return settings, agent, WorkspaceKind.WORKTREE
    kind = await workspace_kind(parts, spec, settings)
    capabilities = registry.get(agent, settings).capabilities
    if spec.read_only and kind is WorkspaceKind.IN_PLACE and not capabilities.read_only:
        raise InvalidInput(
            f"The agent {agent} has no read-only mode, and without a worktree its changes cannot "
            "be thrown away.",
            hint="Work in a git repository, or use another agent: `kapelle agents` lists them.",
        )
    return settings, agent, kind


async def with_template(parts: Parts, spec: W) -> tuple[W, str | None]:
    """Return a specification with the agent and the model of its template, and the guidelines.

    Values in the specification take precedence.
    """
    if spec.template is None:
        return spec, None
    template = await parts.db.glance(templates.get, spec.template)
    values = {"agent": spec.agent or template.agent, "model": spec.model}
    if spec.agent in (None, template.agent):  # a model belongs to the agent that it is named with
        values["model"] = spec.model or template.model
    changes = {name: value for name, value in values.items() if value}
    return spec.model_copy(update=changes), template.guidelines


def require_directory(directory: str, field: str = "directory") -> str:
    """Return a directory. Raises InvalidInput, about the field, if it does not exist."""
    if os.path.isdir(directory):
        return directory
    error = InvalidInput(f"There is no directory {directory}.")
    if field:
        error.about(field)
    raise error


def require_still_there(directory: str, repository: str | None = None) -> None:
    """Raise Conflict if the directory of stored work is gone, perhaps with its repository."""
    if not os.path.isdir(directory):
        raise Conflict(
            f"The directory {directory} is gone.",
            hint="If its repository was moved, run in the new place: "
            f"{format_relocation_command(repository or directory)}",
        )


def require_agent(name: str | None, settings: Settings, field: str = "agent") -> str:
    """Return the named agent, or the default agent. Raises if it cannot run.

    field names the agent in the specification; it is empty if there is no such field.
    """
    try:
        return _find_usable_agent(name, settings)
    except KapelleError as error:
        if field:
            error.about(field)
        raise


def _find_usable_agent(name: str | None, settings: Settings) -> str:
    agent = name or registry.resolve_default(settings)
    adapter = registry.get(agent, settings)
    if adapter.installed() is None:
        if settings.search_path:
            owner = "your shell"
        else:
            owner = "the daemon"
        raise AgentMisconfigured(
            f"The agent {agent} cannot be run: {adapter.asked_for or 'its program'} is not on the "
            f"PATH of {owner}.",
            hint="Install it, or choose another agent: `kapelle agents` lists them.",
        )
    return agent


def _submit(
    connection: Connection, spec: TaskSpec, values: dict[str, Any], also: Also | None
) -> Task:
    """Store a task with its dependencies and its delivery, or return that of a repeated key."""
    key = values["idempotency_key"]
    stored = None
    if key:
        stored = tasks.find_by_key(connection, key)
    if stored is not None:
        request = (values["prompt"], values["agent"], values["directory"])
        if (stored.prompt, stored.agent, stored.directory) != request:
            raise Conflict(f"This idempotency key was used for another task, {stored.id}.")
        return stored
    try:
        depends_on = [tasks.resolve(connection, text) for text in spec.depends_on]
        for other in depends_on:
            tasks.load_row(connection, other)
    except KapelleError as error:
        raise error.about("depends_on") from None
    if spec.continue_from is not None:
        earlier = tasks.get(connection, spec.continue_from)
        values["continue_from"] = earlier.id
        if earlier.status not in FINAL:
            depends_on.append(earlier.id)
    task = actions.submit(connection, values, depends_on)
    if spec.deliver != "branch":
        deliveries.request(connection, task.id, "push" if spec.push else spec.deliver)
        task = tasks.get(connection, task.id)
    if also is not None:
        also(connection, task.id)
    return task


def _values(spec: TaskSpec, settings: Settings, agent: str, belonging: Belonging) -> dict[str, Any]:
    fallback_agents = spec.fallback_agents or settings.fallback_agents
    directory = os.path.normpath(spec.directory)
    checks = spec.checks
    if not checks and belonging.run_id is None:
        checks = configured_checks(settings, directory)
    for check in checks:
        require_inside(directory, check)
    return {
        **spec.model_dump(mode="json", include=_AS_GIVEN),
        **asdict(belonging),
        "title": spec.display_title,
        "agent": agent,
        "directory": directory,
        "repository": repository_of(directory),
        "project": spec.project or settings.project,
        "priority": int(spec.priority.removeprefix("P")),
        "continue_from": None,
        "fallback_agents": [name for name in dict.fromkeys(fallback_agents) if name != agent],
        "check_specs": [
            check.model_dump(mode="json") | {"prove": check.prove or spec.prove} for check in checks
        ],
        # Only the names: the values may be secret.
        "env": sorted(spec.env),
        "mcp": sorted(spec.mcp),
        "tags": list(dict.fromkeys(spec.tags)),
        "workspace_path": directory,
        "requested_base": spec.base,
        "workspace_base": spec.base,
        "created_at": datetime.now(UTC),
    }


def configured_checks(settings: Settings, directory: str) -> list[CheckSpec]:
    """Return the configured checks, each with its directory relative to that of the work."""
    checks = []
    for check in settings.checks:
        where = check.directory
        if check.kind is CheckKind.COMMAND:
            where = settings.directory_of("checks", directory, check.directory)
        checks.append(check.model_copy(update={"directory": where}))
    return checks


def require_inside(directory: str, check: CheckSpec) -> None:
    """Raise InvalidInput if the directory of a check is missing or outside the repository."""
    if check.directory is None:
        return
    place = os.path.realpath(directory)
    target = os.path.normpath(os.path.join(place, check.directory))
    top = next(iter(checkouts_around(Path(directory))), None)
    if top is not None and not Path(target).is_relative_to(top):
        raise InvalidInput(
            f"The directory {check.directory} of the check {check.label} is not in {top}.",
            hint="Name one inside of the repository, relative to the directory of the work.",
        )
    if not os.path.isdir(target):
        raise InvalidInput(f"There is no directory {target} for the check {check.label}.")


async def workspace_kind(
    parts: Parts, spec: TaskSpec | PatternSpec, settings: Settings
) -> WorkspaceKind:
    """Return where a task or run would work. Raises InvalidInput if it cannot."""
    kind_or_auto = spec.workspace or settings.workspace.default
    directory = Path(spec.directory)
    if kind_or_auto == WorkspaceKind.IN_PLACE:
        if spec.base is not None:
            raise InvalidInput("A base branch needs a worktree.", hint="Leave out --in-place.")
        return _in_place(spec)
    repository = await parts.workspaces.locate(directory)
    if repository is not None and repository.head_commit is not None:
        if spec.base is not None:
            await parts.workspaces.check_base(directory, spec.base)
        return WorkspaceKind.WORKTREE
    if repository is not None:
        problem = "a repository without commits"
        advice = "Commit something first, or work"
    elif is_git_directory(directory):
        problem = "the inside of a git repository"
        advice = "Go to a checkout of it, or work"
    elif kind_or_auto == "auto" and spec.base is None:
        kind = _in_place(spec)
        if is_by_default(spec, settings, kind):
            await asyncio.to_thread(require_harmless, spec.directory, parts.environ)
        return kind
    else:
        problem = "no git repository"
        advice = "Go to one, or work"
    raise InvalidInput(
        f"{spec.directory} is in {problem}, so there can be no worktree.",
        hint=f"{advice} in the directory itself with --in-place.",
    ).about("directory")


def _in_place(spec: TaskSpec | PatternSpec) -> WorkspaceKind:
    if spec.deliver != "branch":
        raise InvalidInput(
            "Work in place has no branch to deliver.",
            hint="Leave out --deliver, or work in a worktree of a git repository.",
        )
    return WorkspaceKind.IN_PLACE


def require_command(
    parts: Parts,
    agent: str,
    settings: Settings,
    directory: str,
    prompt: str = "",
    system_prompt: str | None = None,
    *,
    interactive: bool = False,
    **options: Any,
) -> None:
    """Raise now, and not in the first attempt, if an agent has no command for a request."""
    if len(prompt) > _LARGE_PROMPT or options.get("mcp_servers") or options["tools"] or interactive:
        adapter = registry.get(agent, settings, interactive=interactive)
        place = (Path(directory), parts.home.attempts / "prompt")
        request = AgentRequest(prompt, *place, adapter.settings, system_prompt)
        adapter.command(replace(request, **options))


def require_abilities(
    agent: str, settings: Settings, *, interactive: bool = False, field: str = "", **options: object
) -> None:
    """Raise InvalidInput if an agent gets an option that it does not support.

    field is the field of a pattern's specification, for the error.
    """
    adapter = registry.get(agent, settings, interactive=interactive)
    able = adapter.capabilities
    can = {
        "model": able.model,
        "system_prompt": able.system_prompt,
        "mcp_server": able.mcp,
        "limit_of_turns": able.max_turns or able.usage,
        "budget": able.budget or able.usage or able.cost,
        "list_of_tools": able.tools,
    }
    for name in (name for name in can if options.get(name) and not can[name]):
        noun = name.replace("_", " ").replace("mcp", "MCP")
        text = f"The agent {agent} cannot be given a {noun}"
        if interactive:
            text += " in a terminal"
        if adapter.settings.command:
            hint = "A command template needs the placeholder for it, or has to tell what it used."
        else:
            hint = "docs/agents.md tells what each agent can."
        if field:
            fields = [FieldProblem((field,), text, "rule")]
            raise InvalidInput(f"{field}: {text}.", hint=hint, fields=fields)
        raise InvalidInput(f"{text}.", hint=hint)
