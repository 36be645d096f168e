"""`kapelle start`, which starts a run of any pattern."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kapelle.cli import help_page, parser
from kapelle.cli.config import current
from kapelle.cli.ids import complete
from kapelle.cli.pages import columns
from kapelle.cli.parser import CliArgument, CliCommand, CliOption
from kapelle.cli.result import Result
from kapelle.cli.schema import built_in_patterns, schemas
from kapelle.cli.spec_options import options_of, params_of
from kapelle.cli.spec_values import absolute_directory
from kapelle.cli.text import one_line
from kapelle.cli.usage_errors import find_similar, suggest
from kapelle.cli.values import refuse
from kapelle.cli.work_commands import WorkStarter
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput, NotFound
from kapelle.domain.options import KEY

if TYPE_CHECKING:
    from kapelle.client.records import PatternJson


_HELP = """\
Start a run of any pattern, your own too.

Without a pattern it lists them. `kapelle start PATTERN --help` shows the options of one. The fields
of a pattern of your own are options: booleans stand alone, lists are repeatable, and objects are
JSON texts."""


def build_pattern_command(name: str) -> CliCommand:
    """Build the command of a built-in pattern."""
    return WorkStarter.built_in(name).build_command()


def _start(words: Sequence[str], show_help: bool, **params: Any) -> int:
    ctx = click.get_current_context()
    if words:
        starter, arguments = _find_starter({"words": words, "show_help": show_help, **params})
        command = starter.build_command()
        with command.make_context(f"kapelle start {starter.name}", arguments) as context:
            code: int = command.invoke(context)
        return code
    if show_help:
        sys.stdout.write(f"{ctx.get_help()}\n")
        return 0
    return _list_patterns(params["directory"]).print(as_json=params["as_json"])


def _params() -> list[click.Parameter]:
    fields = options_of(schemas()["pattern"])
    words = CliArgument(
        ["words"],
        nargs=-1,
        required=False,
        metavar="PATTERN [OPTIONS]",
        type=click.UNPROCESSED,
        help="Name of the pattern, and its options.",
        shell_complete=complete("patterns"),
    )
    help_option = CliOption(
        ["show_help", "--help", "-h"],
        is_flag=True,
        help="Show this help, or that of the pattern before it.",
        group=help_page.OUTPUT,
    )
    directory = params_of(field for field in fields if field.key == "directory")
    return [words, *directory, parser.json_option(), help_option]


start = CliCommand(
    "start",
    params=_params(),
    callback=_start,
    help=_HELP,
    examples=["kapelle start", 'kapelle start loop "fix the tests" --until "make test"'],
    add_help_option=False,
    # Options behind the name of a pattern are for the command of that pattern.
    context_settings={"ignore_unknown_options": True},
)


def find_starter(name: str, arguments: Sequence[str]) -> tuple[WorkStarter, list[str]]:
    """Return the work that a command starts, and the arguments of the command that starts it."""
    if name != "start":
        return WorkStarter.built_in(name), list(arguments)
    params = start.make_context("kapelle start", list(arguments)).params
    no_name = "The pattern's name is missing."
    refuse((not params["words"], no_name, "`kapelle start` lists the patterns."))
    return _find_starter(params)


def _find_starter(params: dict[str, Any]) -> tuple[WorkStarter, list[str]]:
    """Return the work of the pattern that was named, and the words for its command."""
    name, *words = params["words"]
    directory = params["directory"]
    if directory:
        words += ["-C", str(directory)]
    if params["as_json"]:
        words.append("--json")
    if params["show_help"]:
        words.append("--help")
    if name in built_in_patterns():
        return WorkStarter.built_in(name), words
    pattern = _find_pattern(name, absolute_directory(directory))
    schema = pattern["spec_schema"]
    facts = {
        **schema.get(KEY, {}),
        "summary": one_line(pattern["summary"]),
        "about": f"From {one_line(pattern['origin'])}",
    }
    return WorkStarter(name, {**schema, KEY: facts}, is_built_in=False), words


def _list_patterns(directory: Path | None) -> Result:
    patterns = DaemonConnection().get("/patterns", {"directory": absolute_directory(directory)})
    here = f"{current()}/"

    def row(pattern: "PatternJson") -> list[str]:
        summary = pattern["summary"]
        if not pattern["trusted"]:
            summary = f"(not trusted) {summary}"
        return [pattern["name"], pattern["origin"].removeprefix(here), summary]

    lines = columns("PATTERN,FROM,WHAT IT DOES", row)(patterns)
    return Result(patterns, lines, ["`kapelle start PATTERN --help` shows its options."])


def _find_pattern(name: str, directory: str) -> "PatternJson":
    """Return the pattern of a name; raises NotTrusted or NotFound."""
    patterns: list[PatternJson] = DaemonConnection().get("/patterns", {"directory": directory})
    for pattern in patterns:
        if pattern["name"] == name:
            if not pattern["trusted"]:
                from kapelle.settings.trust import refusal

                text = f"{pattern['origin']} is not trusted, so {name!r} cannot be loaded."
                raise refusal(text, directory)
            return pattern
    if name.startswith("-"):
        raise InvalidInput(
            f"{name} stands in the place of the pattern's name.",
            hint="Write `kapelle start PATTERN --option`; `kapelle start` lists the patterns.",
        )
    names = [pattern["name"] for pattern in patterns]
    similar = find_similar(name, names, cutoff=0.5)
    hint = suggest(similar) or f"There are {', '.join(names)}."
    raise NotFound(f"There is no pattern {name!r}.", hint=hint)
