"""An API key on its way from a person to the daemon, seen by nobody in between."""

import sys

import typer

from kapelle.cli.output import say
from kapelle.domain.errors import InvalidInput

API_KEY = "api_key"
_LONGEST = 10_000


def read_key(agent: str) -> str:
    """The key from a hidden prompt in a terminal, or from standard input."""
    if sys.stdin.isatty():
        typed: str = typer.prompt(f"API key of {agent} (hidden)", hide_input=True, err=True)
        return _checked(typed, "Nothing was typed.")
    # One more than allowed, so that the daemon's refusal still names what is wrong.
    return _checked(sys.stdin.read(_LONGEST + 100), "There is no key on standard input.")


def refuse_on_command_line(agent: str) -> None:
    raise InvalidInput(
        "A key is not taken from the command line: it would stay in the history of your shell"
        " and be seen in the list of processes.",
        hint=f"Type `kapelle agents config set {agent} api_key`, which asks for it,"
        f" or pipe it in: … | kapelle agents config set {agent} api_key",
    )


def warn_of_plain_key(agent: str, key: str) -> None:
    """Say where a key that was set as a variable can be read."""
    from kapelle.settings import looks_secret

    if key.startswith("env.") and looks_secret(key):
        say(
            "It can be read there by whoever reads the file;"
            f" `kapelle agents config set {agent} api_key` stores a key more safely."
        )


def _checked(text: str, problem: str) -> str:
    key = text.strip()
    if not key:
        raise InvalidInput(problem, hint="Nothing was changed.")
    return key
