"""Options and arguments of specs on the command line, as metadata in the JSON schema.

    agent: Name | None = field(None, "Agent to use.", "-a", metavar="NAME")

Without metadata, a field is the option --its-name, and its description is the help.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack

KEY = "x-cli"

# How to convert the text of an option, where the type of the field is not enough.
OptionKind = Literal[
    "agent", "check", "directory", "duration", "environment", "json_file", "list", "moment",
    "names", "prompts", "servers", "usd",
]  # fmt: skip
_METAVARS = {"check": "COMMAND", "directory": "DIRECTORY", "duration": "DURATION", "usd": "USD"}


class Option(TypedDict, total=False):
    """Metadata of an option. A pair describes a further option by its name and its help."""

    metavar: str  # default: the placeholder of the kind
    help: str
    kind: OptionKind
    complete: Literal["agents", "model", "project", "schedules", "tasks", "templates"]
    hidden: bool  # accepted, but left out of the help
    flags: Mapping[str, tuple[str | bool, str]]  # options without a value: what each sets, its help
    implies: Mapping[str, str]  # values of other fields that this option sets
    timeout: tuple[str, str]  # an option that limits every check of the field
    file: tuple[str, str]  # an option that reads a list of texts, one per line


def option(*names: str, **how: Unpack[Option]) -> dict[str, Any]:
    """Return the metadata of an option.

    A long name replaces --its-name; a short name is added to it.
    """
    flags = [[name, *flag] for name, flag in how.get("flags", {}).items()]
    facts = {name: how.get(name) for name in Option.__annotations__}
    metavar = how.get("metavar", _METAVARS.get(how.get("kind", "")))
    return _metadata(**{"names": [*names], **facts, "metavar": metavar, "flags": flags})


class Argument(TypedDict, total=False):
    """Metadata of an argument. A pair describes a further option by its name and its help."""

    ask: str  # the question for a person at a terminal who left the argument out
    asked: Mapping[str, bool]  # other fields to set after that question
    before: str  # a list field whose first item the text becomes
    file: tuple[str, str]  # an option that reads the text from a file
    more: tuple[str, str]  # an option that adds to a list


def argument(metavar: str, help: str, **how: Unpack[Argument]) -> dict[str, Any]:
    """Return the metadata of a positional argument, a text or a list of texts."""
    facts = {name: how.get(name) for name in Argument.__annotations__}
    return _metadata(argument=metavar, help=help, **facts)


def group(implied: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of an object whose fields are options.

    Any of these options also sets the implied fields.
    """
    return _metadata(group=dict(implied))


def command(
    summary: str,
    about: str = "",
    *,
    foreground: bool = False,
    file: tuple[str, ...] = (),
    examples: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the metadata of the command for a whole spec, for its model_config.

    A foreground run asks its questions in the terminal that follows it. file holds the names and
    the help of an option that reads the whole spec from a file with variables. examples are lines
    to type, shown in the help.
    """
    return _metadata(
        summary=summary, about=about, foreground=foreground, file=[*file], examples=[*examples]
    )


def _metadata(**facts: Any) -> dict[str, Any]:
    return {KEY: {name: value for name, value in facts.items() if value}}
