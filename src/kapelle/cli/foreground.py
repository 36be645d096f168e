"""A run in the foreground: followed to its end, its questions asked, and answered later."""

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
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
    history,
    run_display,
    show_lines,
    show_new,
)
from kapelle.cli.format import clean
from kapelle.cli.ids import run_path
from kapelle.cli.outcome import Run, exit_code
from kapelle.cli.output import complain, data, document, say
from kapelle.cli.request import begin, is_collecting
from kapelle.cli.spec_options import Option, Params, Spec
from kapelle.cli.values import not_empty
from kapelle.client.http import Connection
from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.domain.text import counted

# The last that a run tells of an iteration.
_ENDS = frozenset({"done", "not done", "failed"})


def perform(name: str, params: Params, spec: Callable[[], Spec], options: Sequence[Option]) -> None:
    """Start a run of a pattern, or answer what one asked, and show it."""
    client, seen = Connection(), 0
    if params["resume"] or params["answer"]:
        if is_collecting():
            raise InvalidInput(
                "A schedule starts new runs, and --resume goes on with one.",
                hint="Leave --resume and --answer out.",
            )
        run, seen = _answered(client, params, options)
    else:
        body = {"pattern": name, "spec": spec()}
        run = begin(client, "/runs", body, options)
    if not params["follow"] and not params["progress"]:
        show_new(client, run, to_end=False, as_json=params["as_json"])
        return
    if not params["as_json"]:
        data(run["id"])
        sys.stdout.flush()
    _watch(client, run, params, seen)


def _watch(client: Connection, run: Run, params: Params, seen: int) -> None:
    """Show a run to its end, ask what it asks, and exit with what became of it."""
    as_json = params["as_json"]
    may_ask = not params.get("ask_non_interactive") and not as_json and can_ask()
    while True:
        run, seen = follow_run(client, run, _display(client, run, params), after=seen)
        if not run["questions"] or not may_ask:
            break
        if not _ask_all(client, run):
            run = client.get(run_path(run["id"]))  # some of them may have been answered
            break
    if as_json:
        document(run)
    elif params["progress"]:
        _tell(run["id"], **{name: run[name] for name in ("status", "reason", "ended_at")})
    elif not run["questions"]:
        conclude(run)
    _explain_resume(run, as_json)
    raise typer.Exit(exit_code(run))


def _display(client: Connection, run: Run, params: Params) -> AbstractContextManager[Show]:
    if params["progress"]:
        return nullcontext(_show_iterations)
    if params["as_json"]:
        return nullcontext(lambda _event: None)
    if sys.stdout.isatty():
        return run_display(client, run, as_json=False)
    # What programs read, the id and the tokens of questions, stands alone on stdout.
    return nullcontext(show_lines(sys.stderr))


def _show_iterations(event: Event) -> None:
    """One line of JSON on stderr for every iteration."""
    facts: dict[str, Any] = event["data"]
    if event["kind"] == "run.progress" and facts.get("phase") in _ENDS:
        _tell(event["run_id"], at=event["at"], **facts)


def _tell(run_id: str, **facts: Any) -> None:
    complain(json.dumps({"run_id": run_id, **facts}))


def _ask_all(client: Connection, run: Run) -> bool:
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
        _explain_resume(client.get(run_path(run["id"])), as_json=False)
        raise typer.Exit(INTERRUPTED) from None
    return True


def _explain_resume(run: Run, as_json: bool) -> None:
    questions = run["questions"]
    if not questions:
        return
    say(f"{run['id']} waits for {counted(len(questions), 'answer')}.")
    for question in questions:
        if not as_json:
            data(question["token"])
        default = question["default"]
        say(f"? {clean(question['text'])}" + (f" [{clean(default)}]" if default else ""))
    answers = ' --answer "…"' * len(questions)
    say(f"Go on with: kapelle {run['pattern']} -f --resume {questions[0]['token']}{answers}")


_EXAMPLE = 'Write `--resume TOKEN --answer "…"`.'
# What may stand beside --resume; everything else is settled when a run is started.
_BESIDE = frozenset(
    {"resume", "answer", "progress", "follow", "as_json", "ask", "ask_non_interactive"}
)


def _answered(client: Connection, params: Params, options: Sequence[Option]) -> tuple[Run, int]:
    """The run whose questions were answered, and the number of its last event before that."""
    tokens = [not_empty(text.strip(), "--resume") for text in params["resume"] or ()]
    answers = list(params["answer"] or ())
    _require_pairs(params, options, tokens, answers)
    run_id = tokens[0].partition(":")[0]
    if any(token.partition(":")[0] != run_id for token in tokens):
        raise InvalidInput("The tokens belong to different runs.", hint="Go on with one at a time.")
    run: Run = client.get(run_path(run_id))
    seen = max((event["seq"] for event in history(client, run["id"])), default=0)
    for token, answer in _matched(run, tokens, answers):
        run = client.post(run_path(run_id, "answer"), {"answer": answer, "token": token})
    return run, seen


def _require_pairs(
    params: Params, options: Sequence[Option], tokens: list[str], answers: list[str]
) -> None:
    if not tokens:
        raise InvalidInput("--answer needs to know which question.", hint=_EXAMPLE)
    if not answers:
        raise InvalidInput("--resume needs an answer.", hint=_EXAMPLE)
    arguments = {option.name for option in options if option.about.get("argument")}
    for name, value in params.items():
        if value and name not in _BESIDE:
            shown = f"The {name}" if name in arguments else f"--{name.replace('_', '-')}"
            raise InvalidInput(
                f"{shown} cannot be changed when a run goes on.",
                hint="Leave out everything but --resume, --answer and how it is shown.",
            )
    if len(tokens) > len(answers):
        raise InvalidInput(
            f"There are {len(tokens)} tokens and {len(answers)} answers.",
            hint="Write an --answer for every --resume.",
        )


def _matched(run: Run, tokens: list[str], answers: list[str]) -> list[tuple[str, str]]:
    """Which question each answer is for: those of the tokens first, then the others in order."""
    named = [token for token in tokens if ":" in token]
    others = [question["token"] for question in run["questions"]]
    order = [*named, *(token for token in others if token not in named)]
    if len(answers) > len(order):
        asked = len(run["questions"])
        many = f"{asked} of these, not {len(answers)}" if asked else "nothing"
        raise Conflict(
            f"{run['id']} is {run['status']} and asks {many}.",
            hint=f"`kapelle runs status {run['id']}` shows what it asks.",
        )
    return list(zip(order, answers, strict=False))
