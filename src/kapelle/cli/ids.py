"""Ids on the command line: arguments that take them, what a shell offers, paths in the API."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from kapelle.cli.command import argument
from kapelle.cli.config import current, root
from kapelle.cli.format import one_line, status_words
from kapelle.cli.output import say
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput, NotFound
from kapelle.domain.ids import shorten_ids

Completions = list[tuple[str, str]]

_NOUNS = {
    "tasks": ("a task", "`kapelle list` shows the ids."),
    "runs": ("a run", "`kapelle runs list` shows the ids."),
    "schedules": ("a schedule", "`kapelle schedule list` shows the ids."),
    "learnings": ("a learning", "`kapelle learnings list` shows the ids."),
    "templates": ("a template", "`kapelle templates` lists them."),
    "work": ("a task or a run", "`kapelle list` shows the ids."),
}


def is_run(text: str) -> bool:
    """Whether what was typed is the id of a run, with its kind before it."""
    return text.strip().lower().startswith("run_")


def here() -> str | None:
    """The repository that the command was typed in, if there is one."""
    top = root(current())
    return str(top) if top else None


def work_id(client: DaemonConnection, typed: str | None, nouns: str = "work") -> str:
    """What was typed as an id, of a task or run with its kind; without one the newest of this
    repository that is no part of a run, and it says which that is."""
    if typed is not None:
        known = nouns != "work" or "_" in typed
        if known:
            return typed.strip()
        return str(client.get(_path("work", typed))["id"])
    query = {"repository": str(current()), "nested": False, "limit": 1}
    found = client.get(f"/{nouns}", query)[nouns]
    if not found:
        from kapelle.cli.relocation import moved_hint

        raise NotFound(
            f"This repository has not had {_NOUNS[nouns][0]}.",
            hint=moved_hint(client)
            or "Type an id: `kapelle list --all` shows those of all repositories.",
        )
    say(f"The newest here is {found[0]['id']}: {one_line(found[0]['title'], 60)}")
    return str(found[0]["id"])


def newest_task_id(client: DaemonConnection, typed: str | None) -> str:
    """Return what was typed as the id of a task; without one the newest work of this repository,
    which is refused if it is a run: an older task is not what is meant."""
    if typed is not None:
        return work_id(client, typed, "tasks")
    newest = work_id(client, None)
    if is_run(newest):
        raise InvalidInput(
            f"{newest} is a run, and this command takes a task.",
            hint=f"Type the id of a task: `kapelle list` shows them, `kapelle runs steps {newest}` "
            "those of the run.",
        )
    return newest


def path_of(some_id: str, *more: str) -> str:
    """The path of a task's or a run's resource, by an id that begins with its kind."""
    return _path("runs" if is_run(some_id) else "tasks", some_id, *more)


def _path(nouns: str, text: str, *more: str) -> str:
    noun, hint = _NOUNS[nouns]
    if not text.strip():
        raise InvalidInput(f"An empty text is not the id of {noun}.", hint=hint)
    if "/" in text:
        # The daemon would take it for another address.
        raise NotFound(f"{text!r} is not the id of {noun}.", hint=hint)
    return "/".join([f"/{nouns}", quote(text.strip(), safe=""), *more])


# The paths of single resources; any unique part of an id will do.
task_path = partial(_path, "tasks")
run_path = partial(_path, "runs")
schedule_path = partial(_path, "schedules")
learning_path = partial(_path, "learnings")
template_path = partial(_path, "templates")


def completing(what: str) -> Callable[[str], Completions]:
    """What a shell offers: ids of tasks, runs, schedules or work with their titles; or the names
    of agents, patterns, and of models and projects that were used."""

    def complete(incomplete: str) -> Completions:
        try:
            # A completion must neither start a daemon nor disturb the line that is being typed.
            return [
                (form, one_line(about, 60))
                for name, about in _offered(DaemonConnection(autostart=False), what)
                for form in [name if incomplete.startswith(name[:4]) else shorten_ids(name)]
                if form.startswith(incomplete)
            ]
        except Exception:
            return []

    return complete


def _offered(client: DaemonConnection, what: str) -> Iterator[tuple[str, str]]:
    if what in {"agents", "patterns"}:
        for item in client.get(f"/{what}", {"directory": str(current())}, timeout=2):
            if item.get("origin", what):  # a broken one has none
                yield item["name"], item.get("status") or item["summary"]
    elif what in {"templates", "project"}:
        for item in client.get(f"/{what.removesuffix('s')}s", timeout=2):
            yield item["name"], item.get("guidelines") or f"{item['open']} open"
    elif what == "model":
        for row in client.get("/usage", {"by": what}, timeout=2)["rows"]:
            if row["key"]:
                yield row["key"], f"{row['attempts']} attempts"
    else:
        apart = what in {"schedules", "learnings"}
        query = {"limit": 100, "repository": None if apart else here()}
        for item in client.get(f"/{what}", query, timeout=2)[what]:
            yield item["id"], f"{status_words(item)}: {item['title']}"


def _argument(whose: str, what: str, *, several: bool = False, newest: bool = False) -> Any:
    if several:
        about = f"Ids of {whose}, or their ends."
    else:
        about = f"The id of {whose}, or its end."
    about += " By default the newest of this repository." if newest else ""
    return argument("ID..." if several else "ID", about, autocompletion=completing(what))


TaskId = Annotated[str, _argument("a task", "tasks")]
RunId = Annotated[str, _argument("a run", "runs")]
RunIds = Annotated[list[str], _argument("runs", "runs", several=True)]
AnyIds = Annotated[list[str], _argument("tasks and runs", "work", several=True)]
ScheduleId = Annotated[str, _argument("a schedule", "schedules")]
LearningIdArgument = Annotated[str, _argument("a learning", "learnings")]
LearningIds = Annotated[list[str], _argument("learnings", "learnings", several=True)]
# Without one the newest is meant.
NewestId = Annotated[str | None, _argument("a task or a run", "work", newest=True)]
OptionalId = Annotated[str | None, _argument("a task or a run", "work")]
NewestIds = Annotated[
    list[str] | None, _argument("tasks and runs", "work", several=True, newest=True)
]
NewestTaskId = Annotated[str | None, _argument("a task", "tasks", newest=True)]
