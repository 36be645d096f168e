"""Ids on the command line: arguments that take them, their completion, their paths in the API."""

from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from kapelle.domain.errors import InvalidInput, NotFound

Noun = Literal["task", "run", "schedule"]
Completions = list[tuple[str, str]]

_LISTS = {"task": "kapelle list", "run": "kapelle runs list", "schedule": "kapelle schedule list"}
_RUN = "run_"


def is_run(text: str) -> bool:
    """Whether what was typed is the id of a run, or the beginning of one."""
    return text.strip().lower().startswith(_RUN)


def task_path(task_id: str, *more: str) -> str:
    """The path of a task's resource; any unique prefix of its id will do."""
    return _path("task", task_id, more)


def run_path(run_id: str, *more: str) -> str:
    """The same for a run."""
    return _path("run", run_id, more)


def schedule_path(schedule_id: str, *more: str) -> str:
    """The same for a schedule."""
    return _path("schedule", schedule_id, more)


def path_of(some_id: str, *more: str) -> str:
    """The same for what may be a run as well as a task."""
    return _path("run" if is_run(some_id) else "task", some_id, more)


def _path(noun: Noun, text: str, more: tuple[str, ...]) -> str:
    hint = f"`{_LISTS[noun]}` shows the ids."
    if not text.strip():
        raise InvalidInput(f"An empty text is not a {noun} id.", hint=hint)
    if "/" in text:
        # The daemon would take it for another address.
        raise NotFound(f"{text!r} is not a {noun} id.", hint=hint)
    return "/".join([f"/{noun}s", quote(text.strip(), safe=""), *more])


def _completing(*nouns: Noun) -> Callable[[str], Completions]:
    def complete(incomplete: str) -> Completions:
        """Ids for the shell, asked of a running daemon only."""
        return [item for noun in nouns for item in _known(noun, incomplete)]

    return complete


def _known(noun: Noun, incomplete: str) -> Completions:
    from kapelle.cli.format import one_line, status_words
    from kapelle.client.http import Connection

    try:
        page = Connection(autostart=False).get(f"/{noun}s", {"limit": 100}, timeout=2)
    except Exception:
        # A completion must never disturb the line that is being typed.
        return []
    return [
        (item["id"], f"{status_words(item)}: {one_line(item['title'], 50)}")
        for item in page[f"{noun}s"]
        if item["id"].startswith(incomplete)
    ]


complete_task = _completing("task")
complete_run = _completing("run")
complete_schedule = _completing("schedule")
_complete_any = _completing("task", "run")


def _argument(whose: str, complete: Callable[[str], Completions], *, many: bool = False) -> Any:
    about = f"Ids of {whose}, or their beginnings." if many else f"The {whose}, or its beginning."
    return typer.Argument(
        metavar="ID..." if many else "ID",
        help=about,
        autocompletion=complete,
        show_default=False,
    )


TaskId = Annotated[str, _argument("id of a task", complete_task)]
TaskIds = Annotated[list[str], _argument("tasks", complete_task, many=True)]
RunId = Annotated[str, _argument("id of a run", complete_run)]
RunIds = Annotated[list[str], _argument("runs", complete_run, many=True)]
AnyId = Annotated[str, _argument("id of a task or a run", _complete_any)]
AnyIds = Annotated[list[str], _argument("tasks and runs", _complete_any, many=True)]
ScheduleId = Annotated[str, _argument("id of a schedule", complete_schedule)]
