"""`kapelle runs pause`, `resume`, `cancel` and `answer`."""

import time
from typing import Annotated, Any

import typer

from kapelle.cli.amounts import counted
from kapelle.cli.client import Client
from kapelle.cli.ids import RunIds, complete_run, run_path
from kapelle.cli.options import Json
from kapelle.cli.outcome import FINAL
from kapelle.cli.output import data, document, say
from kapelle.cli.prompt import read_prompt
from kapelle.cli.runs.outcome import Run
from kapelle.cli.values import listed
from kapelle.domain.errors import InvalidInput, KapelleError

Reason = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Why, for the record.", show_default=False)
]
Asked = Annotated[
    str,
    typer.Argument(
        metavar="ID|TOKEN",
        help="The run's id, or the token of its question.",
        autocompletion=complete_run,
        show_default=False,
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until they have ended.")]


def pause(
    run_ids: RunIds,
    now: Annotated[
        bool, typer.Option("--now", help="Stop running tasks too; they begin again later.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Have runs start nothing more; what is at work ends first."""
    client = Client()
    runs, failure = _each(client, run_ids, "pause", {"now": now})
    _show(runs, as_json)
    if not as_json and any(run["status"] == "running" for run in runs):
        say("What is at work ends first; `--now` stops it at once.")
    if failure:
        raise failure


def resume(run_ids: RunIds, as_json: Json = False) -> None:
    """Let paused runs go on."""
    runs, failure = _each(Client(), run_ids, "resume")
    _show(runs, as_json)
    if failure:
        raise failure


def cancel(
    run_ids: RunIds,
    keep_tasks: Annotated[
        bool, typer.Option("--keep-tasks", help="Leave the tasks it started to go on.")
    ] = False,
    reason: Reason = None,
    no_wait: NoWait = False,
    as_json: Json = False,
) -> None:
    """End runs with all that they started."""
    client = Client()
    body = {"reason": reason, "with_tasks": not keep_tasks}
    runs, failure = _each(client, run_ids, "cancel", body)
    if not no_wait:
        runs = [until_ended(client, run) for run in runs]
    _show(runs, as_json)
    if failure:
        raise failure


def answer(
    run_id: Asked,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="What it wanted to know; - reads stdin.")
    ],
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Which question, when there are several."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer a question of a run that waits; it then goes on."""
    said = _answer(text)
    whose, _, position = run_id.partition(":")
    body = {"answer": said, "token": token or (run_id.strip() if position else None)}
    run = Client().post(run_path(whose, "answer"), body)
    if as_json:
        document(run)
        return
    data(run["id"])
    if run["questions"]:
        left = len(run["questions"])
        more = f"It has {counted(left, 'question')} more"
        say(f"{more}; `kapelle runs status {run['id']}` shows what it asks.")
    else:
        say(f"It goes on; `kapelle runs tail {run['id']}` follows it.")


def _answer(text: str) -> str:
    try:
        return read_prompt(text, None)
    except InvalidInput as error:
        raise InvalidInput(
            error.message.replace("prompt", "answer"),
            hint='Write `kapelle runs answer ID "…"`, or pipe it in with `-`.',
        ) from None


def _each(
    client: Client, run_ids: list[str], action: str, body: dict[str, Any] | None = None
) -> tuple[list[Run], KapelleError | None]:
    """Do it to every run; one that refuses does not keep the others from it."""
    runs: list[Run] = []
    failure: KapelleError | None = None
    for run_id in listed(run_ids, "A run id"):
        try:
            runs.append(client.post(run_path(run_id, action), body))
        except KapelleError as error:
            if failure:
                say(f"kapelle: {failure.message}")
            failure = error
    return runs, failure


def until_ended(client: Client, run: Run) -> Run:
    """The run once it has ended, which was asked of it already."""
    while run["status"] not in FINAL:
        run = client.get(run_path(run["id"], "wait"), {"timeout_s": 25})
        if run["status"] not in FINAL:
            # One that rests is told at once; only this pause keeps us from asking without end.
            time.sleep(0.3)
    return run


def _show(runs: list[Run], as_json: bool) -> None:
    if as_json:
        document(runs)
        return
    for run in runs:
        data(f"{run['id']}  {run['status']}")
