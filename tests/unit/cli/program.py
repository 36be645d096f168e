"""Commands of the program by their words, for tests."""

import click

from kapelle.cli.commands import load


def find_command(path: str) -> click.Command:
    """Return a command by its words, such as `runs list`."""
    first, *inner = path.split()
    command = load(first)
    for name in inner:
        assert isinstance(command, click.Group), path
        command = command.commands[name]
    return command


def find_options(path: str) -> list[click.Option]:
    """Return the options of a command."""
    return [param for param in find_command(path).params if isinstance(param, click.Option)]
