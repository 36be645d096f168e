"""The classes that commands are made of: click's, with Kapelle's help pages.

Errors about a wrong command line are translated in usage_errors.py.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar

import click

from kapelle.cli.help_page import OPTIONS, OUTPUT, write_page
from kapelle.cli.result import Result
from kapelle.cli.types import Number

Decorated = TypeVar("Decorated", bound=Callable[..., Any] | click.Command)
Decorator = Callable[[Decorated], Decorated]

# The end of the help of a group with a default command.
LISTS_BY_DEFAULT = (
    "\n\nWithout a command it lists them, with the options of `list`, such as --json."
)

_MAX_WIDTH = 100
_HELP_NAMES = ("-h", "--help")


class CliOption(click.Option):
    """An option that knows its group on the help page.

    The help ends with notes in brackets. default_text is the note about the default, in place of
    the default itself; notes are further ones.
    """

    def __init__(
        self,
        *args: Any,
        group: str = OPTIONS,
        default_text: str | None = None,
        notes: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.group = group
        self._default_text = default_text
        self._notes = tuple(notes)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if self.hidden:
            return None
        notes = [*self._notes]
        if isinstance(self.type, Number) and self.type.limits_text:
            notes.append(self.type.limits_text)
        if self.multiple:
            notes.append("repeatable")
        default = self._format_default()
        if default:
            notes.append(f"default: {default}")
        text = self.help or ""
        if notes:
            text = f"{text} [{'; '.join(notes)}]".lstrip()
        return self.get_help_spec(ctx), text

    def _format_default(self) -> str:
        if self._default_text is not None:
            return self._default_text
        default = self.to_info_dict()["default"]
        if self.secondary_opts:
            names = self.opts if default else self.secondary_opts
            return names[0].lstrip("-")
        if default in (None, False, ()):
            return ""
        return str(default)


class CliArgument(click.Argument):
    """An argument whose metavar is marked by brackets if it is optional."""

    def make_metavar(self, ctx: click.Context) -> str:
        name = self.metavar or self.name.upper()
        if not self.required:
            name = f"[{name}]"
        if self.nargs == -1:
            name += "..."
        return name

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.metavar or self.name.upper(), self.help or ""


class TooManyArguments(click.UsageError):
    """More arguments were typed than the command takes.

    words are all words that were typed behind the command's name.
    """

    def __init__(self, extra: Sequence[str], words: Sequence[str], ctx: click.Context) -> None:
        super().__init__(f"No further argument is expected: {' '.join(extra)}.", ctx)
        self.extra = tuple(extra)
        self.words = tuple(words)


class MissingCommand(click.UsageError):
    """A group was called without one of its commands."""

    def __init__(self, ctx: click.Context) -> None:
        super().__init__("The command is missing.", ctx)


class CliCommand(click.Command):
    """A command with examples and grouped options on its help page."""

    # Checked in parse_args, where it is known what was typed.
    allow_extra_args = True

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)
        self.context_settings = {**_context_settings(), **self.context_settings}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = tuple(args)
        rest = _parse(super().parse_args, ctx, args)
        if rest and not ctx.resilient_parsing:
            raise TooManyArguments(rest, words, ctx)
        return rest

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_page(self, ctx, formatter, self.examples)


class CliGroup(click.Group):
    """A group of commands; without a command it calls its default command, if it has one."""

    command_class = CliCommand
    group_class = type

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        default_command: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        # Without a command, parse_args adds the default one or raises MissingCommand.
        self.no_args_is_help = False
        self.examples = tuple(examples)
        self.default_command = default_command
        self.context_settings = {**_context_settings(), **self.context_settings}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and self._is_without_command(args):
            if self.default_command:
                args = [self.default_command, *args]
            elif not self.invoke_without_command and not args:
                raise MissingCommand(ctx)
        return _parse(super().parse_args, ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of their definition."""
        return list(self.commands)

    def _is_without_command(self, args: Sequence[str]) -> bool:
        """Return whether the first word is an option of the default command, or missing."""
        if not args:
            return True
        return args[0].startswith("-") and args[0] not in _HELP_NAMES

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_page(self, ctx, formatter, self.examples)


def _context_settings() -> dict[str, Any]:
    return {"help_option_names": list(_HELP_NAMES), "max_content_width": _MAX_WIDTH}


def _parse(
    parse: Callable[[click.Context, list[str]], list[str]], ctx: click.Context, args: list[str]
) -> list[str]:
    """Parse the arguments; an error knows the command that they were typed for."""
    try:
        return parse(ctx, args)
    except click.UsageError as error:
        if error.ctx is None:
            error.ctx = ctx
        raise


def command(
    name: str, *examples: str, **settings: Any
) -> Callable[[Callable[..., Any]], CliCommand]:
    """Make a command of a function, whose docstring is the help, with examples for its help."""
    return click.command(name, cls=CliCommand, examples=examples, **settings)


def option(*names: str, group: str = OPTIONS, **settings: Any) -> Decorator[Any]:
    """Add an option to a command, in a group of the help page."""
    return click.option(*names, cls=CliOption, group=group, **settings)


def flag(*names: str, help: str, group: str = OPTIONS) -> Decorator[Any]:
    """Add an option without a value, which is off by default."""
    return option(*names, is_flag=True, help=help, group=group)


def argument(name: str, **settings: Any) -> Decorator[Any]:
    """Add an argument to a command."""
    return click.argument(name, cls=CliArgument, **settings)


def complete_choice(choices: Iterable[str]) -> Any:
    """Return a function that completes one of a few words."""

    def complete_word(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.startswith(incomplete)]

    return complete_word


def json_option() -> CliOption:
    """Return the option --json as an object."""
    return CliOption(["as_json", "--json"], is_flag=True, help="Print JSON instead of text.",
                  group=OUTPUT)  # fmt: skip


json_flag = flag("--json", "as_json", help="Print JSON instead of text.", group=OUTPUT)
json_lines_flag = flag("--json", "as_json", help="Print one JSON object per line.", group=OUTPUT)
follow_flag = flag("--follow", "-f", help="Show new events as they come.", group=OUTPUT)

_FOLLOW_HELP = (
    "Watch the work to its end (exit code 0 done, 1 failed, 3 input needed), or print its id and "
    "return."
)


def follow_option() -> CliOption:
    """Return the option of all commands that start work: follow it, or leave it running."""
    return CliOption(
        ["follow", "--follow/--detach", "-f"], default=False, help=_FOLLOW_HELP, group=OUTPUT
    )


follow_to_end = option("--follow/--detach", "-f", "follow", default=False, help=_FOLLOW_HELP,
                       group=OUTPUT)  # fmt: skip


def reports(function: Callable[..., Result]) -> Callable[..., int]:
    """Add --json to a function that returns a Result, and print the result in that form.

    Stands below the other decorators, so that --json is the last option.
    """

    @json_flag
    @wraps(function)
    def print_result(*, as_json: bool, **values: Any) -> int:
        return function(**values).print(as_json=as_json)

    result: Callable[..., int] = print_result
    return result
