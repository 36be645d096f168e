"""From the options that every pattern takes to the part of its specification that all share."""

from typing import Any

from kapelle.cli.prompt import read_prompt
from kapelle.cli.task_spec import absolute_directory, workspace_kind
from kapelle.cli.values import (
    choice,
    environment,
    listed,
    optional_duration_s,
    optional_usd,
    texts,
)
from kapelle.domain.errors import InvalidInput

Options = dict[str, Any]
Spec = dict[str, Any]

_TEXTS = ("agent", "model", "title", "project", "base", "system_prompt")
# It looks at the output of one agent, and a run has many.
_CHECK_OF_TASKS = "no_error_in_output"


def shared_spec(options: Options) -> Spec:
    """What was given of it, and the directory, which is never left to the daemon."""
    return {**given_spec(options), "directory": absolute_directory(options["directory"])}


def given_spec(options: Options) -> Spec:
    """Only what was given."""
    priority = options["priority"] and options["priority"].upper()
    directory = options["directory"]
    return only_given(
        {
            **texts(options, _TEXTS),
            "max_agent_calls": options["max_agent_calls"],
            "directory": directory and absolute_directory(directory),
            "priority": choice("--priority", priority, ("P0", "P1", "P2")),
            "fallback_agents": listed(options["fallback"] or [], "--fallback"),
            "env": environment(options["env"] or []),
            "workspace": workspace_kind(options["worktree"], options["in_place"]),
            "task_timeout_s": optional_duration_s(options["task_timeout"], "--task-timeout"),
            "max_seconds": optional_duration_s(options["max_seconds"], "--max-seconds"),
            "budget_usd": optional_usd(options["budget"], "--budget"),
        }
    )


def only_given(spec: Spec) -> Spec:
    """Without what is left to the defaults of the pattern."""
    return {key: value for key, value in spec.items() if value not in (None, [], {})}


def steps_of(prompts: list[str], hint: str, first: int = 1) -> list[str]:
    """The prompts of steps, each of which says something; - reads one from stdin.

    The hint tells how to write them; first is the number of the first of them.
    """
    if prompts.count("-") > 1:
        raise InvalidInput(
            "Only one step can come from stdin.", hint="Write the prompt of each other step."
        )
    return [
        read_prompt(prompt, None, hint, f"prompt of step {number}")
        for number, prompt in enumerate(prompts, first)
    ]


def conditions(commands: list[str], option: str) -> list[str]:
    """Commands that a run checks in its workspace."""
    for command in commands:
        if not command.strip():
            raise InvalidInput(
                f"{option} is empty.", hint=f'Write a command, for example {option} "make test".'
            )
        if command == _CHECK_OF_TASKS:
            raise InvalidInput(
                f"{option} cannot be {_CHECK_OF_TASKS}, which looks at a single task's output.",
                hint=f"Use a command or {option} diff_not_empty.",
            )
    return commands
