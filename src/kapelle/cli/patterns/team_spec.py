"""From the options of `kapelle team` to its specification."""

import sys
from pathlib import Path

from kapelle.cli.patterns.spec import Options, Spec, conditions, only_given, shared_spec
from kapelle.cli.prompt import read_prompt
from kapelle.cli.values import not_empty, texts
from kapelle.domain.errors import InvalidInput

_ROLES = ("planner", "worker", "reviewer")
_WAYS = 'Write `kapelle team "what to build"`, `--goal-file FILE`, or pipe it in with `-`.'


def team_spec(options: Options) -> Spec:
    """The team asked for."""
    if options["ask"] and options["non_interactive"]:
        raise InvalidInput(
            "--ask and --non-interactive exclude each other.", hint="Leave one of them out."
        )
    spec = {
        "success_criteria": [not_empty(text, "--criteria") for text in options["criteria"] or ()],
        "verify": conditions(options["verify"] or [], "--verify"),
        **texts(options, [*_ROLES, *(f"{role}_model" for role in _ROLES)]),
        "max_iterations": options["max_iterations"],
        "max_workers": options["max_workers"],
        "ask": options["ask"] or None,
    }
    # The goal comes last: it may be asked for, and nothing after that can go wrong.
    shared = shared_spec(options)
    return {"goal": _goal(options["goal"], options["goal_file"]), **only_given(spec), **shared}


def _goal(argument: str | None, file: Path | None) -> str:
    if argument is None and file is None and _in_a_terminal():
        argument = _ask_for_it()
    elif argument is None and file == Path("-"):
        argument, file = "-", None
    return read_prompt(argument, file, _WAYS, "goal")


def _in_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask_for_it() -> str:
    """The goal as typed; prompts go to stderr, since stdout is for what programs read."""
    from kapelle.cli.follow import read_line

    typed = read_line("What is the goal? ")
    if typed is None or not typed.strip():
        raise InvalidInput("There is no goal.", hint=_WAYS)
    return typed
