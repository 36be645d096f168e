"""The options that every pattern takes: where, by whom, and how much it may use."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from kapelle.cli import run_options as given

TaskTimeout = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Stop an attempt of a task after this long.")
]
MaxSeconds = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Stop after being under way for so long.")
]
MaxAgentCalls = Annotated[
    int | None,
    typer.Option(min=1, max=1_000_000, metavar="NUMBER", help="Call agents at most so often."),
]
Budget = Annotated[
    str | None, typer.Option(metavar="USD", help="Stop when all its tasks have cost so much.")
]
# How it is shown stands at the end of every list of options.
_LAST = frozenset({"follow", "detach", "as_json", "show_help"})


def _shared(
    agent: given.Agent = None,
    model: given.Model = None,
    directory: given.Directory = None,
    title: given.Title = None,
    project: given.Project = None,
    priority: given.Priority = None,
    fallback: given.Fallback = None,
    env: given.Env = None,
    worktree: given.Worktree = False,
    in_place: given.InPlace = False,
    base: given.Base = None,
    system_prompt: given.SystemPrompt = None,
    task_timeout: TaskTimeout = None,
    max_seconds: MaxSeconds = None,
    max_agent_calls: MaxAgentCalls = None,
    budget: Budget = None,
) -> None:
    """Only its signature is used: every pattern's command has these options too."""


SHARED = tuple(inspect.signature(_shared).parameters)


def pattern_command(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options as well; it finds them in its context's params."""
    own = inspect.signature(command).parameters
    first = [parameter for name, parameter in own.items() if name not in _LAST]
    last = [parameter for name, parameter in own.items() if name in _LAST]
    shared = inspect.signature(_shared).parameters.values()

    @wraps(command)
    def extended(**options: Any) -> None:
        command(**{name: value for name, value in options.items() if name in own})

    extended.__signature__ = inspect.Signature([*first, *shared, *last])  # type: ignore[attr-defined]
    return extended
