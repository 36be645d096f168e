"""How a field of a spec is given on the command line: metadata that survives into its JSON schema.

    agent: Name | None = Field(default=None, json_schema_extra=option("-a", metavar="NAME"))

Without metadata a field is given as --its-name, and its description is the help.
"""

from collections.abc import Mapping
from typing import Any, Literal

KEY = "x-cli"

# How what is typed becomes a value, where the type of the field alone does not tell.
Kind = Literal[
    "agent", "check", "directory", "duration", "environment", "json_file", "list", "moment",
    "names", "prompts", "servers", "usd",
]  # fmt: skip


def option(
    *names: str,
    metavar: str = "",
    help: str = "",
    kind: Kind | None = None,
    flags: Mapping[str, tuple[str | bool, str]] | None = None,
    implies: Mapping[str, str] | None = None,
    timeout: tuple[str, str] | None = None,
    file: tuple[str, str] | None = None,
    complete: Literal["agents", "model", "project", "schedules", "tasks"] | None = None,
    hidden: bool = False,
) -> dict[str, Any]:
    """A field as an option.

    A long name stands instead of --its-name, short ones beside it. Flags are options without a
    value that set the field, each with that value and a help. implies names values that other
    fields get with this one. timeout is the name and the help of an option that limits every check
    of the field, file of one that reads a list of texts, one in each line. What is hidden is
    understood but not shown in the help of a command.
    """
    return _metadata(
        names=[*names], metavar=metavar, help=help, kind=kind, complete=complete, hidden=hidden,
        flags=[[name, *flag] for name, flag in (flags or {}).items()],
        implies=dict(implies or {}), timeout=[*(timeout or ())], file=[*(file or ())],
    )  # fmt: skip


def argument(
    metavar: str,
    *,
    help: str,
    file: tuple[str, str] | None = None,
    ask: str = "",
    asked: Mapping[str, bool] | None = None,
    before: str = "",
    more: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """A text, or a list of texts, that stands on the command line without an option.

    file is the name and the help of an option that reads it from a file, more of one that adds to
    a list. With ask, a person at a terminal is asked for what is missing, which sets the fields of
    asked too. before is a list of which the text becomes the first, if there is one.
    """
    return _metadata(
        argument=metavar, help=help, ask=ask, asked=dict(asked or {}), before=before,
        file=[*(file or ())], more=[*(more or ())],
    )  # fmt: skip


def group(implied: Mapping[str, str]) -> dict[str, Any]:
    """An object whose fields are options of their own, with what any of them implies."""
    return _metadata(group=dict(implied))


def command(
    summary: str, about: str = "", *, foreground: bool = False, file: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The command of a whole spec, for its model_config.

    In the foreground a run asks its questions where it is followed.
    file is the names and the help of an option that reads the whole spec, with variables.
    """
    return _metadata(summary=summary, about=about, foreground=foreground, file=[*file])


def _metadata(**facts: Any) -> dict[str, Any]:
    return {KEY: {name: value for name, value in facts.items() if value}}
