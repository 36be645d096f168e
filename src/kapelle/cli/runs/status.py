"""`kapelle runs status`, `kapelle runs steps` and `kapelle runs result`."""

import sys
from typing import Any

import typer

from kapelle.cli.ids import RunId, run_path, task_path
from kapelle.cli.options import Json
from kapelle.cli.outcome import FINAL, INPUT_NEEDED, Task, exit_code, settled
from kapelle.cli.output import document, say
from kapelle.cli.text import one_line
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import Conflict


def status(run_id: RunId, as_json: Json = False) -> None:
    """Show one run: where it stands, what it did and what it used."""
    show_status(Client(), run_id, as_json)


def show_status(client: Client, run_id: str, as_json: bool) -> None:
    run = client.get(run_path(run_id))
    if as_json:
        document(run)
        return
    from kapelle.cli.runs.follow import history
    from kapelle.cli.runs.view import describe

    steps = client.get(run_path(run["id"], "steps"))
    told = []
    if run["result"] is None and run["pattern"] == "loop":
        events = history(client, run["id"])
        told = [event["data"] for event in events if event["kind"] == "run.progress"]
    tasks = {task["id"]: task for task in _open_tasks(client, steps)}
    sys.stdout.writelines(f"{line}\n" for line in describe(run, steps, told, tasks))


def _open_tasks(client: Client, steps: list[dict[str, Any]]) -> list[Task]:
    """The tasks that a run waits for; what they are at, only they themselves know."""
    begun = [step["subject"] for step in steps if step["kind"] == "task" and not step["ended_at"]]
    return [client.get(task_path(task_id)) for task_id in begun if task_id]


def steps(run_id: RunId, as_json: Json = False) -> None:
    """List everything that a run did and does, in order."""
    found = Client().get(run_path(run_id, "steps"))
    if as_json:
        document(found)
        return
    if not found:
        say("It has not done anything yet.")
        return
    from kapelle.cli.style import STATUS_STYLE, table
    from kapelle.cli.times import between

    rows = [
        [
            step["position"],
            _state(step),
            step["kind"],
            between(step["started_at"], step["ended_at"]),
            one_line(" ".join(filter(None, [step["label"], step["subject"], step["error"]]))),
        ]
        for step in found
    ]
    styles = [STATUS_STYLE.get(row[1]) for row in rows]
    lines = table(["STEP", "STATUS", "KIND", "TOOK", "WHAT"], rows, styles)
    sys.stdout.writelines(f"{line}\n" for line in lines)


def _state(step: dict[str, Any]) -> str:
    if step["ended_at"] is None:
        return "waiting" if step["kind"] == "ask" else "running"
    if step["error"]:
        return "failed"
    result = step["result"]
    known = result.get("status") if isinstance(result, dict) else None
    return str(known) if known in FINAL else "done"


def result(run_id: RunId, as_json: Json = False) -> None:
    """Print what a run returned, as JSON.

    Exits with 0 when it is completed, 1 when it failed or was cancelled, 3 when it needs input.
    """
    run = Client().get(run_path(run_id))
    if run["status"] not in FINAL:
        if settled(run):
            say(f"{run['id']} is {run['status']}; `kapelle runs status {run['id']}` tells why.")
            raise typer.Exit(INPUT_NEEDED)
        raise Conflict(
            f"{run['id']} is {run['status']} and has no result yet.",
            hint=f"`kapelle wait {run['id']}` waits for it.",
        )
    document(run["result"])
    if run["status"] != "completed":
        say(
            f"{run['id']} {run['status']}"
            + (f": {one_line(run['reason'])}" if run["reason"] else "")
        )
    raise typer.Exit(exit_code(run))
