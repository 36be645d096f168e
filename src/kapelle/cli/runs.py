"""`kapelle runs`."""

from typing import Any

import typer

from kapelle.cli.command import (
    LISTS,
    CommandExit,
    CommandOutput,
    JsonLines,
    command_group,
    flag,
    option,
)
from kapelle.cli.follow import follow
from kapelle.cli.format import INPUT_NEEDED, STATUS_STYLE, between, exit_code, settled
from kapelle.cli.ids import RunId, RunIds, run_path
from kapelle.cli.output import document, say
from kapelle.cli.pages import (
    LimitOption,
    RepositoryOption,
    columns,
    status_option,
    statuses,
    whole_list,
)
from kapelle.cli.questions import answer
from kapelle.cli.tasks import Everything, cancel, change_each, list_work, show_status, wait
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Conflict
from kapelle.domain.report import FINAL
from kapelle.domain.states import RunStatus

_STATUSES = tuple(RunStatus)
runs = command_group("List runs, look at them, and pause, answer or end them." + LISTS)


@runs.command("list")
def list_runs(
    status: list[str] | None = status_option("runs", _STATUSES),
    pattern: str | None = option("NAME", "Only runs of this pattern."),
    project: str | None = option("NAME", "Only runs of this project."),
    repository: RepositoryOption = None,
    limit: LimitOption = 20,
    nested: bool = flag("Runs inside runs too."),
    everything: Everything = False,
) -> CommandOutput:
    """List the runs of this repository, the newest first."""
    wanted = statuses(status, _STATUSES)
    query = {"status": wanted, "pattern": pattern, "project": project, "nested": nested}
    hint = "runs. `kapelle start` lists the patterns."
    return list_work("/runs", query, everything, limit, hint, repository)


@runs.command()
def status(run_id: RunId) -> CommandOutput:
    """Show one run: where it stands, what it did and what it used."""
    return show_status(DaemonConnection(), run_path(run_id))


@runs.command()
def tail(
    run_id: RunId,
    last: int | None = option("NUMBER", "Of the past only so many lines.", "--tail", min=0),
    as_json: JsonLines = False,
) -> None:
    """Show what a run does until it has ended, waits or is paused.

    Exits with 0 when it is completed, 1 when it failed or was cancelled, 3 when it needs input
    or is paused.
    """
    client = DaemonConnection()
    ended = follow(client, client.get(run_path(run_id)), as_json, tail=last)
    raise typer.Exit(exit_code(ended))


@runs.command()
def steps(run_id: RunId) -> CommandOutput:
    """List everything that a run did and does, in order."""
    found = DaemonConnection().get(run_path(run_id, "steps"))
    shown = columns("STEP,STATUS,KIND,TOOK,WHAT", _step, STATUS_STYLE)
    return whole_list(found, shown, "It has not done anything yet.")


def _step(step: dict[str, Any]) -> list[Any]:
    if step["label"] != step["kind"]:
        label = step["label"]
    else:
        label = None
    what = " ".join(filter(None, [step["subject"], label, step["error"]]))
    took = between(step["started_at"], step["ended_at"])
    return [step["position"], _state(step), step["kind"], took, what]


def _state(step: dict[str, Any]) -> str:
    if step["ended_at"] is None:
        if step["kind"] == "ask":
            return "waiting"
        return "running"
    if step["error"]:
        return "failed"
    result = step["result"]
    if isinstance(result, dict):
        known = result.get("status")
    else:
        known = None
    if known in FINAL:
        return str(known)
    return "done"


@runs.command()
def result(run_id: RunId) -> CommandOutput:
    """Print what a run returned, as JSON.

    Exits with 0 when it is completed, 1 when it failed or was cancelled, 3 when it needs input.
    """
    run = DaemonConnection().get(run_path(run_id))
    if run["status"] not in FINAL:
        if settled(run):
            say(f"{run['id']} is {run['status']}; `kapelle runs status {run['id']}` tells why.")
            raise typer.Exit(INPUT_NEEDED)
        raise Conflict(
            f"{run['id']} is {run['status']} and has no result yet.",
            hint=f"`kapelle wait {run['id']}` waits for it.",
        )
    yield CommandExit(run["result"], exit_code(run))
    document(run["result"])
    if run["status"] != "completed":
        say(": ".join(filter(None, [f"{run['id']} {run['status']}", run["reason"]])))


@runs.command()
def pause(
    run_ids: RunIds,
    now: bool = flag("Stop running tasks too; they begin again later."),
) -> CommandOutput:
    """Have runs start nothing more; what is at work ends first."""
    if now:
        remark = ""
    else:
        remark = "What is at work ends first; `--now` stops it at once."
    return change_each(run_ids, "pause", {"now": now}, path=run_path, remark=remark)


@runs.command()
def resume(run_ids: RunIds) -> CommandOutput:
    """Let paused runs go on."""
    return change_each(run_ids, "resume", path=run_path)


for shared in (wait, cancel, answer):
    runs.command()(shared)
