"""How a field of a spec is given on the command line: metadata that survives into its JSON schema.

    agent: Name | None = field(None, "who does the work", "-a", metavar="NAME")

Without metadata a field is given as --its-name, and its description is the help.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack

KEY = "x-cli"

# How what is typed becomes a value, where the type of the field alone does not tell.
OptionKind = Literal[
    "agent", "check", "directory", "duration", "environment", "json_file", "list", "moment",
    "names", "prompts", "servers", "usd",
]  # fmt: skip
_METAVARS = {"check": "COMMAND", "directory": "DIRECTORY", "duration": "DURATION", "usd": "USD"}


class Option(TypedDict, total=False):
    """How a field is an option; what is named in pairs are options of their own: name and help."""

    metavar: str  # by default what the kind is typed as
    help: str
    kind: OptionKind
    complete: Literal["agents", "model", "project", "schedules", "tasks", "templates"]
    hidden: bool  # understood, but not shown in the help of a command
    flags: Mapping[str, tuple[str | bool, str]]  # without a value: what each sets, and its help
    implies: Mapping[str, str]  # values that other fields get with this one
    timeout: tuple[str, str]  # limits every check of the field
    file: tuple[str, str]  # reads a list of texts, one in each line


def option(*names: str, **how: Unpack[Option]) -> dict[str, Any]:
    """A field as an option: a long name stands instead of --its-name, short ones beside it."""
    flags = [[name, *flag] for name, flag in how.get("flags", {}).items()]
    facts = {name: how.get(name) for name in Option.__annotations__}
    metavar = how.get("metavar", _METAVARS.get(how.get("kind", "")))
    return _metadata(**{"names": [*names], **facts, "metavar": metavar, "flags": flags})


class Argument(TypedDict, total=False):
    """What goes with an argument; what is named in pairs are options: name and help."""

    ask: str  # a person at a terminal is asked for what is missing
    asked: Mapping[str, bool]  # fields that are set then, too
    before: str  # a list of which the text becomes the first, if there is one
    file: tuple[str, str]  # reads it from a file
    more: tuple[str, str]  # adds to a list


def argument(metavar: str, help: str, **how: Unpack[Argument]) -> dict[str, Any]:
    """A text, or a list of texts, that stands on the command line without an option."""
    facts = {name: how.get(name) for name in Argument.__annotations__}
    return _metadata(argument=metavar, help=help, **facts)


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
