"""`kapelle runs pause`, `resume`, `cancel` and `answer`."""

from typing import Annotated

import typer

from kapelle.cli.changes import change_each, show_each, until_ended
from kapelle.cli.ids import RunIds, complete_run, run_path
from kapelle.cli.options import Json
from kapelle.cli.output import data, document, say
from kapelle.cli.prompt import read_prompt
from kapelle.client.http import Connection as Client
from kapelle.domain.text import counted

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
_ANSWER = 'Write `kapelle runs answer ID "…"`, or pipe it in with `-`.'
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
    runs, failure = change_each(client, run_ids, "pause", {"now": now}, run_path)
    show_each(runs, as_json)
    if not as_json and not now and any(run["status"] == "running" for run in runs):
        say("What is at work ends first; `--now` stops it at once.")
    if failure:
        raise failure


def resume(run_ids: RunIds, as_json: Json = False) -> None:
    """Let paused runs go on."""
    runs, failure = change_each(Client(), run_ids, "resume", path=run_path)
    show_each(runs, as_json)
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
    runs, failure = change_each(client, run_ids, "cancel", body, run_path)
    if not no_wait:
        runs = [until_ended(client, run) for run in runs]
    show_each(runs, as_json)
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
    said = read_prompt(text, None, _ANSWER, "answer")
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
