"""The specification of a task that a pattern wishes for, made of that wish and of its run's."""

from typing import Any

from pydantic import ValidationError

from kapelle.domain.errors import InvalidInput, sentence
from kapelle.domain.run_specs import PatternSpec
from kapelle.domain.specs import RetrySpec, TaskSpec, WorkspaceKind
from kapelle.domain.text import titled, writable
from kapelle.patterns.results import Left
from kapelle.patterns.wishes import TaskWish


def task_spec(
    run: PatternSpec, wish: TaskWish, left: Left, workspace: WorkspaceKind, base: str | None
) -> TaskSpec:
    """What is submitted, within what is left of the run's limits."""
    agent = wish.agent or run.agent
    wanted: dict[str, Any] = {
        "prompt": writable(wish.prompt),
        "directory": wish.directory or run.directory,
        "agent": agent,
        # A model belongs to the agent that it was named with.
        "model": wish.model or (run.model if agent == run.agent else None),
        "title": titled(wish.title) if wish.title else None,
        "project": run.project,
        "priority": wish.priority or run.priority,
        "checks": list(wish.checks),
        "continue_from": wish.continue_from,
        "fork_session": wish.keep_session and wish.continue_from is not None,
        "fallback_agents": run.fallback_agents,
        "system_prompt": wish.system_prompt or run.system_prompt,
        "timeout_s": wish.timeout_s or run.task_timeout_s,
        "env": run.env,
        "context": wish.context,
        "workspace": workspace,
        "base": base,
        "budget_usd": left.usd,
        "retry": _retry(wish.max_attempts, left.agent_calls),
    }
    try:
        return TaskSpec.model_validate(wanted)
    except ValidationError as error:
        raise InvalidInput(f"ctx.task: {sentence(error)}") from None


def _retry(max_attempts: int, calls: int | None) -> RetrySpec:
    tries = max(1, max_attempts if calls is None else min(max_attempts, calls))
    return RetrySpec(policy="same" if tries > 1 else "none", max_attempts=tries)
