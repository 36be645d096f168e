"""`kapelle cancel`, `retry`, `resume`, `requeue` and `archive`."""

from typing import Annotated

import typer

from kapelle.cli.changes import change_each, show_each, until_ended
from kapelle.cli.ids import AnyId, AnyIds, TaskId, is_run, run_path, task_path
from kapelle.cli.options import Budget, Json, MaxTurns
from kapelle.cli.outcome import Task
from kapelle.cli.output import data, document, say
from kapelle.cli.values import optional_usd
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import InvalidInput


def cancel(
    task_ids: AnyIds,
    reason: Annotated[str | None, typer.Option(help="Why, for the record.")] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Do not wait until they have ended.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Stop tasks and runs, with every process they started."""
    client = Client()
    tasks, failure = change_each(client, task_ids, "cancel", {"reason": reason})
    if not no_wait:
        tasks = [until_ended(client, task) for task in tasks]
    show_each(tasks, as_json)
    if failure:
        raise failure


def archive(task_ids: AnyIds, as_json: Json = False) -> None:
    """Take ended tasks and runs out of the list and keep their work."""
    tasks, failure = change_each(Client(), task_ids, "archive")
    show_each(tasks, as_json, "archived")
    if failure:
        raise failure


def retry(
    task_id: TaskId, budget: Budget = None, max_turns: MaxTurns = None, as_json: Json = False
) -> None:
    """Run an ended task once more from the beginning."""
    _show_one(Client().post(task_path(task_id, "retry"), new_limits(budget, max_turns)), as_json)


def resume(
    task_id: AnyId,
    message: Annotated[
        str | None, typer.Argument(help="An answer or advice for the agent.", show_default=False)
    ] = None,
    budget: Budget = None,
    max_turns: MaxTurns = None,
    as_json: Json = False,
) -> None:
    """Go on where a task's last attempt left off, or with a run that is paused."""
    if is_run(task_id):
        _resume_run(task_id, message or budget or max_turns, as_json)
        return
    body = {"message": message, **new_limits(budget, max_turns)}
    _show_one(Client().post(task_path(task_id, "resume"), body), as_json)


def _resume_run(run_id: str, more: str | int | None, as_json: bool) -> None:
    if more:
        raise InvalidInput(
            "A run that goes on takes neither a message nor new limits.",
            hint=f'`kapelle runs answer {run_id.strip()} "…"` answers what it asked.',
        )
    run = Client().post(run_path(run_id, "resume"))
    if as_json:
        document(run)
        return
    data(run["id"])
    say(f"It is {run['status']} again; `kapelle runs tail {run['id']}` follows it.")


def new_limits(budget: str | None, max_turns: int | None) -> dict[str, float | None]:
    """The limits of a task from now on, as the API takes them."""
    return {"budget_usd": optional_usd(budget, "--budget"), "max_turns": max_turns}


def requeue(task_id: TaskId, as_json: Json = False) -> None:
    """Put a task back into the queue; a running one is stopped first."""
    _show_one(Client().post(task_path(task_id, "requeue")), as_json)


def _show_one(task: Task, as_json: bool) -> None:
    if as_json:
        document(task)
        return
    data(task["id"])
    say(f"It is {task['status']} again; `kapelle logs -f {task['id']}` follows it.")
