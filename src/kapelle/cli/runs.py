"""`kapelle runs`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kapelle.cli import parser
from kapelle.cli.figures import format_elapsed
from kapelle.cli.follow import follow
from kapelle.cli.ids import run_argument, run_path, runs_argument
from kapelle.cli.layout import STATUS_STYLE
from kapelle.cli.output import document, say
from kapelle.cli.pages import (
    columns,
    limit_option,
    repository_option,
    status_option,
    statuses,
    whole_list,
)
from kapelle.cli.parser import CliGroup, flag, json_flag, json_lines_flag, option, reports
from kapelle.cli.questions import answer
from kapelle.cli.result import Result
from kapelle.cli.states import INPUT_NEEDED, exit_code, is_settled
from kapelle.cli.tasks import all_flag, cancel, change_each, list_work, show_status, wait
from kapelle.cli.types import Number
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Conflict
from kapelle.domain.report import FINAL
from kapelle.domain.states import RunStatus

if TYPE_CHECKING:
    from kapelle.client.records import RunJson, StepJson

_STATUSES = tuple(RunStatus)

runs = CliGroup(
    "runs",
    help="List runs, show them, and pause, answer or cancel them." + parser.LISTS_BY_DEFAULT,
    default_command="list",
    examples=["kapelle runs --status running", "kapelle runs tail 7k2dp"],
)


@runs.command("list")
@status_option("runs", _STATUSES)
@option("--pattern", metavar="NAME", help="Pattern of the runs to list.")
@option("--project", metavar="NAME", help="Project of the runs to list.")
@repository_option
@limit_option(20)
@flag("--nested", help="Runs inside runs, too.")
@all_flag
@reports
def list_runs(
    status: Sequence[str],
    pattern: str | None,
    project: str | None,
    repository: str | None,
    limit: int,
    nested: bool,
    everything: bool,
) -> Result:
    """List the runs of this repository, newest first."""
    query = {
        "status": statuses(status, _STATUSES),
        "pattern": pattern,
        "project": project,
        "nested": nested,
    }
    hint = "runs. `kapelle start` lists the patterns."
    return list_work("/runs", query, everything, limit, hint, repository)


@runs.command("status")
@run_argument
@reports
def status(run_id: str) -> Result:
    """Show a run: its state, its steps and what it used."""
    return show_status(DaemonConnection(), run_path(run_id))


@runs.command("tail")
@run_argument
@option("--tail", "last", type=Number(0), metavar="NUMBER", help="Maximum number of past lines.")
@json_lines_flag
def tail(run_id: str, last: int | None, as_json: bool) -> int:
    """Show what a run does until it has ended, waits or is paused.

    Exits with 0 when it is completed, 1 when it failed or was cancelled, 3 when it needs input
    or is paused.
    """
    client = DaemonConnection()
    return exit_code(follow(client, client.get(run_path(run_id)), as_json, tail=last))


@runs.command("steps")
@run_argument
@reports
def steps(run_id: str) -> Result:
    """List the steps of a run, in order."""
    items = DaemonConnection().get(run_path(run_id, "steps"))
    lines = columns("STEP,STATUS,KIND,TOOK,WHAT", _step_cells, STATUS_STYLE)
    return whole_list(items, lines, "It has no steps yet.")


def _step_cells(step: "StepJson") -> list[Any]:
    words = [step["subject"], step["label"], step["error"]]
    if step["label"] == step["kind"]:
        words = [step["subject"], step["error"]]
    text = " ".join(word for word in words if word)
    duration = format_elapsed(step["started_at"], step["ended_at"])
    return [step["position"], _step_status(step), step["kind"], duration, text]


def _step_status(step: "StepJson") -> str:
    if step["ended_at"] is None:
        if step["kind"] == "ask":
            return "waiting"
        return "running"
    if step["error"]:
        return "failed"
    result = step["result"]
    if isinstance(result, dict) and result.get("status") in FINAL:
        return str(result["status"])
    return "done"


@runs.command("result")
@run_argument
@json_flag
def result(run_id: str, as_json: bool) -> int:
    """Print the result of a run as JSON.

    Exits with 0 when it is completed, 1 when it failed or was cancelled, 3 when it needs input.
    """
    run = DaemonConnection().get(run_path(run_id))
    if run["status"] in FINAL:
        document(run["result"])
        if run["status"] != "completed" and not as_json:
            say(_ending(run))
        return exit_code(run)
    if is_settled(run):
        say(f"{run['id']} is {run['status']}; `kapelle runs status {run['id']}` tells why.")
        return INPUT_NEEDED
    raise Conflict(
        f"{run['id']} is {run['status']} and has no result yet.",
        hint=f"`kapelle wait {run['id']}` waits for it.",
    )


def _ending(run: "RunJson") -> str:
    """Return how a run ended, with the reason."""
    ending = f"{run['id']} {run['status']}"
    if run["reason"]:
        return f"{ending}: {run['reason']}"
    return ending


@runs.command("pause")
@runs_argument
@flag("--now", help="Stop running tasks, too; they start again later.")
@reports
def pause(run_ids: Sequence[str], now: bool) -> Result:
    """Pause runs: they start nothing new, and running tasks end first."""
    remark = "Running tasks end first; `--now` stops them at once."
    if now:
        remark = ""
    return change_each(run_ids, "pause", {"now": now}, path=run_path, remark=remark)


@runs.command("resume")
@runs_argument
@reports
def resume(run_ids: Sequence[str]) -> Result:
    """Resume paused runs."""
    return change_each(run_ids, "resume", path=run_path)


for shared_command in (wait, cancel, answer):
    runs.add_command(shared_command)
