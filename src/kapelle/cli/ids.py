"""Ids on the command line: arguments that take them, their completion, their paths in the API."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kapelle.cli.config import current, root
from kapelle.cli.output import say
from kapelle.cli.parser import Decorator, argument
from kapelle.cli.states import describe_status
from kapelle.cli.text import one_line
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput, NotFound
from kapelle.domain.ids import shorten_ids

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem

# The noun of a resource in a sentence, and where its ids are listed.
_NOUNS = {
    "tasks": ("a task", "`kapelle list` shows the ids."),
    "runs": ("a run", "`kapelle runs list` shows the ids."),
    "schedules": ("a schedule", "`kapelle schedule list` shows the ids."),
    "learnings": ("a learning", "`kapelle learnings list` shows the ids."),
    "templates": ("a template", "`kapelle templates` lists them."),
    "work": ("a task or a run", "`kapelle list` shows the ids."),
}


def is_run(text: str) -> bool:
    """Return whether a typed text is the id of a run, with its prefix."""
    return text.strip().lower().startswith("run_")


def here() -> str | None:
    """Return the repository around the current directory, if there is one."""
    top = root(current())
    return str(top) if top else None


def work_id(client: DaemonConnection, typed: str | None, nouns: str = "work") -> str:
    """Return the id of a task or run with its prefix.

    Without a typed id this is the newest task or run of this repository that is not part of a run;
    a remark names it.
    """
    if typed is None:
        return _newest_id(client, nouns)
    if nouns != "work" or "_" in typed:
        return typed.strip()
    return str(client.get(_path("work", typed))["id"])


def _newest_id(client: DaemonConnection, nouns: str) -> str:
    query = {"repository": str(current()), "nested": False, "limit": 1}
    items = client.get(f"/{nouns}", query)[nouns]
    if not items:
        from kapelle.cli.relocation import moved_hint

        ask_for_id = "Type an id: `kapelle list --all` shows those of all repositories."
        raise NotFound(
            f"This repository has not had {_NOUNS[nouns][0]}.",
            hint=moved_hint(client) or ask_for_id,
        )
    newest = items[0]
    say(f"The newest here is {newest['id']}: {one_line(newest['title'], 60)}")
    return str(newest["id"])


def newest_task_id(client: DaemonConnection, typed: str | None) -> str:
    """Return the typed id of a task; without one the newest work of this repository.

    Raises InvalidInput if that is a run: an older task is not what the person means.
    """
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
    """Return the path of a task or a run in the API, by an id with its prefix."""
    return _path("runs" if is_run(some_id) else "tasks", some_id, *more)


# The paths of single resources; any unique part of an id is enough.
def task_path(text: str, *more: str) -> str:
    """Return the path of a task in the API."""
    return _path("tasks", text, *more)


def run_path(text: str, *more: str) -> str:
    """Return the path of a run in the API."""
    return _path("runs", text, *more)


def schedule_path(text: str, *more: str) -> str:
    """Return the path of a schedule in the API."""
    return _path("schedules", text, *more)


def learning_path(text: str, *more: str) -> str:
    """Return the path of a learning in the API."""
    return _path("learnings", text, *more)


def template_path(text: str, *more: str) -> str:
    """Return the path of a template in the API."""
    return _path("templates", text, *more)


def _path(nouns: str, text: str, *more: str) -> str:
    noun, hint = _NOUNS[nouns]
    if not text.strip():
        raise InvalidInput(f"An empty text is not the id of {noun}.", hint=hint)
    if "/" in text:
        # The daemon would take it for another address.
        raise NotFound(f"{text!r} is not the id of {noun}.", hint=hint)
    return "/".join([f"/{nouns}", quote(text.strip(), safe=""), *more])


Completer = Callable[["click.Context", "click.Parameter", str], "list[CompletionItem]"]


def complete(noun: str) -> Completer:
    """Return a function that completes ids or names with a description.

    The noun is tasks, runs, work, schedules, learnings, templates, agents, patterns, model or
    project.
    """

    def complete_word(
        _ctx: "click.Context", _param: "click.Parameter", incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        # A completion must neither start a daemon nor disturb the line that is being typed.
        try:
            candidates = list(_candidates(DaemonConnection(autostart=False), noun))
        except Exception:
            return []
        items = []
        for name, description in candidates:
            # An id is offered by its short form, unless its prefix was typed.
            word = name if incomplete.startswith(name[:4]) else shorten_ids(name)
            if word.startswith(incomplete):
                items.append(CompletionItem(word, help=one_line(description, 60)))
        return items

    return complete_word


def _candidates(client: DaemonConnection, noun: str) -> Iterator[tuple[str, str]]:
    """Return the ids or names that there are, with a description."""
    if noun in {"agents", "patterns"}:
        for item in client.get(f"/{noun}", {"directory": str(current())}, timeout=2):
            if item.get("origin", noun):  # a broken pattern has no origin
                yield item["name"], item.get("status") or item["summary"]
    elif noun in {"templates", "project"}:
        for item in client.get(f"/{noun.removesuffix('s')}s", timeout=2):
            yield item["name"], item.get("guidelines") or f"{item['open']} open"
    elif noun == "model":
        for row in client.get("/usage", {"by": noun}, timeout=2)["rows"]:
            if row["key"]:
                yield row["key"], f"{row['attempts']} attempts"
    else:
        query: dict[str, Any] = {"limit": 100}
        if noun not in {"schedules", "learnings"}:
            query["repository"] = here()
        for item in client.get(f"/{noun}", query, timeout=2)[noun]:
            yield item["id"], f"{describe_status(item)}: {item['title']}"


_NEWEST = "By default the newest of this repository."


def id_argument(name: str, noun: str, of: str) -> Decorator[Any]:
    """Return the argument for one id, which is required."""
    return argument(
        name, metavar="ID", help=f"Id of {of}, or its end.", shell_complete=complete(noun)
    )


def ids_argument(name: str, noun: str, of: str) -> Decorator[Any]:
    """Return the argument for one or more ids."""
    return argument(
        name,
        metavar="ID",
        nargs=-1,
        required=True,
        help=f"Ids of {of}, or their ends.",
        shell_complete=complete(noun),
    )


def newest_argument(name: str, noun: str, of: str) -> Decorator[Any]:
    """Return the argument for one id; without one the command takes the newest."""
    return argument(
        name,
        metavar="ID",
        required=False,
        help=f"Id of {of}, or its end. {_NEWEST}",
        shell_complete=complete(noun),
    )


task_argument = id_argument("task_id", "tasks", "a task")
run_argument = id_argument("run_id", "runs", "a run")
runs_argument = ids_argument("run_ids", "runs", "runs")
work_argument = ids_argument("task_ids", "work", "tasks and runs")
newest_task_argument = newest_argument("task_id", "tasks", "a task")
newest_work_argument = newest_argument("task_id", "work", "a task or a run")
newest_works_argument = argument(
    "task_ids",
    metavar="ID",
    nargs=-1,
    required=False,
    help=f"Ids of tasks and runs, or their ends. {_NEWEST}",
    shell_complete=complete("work"),
)
