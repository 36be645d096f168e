"""Use cases of tasks: submit, look, wait, and change their course."""

import json
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kapelle.agents import registry
from kapelle.agents.base import AgentRequest, Capabilities
from kapelle.domain.errors import (
    AgentMisconfigured,
    Conflict,
    InvalidInput,
    KapelleError,
)
from kapelle.domain.ids import new_id
from kapelle.domain.specs import TaskSpec, WorkspaceKind
from kapelle.domain.states import FINAL, TaskStatus
from kapelle.domain.task import Task
from kapelle.engine.accounts import candidates
from kapelle.engine.conductor import Conductor
from kapelle.engine.stage import Stage
from kapelle.service import actions
from kapelle.service.actions import NewLimits
from kapelle.settings import AgentSettings, Settings
from kapelle.store import tasks
from kapelle.store.database import Connection
from kapelle.workspaces import is_git_directory

_LARGE_PROMPT = 50_000


class Tasks:
    def __init__(self, stage: Stage, conductor: Conductor) -> None:
        self._stage = stage
        self._db = stage.db
        self._conductor = conductor

    async def submit(self, spec: TaskSpec, idempotency_key: str | None = None) -> Task:
        """Store a task; once this returned, nothing but a person ends it without a verdict."""
        if not os.path.isdir(spec.directory):
            raise InvalidInput(f"There is no directory {spec.directory}.")
        settings = self._stage.settings(spec.directory)
        agent = spec.agent or registry.resolve_default(settings)
        adapter = registry.get(agent, settings)
        if adapter.installed() is None:
            raise AgentMisconfigured(
                f"The agent {agent} cannot be run: its program is not installed.",
                hint=(
                    "`kapelle agents` shows which ones can. A daemon sees the PATH of its start: "
                    "after an installation, `kapelle stop` and try again."
                ),
            )
        for name in spec.fallback_agents or settings.fallback_agents:
            registry.get(name, settings)
        _require_abilities(spec, agent, adapter.capabilities)
        if len(spec.prompt) > _LARGE_PROMPT:
            # Better to hear now than from a failed attempt that it does not fit into argv.
            adapter.command(_trial(spec, settings, agent))
        values = _values(spec, settings, agent)
        values["workspace_kind"] = await self._workspace_kind(spec, settings)
        values["idempotency_key"] = idempotency_key
        secrets = self._stage.home.secrets / f"{values['id']}.json"
        _keep_secrets(secrets, spec)
        try:
            task = await self._db.write(_submit, spec, values)
        except KapelleError:
            secrets.unlink(missing_ok=True)
            raise
        if task.id != values["id"]:
            secrets.unlink(missing_ok=True)
        return self._shown(task)

    async def get(self, text: str) -> Task:
        return self._shown(await self._db.read(tasks.get, text))

    async def page(
        self,
        statuses: Sequence[TaskStatus],
        tag: str | None,
        project: str | None,
        archived: bool,
        cursor: str | None,
        limit: int,
    ) -> tuple[list[Task], bool]:
        """Some tasks, newest first, and whether there are more."""
        found, more = await self._db.read(
            tasks.page,
            statuses=statuses,
            tag=tag,
            project=project,
            archived=archived,
            before=cursor,
            limit=limit,
        )
        return [self._shown(task) for task in found], more

    async def wait(self, text: str, timeout_s: float) -> Task:
        """The task as soon as it has ended or waits for a person, or as it is when time is up."""
        deadline = time.monotonic() + timeout_s
        with self._db.watch() as changed:
            while True:
                task = await self.get(text)
                left = deadline - time.monotonic()
                resting = task.status in FINAL or task.waiting_for == "input"
                if resting or left <= 0:
                    return task
                await changed.wait(min(left, 5.0))

    async def cancel(self, text: str, reason: str | None = None) -> Task:
        """End a task; a running agent is stopped with all its children, and settles by itself."""
        return await self._turn(text, actions.cancel, reason or "cancelled by a person")

    async def retry(self, text: str, limits: NewLimits | None = None) -> Task:
        """A new attempt from a fresh workspace."""
        await self._lift_pauses(text)
        return await self._turn(text, actions.retry, limits or NewLimits())

    async def resume(
        self, text: str, message: str | None = None, limits: NewLimits | None = None
    ) -> Task:
        """A new attempt that carries what the last one left."""
        await self._lift_pauses(text)
        return await self._turn(text, actions.resume, message, limits or NewLimits())

    async def requeue(self, text: str) -> Task:
        """From the start, as if newly submitted; a running attempt is stopped first."""
        await self._lift_pauses(text)
        return await self._turn(text, actions.requeue)

    async def depend(self, text: str, depends_on: Sequence[str]) -> Task:
        """Replace what a task that has not started waits for."""
        return await self._turn(text, actions.depend, depends_on)

    async def archive(self, text: str) -> Task:
        """Put an ended task away: its worktree is removed, its work kept under a ref."""
        before = await self.get(text)
        task = await self._db.write(actions.archive, text)
        try:
            if task.workspace.branch:
                await self._stage.workspaces.remove(task.id)
        except KapelleError:
            if before.archived_at is None:
                await self._db.write(tasks.update, task.id, archived_at=None)
            raise
        (self._stage.home.secrets / f"{task.id}.json").unlink(missing_ok=True)
        return task

    async def stop_all(self, reason: str) -> None:
        """Cancel every running task and wait until each has settled."""
        for task_id in await self._db.read(tasks.with_status, TaskStatus.RUNNING):
            try:
                await self.cancel(task_id, reason)
            except Conflict:
                continue  # it ended by itself meanwhile
        with self._db.watch() as changed:
            while await self._db.read(tasks.with_status, TaskStatus.RUNNING):
                await changed.wait(1.0)

    async def _lift_pauses(self, text: str) -> None:
        task = await self._db.read(_row, text)
        if task["waiting_for"] == "rate_limit":
            paused = [candidate.account for candidate in candidates(self._stage, task)]
            await self._db.write(actions.lift_pauses, task["id"], paused)

    async def _turn(self, text: str, change: Any, *args: Any) -> Task:
        """Apply a change of course; where it wants a running attempt ended, end it."""
        task_id, wish = await self._db.write(_apply, text, change, args)
        if wish is not None:
            self._stage.stop(*wish)
        return await self.get(task_id)

    async def _workspace_kind(self, spec: TaskSpec, settings: Settings) -> WorkspaceKind:
        wanted = spec.workspace or settings.workspace.default
        if wanted == WorkspaceKind.IN_PLACE:
            if spec.base is not None:
                raise InvalidInput("A base branch needs a worktree.", hint="Leave out --in-place.")
            return WorkspaceKind.IN_PLACE
        directory = Path(spec.directory)
        repository = await self._stage.workspaces.locate(directory)
        if repository is not None and repository.head_commit is not None:
            if spec.base is not None:
                await self._stage.workspaces.check_base(directory, spec.base)
            return WorkspaceKind.WORKTREE
        if repository is not None:
            problem, advice = "a repository without commits", "Commit something first, or work"
        elif is_git_directory(directory):
            problem, advice = "the inside of a git repository", "Go to a checkout of it, or work"
        elif wanted == "auto" and spec.base is None:
            return WorkspaceKind.IN_PLACE
        else:
            problem, advice = "no git repository", "Go to one, or work"
        raise InvalidInput(
            f"{spec.directory} is in {problem}, so there can be no worktree.",
            hint=f"{advice} right there with --in-place.",
        )

    def _shown(self, task: Task) -> Task:
        """What holds a queued task, or what a running one is at, is known to the daemon alone."""
        if task.status is TaskStatus.RUNNING and task.reason is None and task.attempts:
            number, phase = task.attempts[-1].number, self._stage.phase(task.attempts[-1].id)
            return task.model_copy(update={"reason": f"attempt {number}: {phase}"})
        if task.status is not TaskStatus.QUEUED:
            return task
        now = datetime.now(UTC)
        if task.not_before and task.not_before > now:
            seconds = (task.not_before - now).total_seconds()
            reason = f"starts in {seconds:.0f} s; {task.reason or 'delayed'}"
        else:
            reason = self._conductor.held or "about to start"
        return task.model_copy(update={"reason": reason})


