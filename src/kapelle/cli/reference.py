"""Prints docs/cli.md from the commands themselves: `make docs` commits it, a test compares it."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from kapelle.cli.commands import COMMANDS, load
from kapelle.cli.main import app

_INTRODUCTION = """\
# The command line

Ids and data go to standard output, talk to standard error. Every command takes `--json`.
Exit codes: 0 done, 1 the work failed, 2 usage or error, 3 input needed, 130 interrupted.
Any unique prefix of an id will do.

`KAPELLE_HOME` chooses the home; with `KAPELLE_URL` and `KAPELLE_TOKEN` the command line talks to
a daemon over TCP instead of the private socket.

This page is made by `make docs` from the program's own help.
"""


def reference() -> str:
    parts = [_INTRODUCTION]
    for name in COMMANDS:
        parts += _sections(load(name), name, "##")
    return "\n".join(parts)


def _sections(command: Any, title: str, level: str) -> Iterator[str]:
    """A command's help, then that of the commands inside it."""
    yield f"{level} {title}\n\n```text\n{_help(command, f'kapelle {title}')}\n```\n"
    for inner in getattr(command, "commands", {}).values():
        yield from _sections(inner, f"{title} {inner.name}", f"{level}#")


def _help(command: Any, path: str) -> str:
    parent = get_command(app).context_class(get_command(app), info_name="")
    context = command.context_class(
        command, info_name=path, terminal_width=100, max_content_width=100,
        help_option_names=parent.command.context_settings["help_option_names"],
    )  # fmt: skip
    text: str = command.get_help(context)
    return "\n".join(line.rstrip() for line in text.splitlines())


if __name__ == "__main__":
    print(reference(), end="")
