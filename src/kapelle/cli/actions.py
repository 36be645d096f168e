"""`kapelle cancel`, `retry`, `resume`, `requeue` and `archive`."""

import time
from typing import Annotated

import typer

from kapelle.cli.client import Client
from kapelle.cli.ids import AnyId, AnyIds, TaskId, is_run, path_of, run_path, task_path
from kapelle.cli.options import Json
from kapelle.cli.outcome import FINAL, Task
from kapelle.cli.output import data, document, say
from kapelle.cli.run_options import Budget, MaxTurns
from kapelle.cli.values import listed, optional_usd
from kapelle.domain.errors import InvalidInput, KapelleError


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
    tasks, failure = _each(client, task_ids, "cancel", {"reason": reason})
    if not no_wait:
        tasks = [_ended(client, task) for task in tasks]
    _show_all(tasks, as_json)
    if failure:
        raise failure


def archive(task_ids: AnyIds, as_json: Json = False) -> None:
    """Take ended tasks and runs out of the list and keep their work."""
    tasks, failure = _each(Client(), task_ids, "archive")
    _show_all(tasks, as_json, "archived")
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


def _each(
    client: Client, task_ids: list[str], action: str, body: dict[str, str | None] | None = None
) -> tuple[list[Task], KapelleError | None]:
    """Do it to every task; one that refuses does not keep the others from it."""
    tasks: list[Task] = []
    failure: KapelleError | None = None
    for task_id in listed(task_ids, "An id"):
        try:
            tasks.append(client.post(path_of(task_id, action), body))
        except KapelleError as error:
            if failure:
                say(f"kapelle: {failure.message}")
            failure = error
    return tasks, failure


def _ended(client: Client, task: Task) -> Task:
    while task["status"] not in FINAL:
        task = client.get(path_of(task["id"], "wait"), {"timeout_s": 25})
        if task["status"] in {"waiting", "paused"}:
            # A waiting task is told at once, so only this pause keeps us from asking without end.
            time.sleep(0.3)
    return task


def _show_all(tasks: list[Task], as_json: bool, state: str | None = None) -> None:
    if as_json:
        document(tasks)
        return
    for task in tasks:
        data(f"{task['id']}  {state or task['status']}")


def _show_one(task: Task, as_json: bool) -> None:
    if as_json:
        document(task)
        return
    data(task["id"])
    say(f"It is {task['status']} again; `kapelle logs -f {task['id']}` follows it.")
