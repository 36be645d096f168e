"""The help page of a command: what it does, examples, arguments, options by group."""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

_NAME_WIDTH = 30
# The groups of options, in the order in which they stand on a page.
OPTIONS = "Options"
INPUT = "Input"
AGENT = "Agent"
WORKSPACE = "Workspace"
START = "Start"
LIMITS = "Limits"
CHECKS = "Checks"
DELIVERY = "Delivery"
OUTPUT = "Output"
_GROUPS = (OPTIONS, INPUT, AGENT, WORKSPACE, START, LIMITS, CHECKS, DELIVERY, OUTPUT)

HelpRows = list[tuple[str, str]]


def write_page(
    command: "click.Command",
    ctx: "click.Context",
    formatter: "click.HelpFormatter",
    examples: Sequence[str],
) -> None:
    """Write the help page of a command or of a group of commands."""
    formatter.write_text(inspect.cleandoc(command.help or ""))
    formatter.write_paragraph()
    command.format_usage(ctx, formatter)
    if examples:
        with formatter.section("Examples"):
            for example in examples:
                formatter.write(f"{' ' * formatter.current_indent}{example}\n")
    arguments: HelpRows = []
    options: dict[str, HelpRows] = {group: [] for group in _GROUPS}
    for param in command.get_params(ctx):
        row = param.get_help_record(ctx)
        if row is None:
            continue
        if param.param_type_name == "argument":
            arguments.append(row)
        else:
            # The option --help is click's own, which has no group.
            options[getattr(param, "group", OUTPUT)].append(row)
    described = [row for row in arguments if row[1]]
    sections = {"Arguments": described, "Commands": _commands(command, ctx), **options}
    _write_sections(formatter, sections)


def _commands(command: "click.Command", ctx: "click.Context") -> HelpRows:
    """Return the commands of a group with the first line of their help."""
    import click

    if not isinstance(command, click.Group):
        return []
    rows = []
    for name in command.list_commands(ctx):
        inner = command.get_command(ctx, name)
        if inner is not None and not inner.hidden:
            rows.append((name, first_line(inner)))
    return rows


def first_line(command: "click.Command") -> str:
    """Return the first line of a command's help."""
    lines = inspect.cleandoc(command.help or "").splitlines()
    return lines[0] if lines else ""


def _write_sections(formatter: "click.HelpFormatter", sections: dict[str, HelpRows]) -> None:
    """Write tables with a common width of their first column."""
    width = 0
    for rows in sections.values():
        short = [len(name) for name, _ in rows if len(name) <= _NAME_WIDTH]
        width = max([width, *short])
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                padded = [(name.ljust(width), text) for name, text in rows]
                formatter.write_dl(padded, col_max=width)
