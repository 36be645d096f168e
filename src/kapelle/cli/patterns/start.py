"""`kapelle start`."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from kapelle.cli.coercion import LightCommand
from kapelle.cli.config import current, root
from kapelle.cli.format import one_line, table
from kapelle.cli.options import Json
from kapelle.cli.output import document, say
from kapelle.cli.patterns.options import pattern_command
from kapelle.cli.patterns.schema_options import options_of, spec_from
from kapelle.cli.patterns.spec import Options, Spec, given_spec
from kapelle.cli.run_options import FollowToEnd, Words
from kapelle.cli.runs import start_run
from kapelle.cli.starting import is_collecting
from kapelle.cli.task_spec import absolute_directory
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import InvalidInput, NotFound

Pattern = dict[str, Any]

_DEFINITION = re.compile(r"^@(?:\w+\.)*pattern\(\s*([\"'])([\w-]{1,64})\1", re.MULTILINE)
_MOST_READ = 200_000


def _complete_pattern(incomplete: str) -> list[tuple[str, str]]:
    """Names for the shell; without a directory, so that a TAB runs no file of a repository."""
    try:
        known = Client(autostart=False).get("/patterns", timeout=2)
        found = {item["name"]: item["summary"] for item in known if item["origin"]}
        found = {**dict(_written(current())), **found}
    except Exception:
        # A completion must never disturb the line that is being typed.
        return []
    return [
        (name, one_line(summary, 60))
        for name, summary in sorted(found.items())
        if name.startswith(incomplete)
    ]


def _written(directory: Path) -> Iterator[tuple[str, str]]:
    """The names in the repository's files of patterns as they stand there, and their files."""
    top = root(directory)
    for parent in (directory, *directory.parents):
        place = parent / ".kapelle" / "patterns"
        if os.path.isdir(place) or parent == top:
            break
    for path in sorted(place.glob("*.py")):
        with suppress(OSError):
            found = _DEFINITION.finditer(_beginning(path))
            yield from ((match[2], path.name) for match in found)


def _beginning(path: Path) -> str:
    if not os.path.isfile(path):
        return ""  # a pipe would be waited for
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_READ)


# The options of a pattern are known only when its schema is, so they are taken as they come.
start = typer.Typer(add_completion=False, rich_markup_mode=None)


@start.command(
    "start",
    cls=LightCommand,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)
@pattern_command
def _start(
    ctx: typer.Context,
    words: Annotated[
        Words,
        typer.Argument(
            metavar="PATTERN [--KEY VALUE]",
            help="The pattern's name and what it takes.",
            autocompletion=_complete_pattern,
            show_default=False,
        ),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read what it takes from .json, .yaml or .toml."),
    ] = None,
    follow: FollowToEnd = False,
    as_json: Json = False,
    show_help: Annotated[
        bool,
        typer.Option("--help", "-h", help="Show this help, or that of the pattern before it."),
    ] = False,
) -> None:
    """Start a run of any pattern, your own too.

    Without a pattern it lists them. `kapelle start PATTERN --help` shows what one takes: its
    keys are options, those that are on or off stand alone, lists are repeatable, and objects are
    JSON texts.
    """
    if not words:
        _without_a_name(ctx, show_help, as_json)
        return
    client = Client()
    pattern = _named(_patterns(client, ctx.params["directory"]), words[0])
    if show_help:
        from kapelle.cli.patterns.help import pattern_help

        sys.stdout.writelines(f"{line}\n" for line in pattern_help(pattern))
        return
    start_run(pattern["name"], start_spec(ctx.params, pattern), follow=follow, as_json=as_json)


def _without_a_name(ctx: typer.Context, show_help: bool, as_json: bool) -> None:
    if show_help:
        sys.stdout.write(ctx.get_help() + "\n")
        return
    if is_collecting():
        raise InvalidInput(
            "The pattern's name is missing.", hint="`kapelle start` lists the patterns."
        )
    known = _patterns(Client(), ctx.params["directory"])
    if as_json:
        document(known)
        return
    rows = [
        [one_line(item["name"]), _origin(item["origin"]), one_line(item["summary"])]
        for item in known
    ]
    lines = table(["PATTERN", "FROM", "WHAT IT DOES"], rows)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
    say("`kapelle start PATTERN --help` shows what one takes.")


def _origin(origin: str) -> str:
    """Where a pattern comes from; a file below the current directory in short."""
    here = f"{current()}/"
    return one_line(origin.removeprefix(here))


def _patterns(client: Client, directory: Path | None) -> list[Pattern]:
    found: list[Pattern] = client.get("/patterns", {"directory": absolute_directory(directory)})
    return found


def _named(known: list[Pattern], name: str) -> Pattern:
    for pattern in known:
        if pattern["name"] == name:
            return pattern
    if name.startswith("-"):
        raise InvalidInput(
            f"{name} stands where the pattern's name should.",
            hint="Write `kapelle start PATTERN --key value`; `kapelle start` lists the patterns.",
        )
    import difflib

    names = [pattern["name"] for pattern in known]
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"There are {', '.join(names)}."
    raise NotFound(f"There is no pattern {name!r}.", hint=hint)


def start_spec(options: Options, pattern: Pattern) -> Spec:
    """What the pattern is asked for: the file, over it the shared options, over them its own."""
    known = options_of(pattern["spec_schema"])
    own = spec_from((options["words"] or [])[1:], known)
    read: Spec = {}
    if options["spec"] is not None:
        from kapelle.cli.patterns.spec_file import read_spec

        read = read_spec(options["spec"])
    spec = {**read, **given_spec(options), **own}
    spec.setdefault("directory", absolute_directory(None))
    missing = [item.flag for item in known.values() if item.required and item.key not in spec]
    if missing:
        name = pattern["name"]
        raise InvalidInput(
            f"{name} needs {' and '.join(missing)}.",
            hint=f"`kapelle start {name} --help` shows what it takes.",
        )
    return spec