def _row(connection: Connection, text: str) -> Any:
    return tasks.row(connection, tasks.resolve(connection, text))


def _apply(connection: Connection, text: str, change: Any, args: tuple[Any, ...]) -> Any:
    task_id = tasks.resolve(connection, text)
    return task_id, change(connection, task_id, *args)


def _submit(connection: Connection, spec: TaskSpec, values: dict[str, Any]) -> Task:
    key = values["idempotency_key"]
    known = tasks.by_idempotency_key(connection, key) if key else None
    if known is not None:
        asked = (values["prompt"], values["agent"], values["directory"])
        if (known.prompt, known.agent, known.directory) != asked:
            raise Conflict(f"This idempotency key was used for another task, {known.id}.")
        return known
    depends_on = [tasks.resolve(connection, text) for text in spec.depends_on]
    for other in depends_on:
        tasks.row(connection, other)
    if spec.continue_from is not None:
        earlier = tasks.get(connection, spec.continue_from)
        values["continue_from"] = earlier.id
        if earlier.status not in FINAL:
            depends_on.append(earlier.id)
    return actions.submit(connection, values, depends_on)


def _values(spec: TaskSpec, settings: Settings, agent: str) -> dict[str, Any]:
    checks = spec.checks or settings.checks
    named = spec.fallback_agents or settings.fallback_agents
    fallbacks = [name for name in dict.fromkeys(named) if name != agent]
    return {
        "id": new_id("task"),
        "title": spec.display_title,
        "prompt": spec.prompt,
        "system_prompt": spec.system_prompt,
        "agent": agent,
        "model": spec.model,
        "directory": os.path.normpath(spec.directory),
        "project": spec.project or settings.project,
        "priority": int(spec.priority.removeprefix("P")),
        "deps_policy": spec.deps_policy,
        "continue_from": None,
        "fork_session": spec.fork_session,
        "fallback_agents": fallbacks,
        "timeout_s": spec.timeout_s,
        "max_turns": spec.max_turns,
        "budget_usd": spec.budget_usd,
        "retry": spec.retry.model_dump(),
        "check_specs": [check.model_dump(mode="json") for check in checks],
        "env": sorted(spec.env),
        "mcp": sorted(spec.mcp),
        "tags": list(dict.fromkeys(spec.tags)),
        "context": spec.context,
        "workspace_path": os.path.normpath(spec.directory),
        "requested_base": spec.base,
        "workspace_base": spec.base,
        "created_at": datetime.now(UTC),
    }


