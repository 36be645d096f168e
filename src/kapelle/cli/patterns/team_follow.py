"""A team in the foreground: followed to its end, its questions asked and answered."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import typer

from kapelle.cli.events import Event
from kapelle.cli.follow import (
    INTERRUPTED,
    Show,
    ask,
    can_ask,
    conclude,
    follow_run,
    run_display,
    show_lines,
)
from kapelle.cli.format import clean
from kapelle.cli.ids import run_path
from kapelle.cli.outcome import Run, exit_code
from kapelle.cli.output import complain, data, document, say
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import Conflict
from kapelle.domain.text import counted

# The last that a team tells of an iteration.
_ENDS = frozenset({"done", "not done", "failed"})


@dataclass(frozen=True)
class Manner:
    """How a team is shown; mute means that nobody is asked anything here."""

    progress: bool = False
    detach: bool = False
    as_json: bool = False
    mute: bool = False


def watch(client: Client, run: Run, manner: Manner, seen: int = 0) -> None:
    """Show a team to its end and exit with what became of it, or only its id."""
    if not manner.as_json:
        data(run["id"])
        sys.stdout.flush()
    if manner.detach:
        if manner.as_json:
            document(run)
        return
    while True:
        followed = follow_run(client, run, _display(run, manner), after=seen)
        run, seen = followed.run, followed.seen
        if not run["questions"] or not _may_ask(manner):
            break
        if not _answered(client, run, manner):
            run = client.get(run_path(run["id"]))  # some of them may have been answered
            break
    if manner.as_json:
        document(run)
    elif not run["questions"]:
        conclude(run)
    _tell_how_to_go_on(run, manner)
    raise typer.Exit(exit_code(run))


def _may_ask(manner: Manner) -> bool:
    return not manner.mute and not manner.as_json and can_ask()


def _display(run: Run, manner: Manner) -> AbstractContextManager[Show]:
    if manner.progress:
        return nullcontext(_show_iterations)
    if manner.as_json:
        return nullcontext(_show_nothing)
    if sys.stdout.isatty():
        return run_display(run, as_json=False)
    # What programs read, the id and the tokens of questions, stands alone on stdout.
    return nullcontext(show_lines(sys.stderr))


def _show_nothing(_event: Event) -> None:
    return


def _show_iterations(event: Event) -> None:
    """One line of JSON on stderr for every iteration."""
    facts: dict[str, Any] = event["data"]
    if event["kind"] == "run.progress" and facts.get("phase") in _ENDS:
        complain(json.dumps({"run_id": event["run_id"], "at": event["at"], **facts}))


def _answered(client: Client, run: Run, manner: Manner) -> bool:
    """Ask the person every open question; False when the input ended before the last."""
    path = run_path(run["id"], "answer")
    try:
        for question in run["questions"]:
            answer = ask(question)
            if answer is None:
                return False
            try:
                client.post(path, {"answer": answer, "token": question["token"]})
            except Conflict as error:
                say(error.message)  # somebody else was faster
    except KeyboardInterrupt:
        say("")
        _tell_how_to_go_on(client.get(run_path(run["id"])), manner)
        raise typer.Exit(INTERRUPTED) from None
    return True


def _tell_how_to_go_on(run: Run, manner: Manner) -> None:
    questions = run["questions"]
    if not questions:
        return
    say(f"{run['id']} waits for {counted(len(questions), 'answer')}.")
    for question in questions:
        if not manner.as_json:
            data(question["token"])
        default = question["default"]
        say(f"? {clean(question['text'])}" + (f" [{clean(default)}]" if default else ""))
    answers = ' --answer "…"' * len(questions)
    say(f"Go on with: kapelle team --resume {questions[0]['token']}{answers}")
