"""`kapelle help`, and the overview of all commands."""

from collections.abc import Collection, Iterator

import click

from kapelle.cli.commands import GROUPS, command_help
from kapelle.cli.parser import argument, command, flag, reports
from kapelle.cli.result import Result

_SUMMARY = "Run coding agents in the background, with verified results that survive crashes."
_USAGE = "Usage: kapelle COMMAND [OPTIONS]"
_MORE = "`kapelle help --all` lists all commands, `kapelle help COMMAND` explains one."


def write_overview(formatter: click.HelpFormatter, names: Collection[str]) -> None:
    """Write the commands of these names by group, each with the first line of its help."""
    formatter.write(f"{_SUMMARY}\n\n{_USAGE}\n")
    commands = command_help()
    width = max(len(name) for name in names)
    for group in GROUPS:
        rows = [(name, commands[name][1]) for name in names if commands[name][0] == group]
        formatter.write(f"\n{group}:\n")
        for name, text in rows:
            formatter.write(f"  {name.ljust(width)}  {text}\n")
    formatter.write(f"\n{_MORE}\n")


@command("help", "kapelle help merge", "kapelle help --all")
@argument("names", metavar="COMMAND", nargs=-1, help="Command to explain; by default an overview.")
@flag("--all", "show_all", help="All commands.")
@reports
def show_help(names: tuple[str, ...], show_all: bool) -> Result:
    """Show the help of a command, or all commands."""
    root = click.get_current_context().find_root()
    if names:
        text = _help_of(root, names)
        return Result({"command": " ".join(names), "help": text}, text.splitlines())
    commands = command_help()
    data = [
        {"name": name, "group": group, "help": help} for name, (group, help) in commands.items()
    ]
    if show_all:
        formatter = root.make_formatter()
        write_overview(formatter, list(commands))
        return Result(data, formatter.getvalue().splitlines())
    return Result(data, _overview(root))


def _overview(root: click.Context) -> Iterator[str]:
    yield from root.get_help().splitlines()


def _help_of(ctx: click.Context, names: tuple[str, ...]) -> str:
    """Return the help page of a command, which may be inside groups."""
    command: click.Command = ctx.command
    for name in names:
        inner = command.get_command(ctx, name) if isinstance(command, click.Group) else None
        if inner is None:
            known = command.list_commands(ctx) if isinstance(command, click.Group) else []
            raise click.NoSuchCommand(name, possibilities=known, ctx=ctx)
        ctx = click.Context(inner, parent=ctx, info_name=name)
        command = inner
    return command.get_help(ctx)