def _require_abilities(spec: TaskSpec, agent: str, abilities: Capabilities) -> None:
    for name, wished, able in (
        ("model", spec.model, abilities.model),
        ("system prompt", spec.system_prompt, abilities.system_prompt),
        ("MCP server", spec.mcp, abilities.mcp),
        ("limit of turns", spec.max_turns, abilities.max_turns or abilities.usage),
        ("budget", spec.budget_usd, abilities.budget or abilities.usage or abilities.cost),
    ):
        if wished and not able:
            raise InvalidInput(
                f"The agent {agent} cannot be given a {name}.",
                hint="docs/agents.md tells what each agent can; a command template needs the "
                "placeholder for it, or has to tell what it used.",
            )


def _trial(spec: TaskSpec, settings: Settings, agent: str) -> AgentRequest:
    return AgentRequest(
        prompt=spec.prompt,
        workspace=Path(spec.directory),
        prompt_file=Path(os.devnull),
        settings=settings.agents.get(agent) or AgentSettings(),
        system_prompt=spec.system_prompt,
        model=spec.model,
    )


def _keep_secrets(path: Path, spec: TaskSpec) -> None:
    """Keep what may be secret in a private file, out of the database."""
    if not spec.env and not spec.mcp:
        return
    kept = spec.model_dump(mode="json", include={"env", "mcp"})
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(json.dumps(kept).encode())
        file.flush()
        os.fsync(descriptor)
