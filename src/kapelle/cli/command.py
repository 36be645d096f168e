"""A command: options that several share, values read without pydantic, mistakes explained.

Typer checks every parameter through a pydantic adapter, which costs more than all the rest of a
command; the few kinds of parameters used here need none of it.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from kapelle.cli.output import document, write
from kapelle.cli.values import not_empty
from kapelle.domain.errors import InvalidInput, KapelleError


def flag(help: str, *names: str, default: bool = False) -> Any:
    """An option that is on or off, with no --no- beside it unless it is named."""
    return typer.Option(default, *names, help=help)


def option(metavar: str | None, help: str, *names: str, default: Any = None, **facts: Any) -> Any:
    """An option with a value."""
    return typer.Option(default, *names, metavar=metavar, help=help, **facts)


def argument(metavar: str, help: str, *, default: Any = ..., **facts: Any) -> Any:
    """An argument, which shows no default: it says in words what is meant without it."""
    return typer.Argument(default, metavar=metavar, help=help, show_default=False, **facts)


JsonFlag = Annotated[bool, flag("Print JSON instead of text.", "--json")]
JsonLines = Annotated[bool, flag("Print one JSON object per line.", "--json")]
Follow = Annotated[bool, flag("Go on showing what happens.", "--follow", "-f")]
BudgetOption = Annotated[str | None, option("USD", "The most that all attempts may cost together.")]
MaxTurns = Annotated[
    int | None, option("NUMBER", "The most turns of one attempt.", min=1, max=1_000_000)
]
_TO_END = "Watch it to the end, exit 0 done, 1 failed, 3 input needed; or print its id and go."
# The one habit of all commands that begin something: it goes on in the background, at a keyboard
# as in a script, unless it is followed.
FollowToEnd = Annotated[bool, flag(_TO_END, "--follow/--detach", "-f")]

Function = TypeVar("Function", bound=Callable[..., Any])
# Options of other tools, and what to write here.
_INSTEAD = {
    "--pipeline": "Several --step make a pipeline: leave --pipeline out.",
    "--foreground": "Write --follow, or -f.",
    "--background": "Work goes on in the background unless it is followed: leave --background out.",
}
_TOO_MANY = re.compile(r"Got unexpected extra argument\(s\) \((.*)\)", re.DOTALL)


def usage_error(error: typer.TyperException) -> InvalidInput:
    """What Typer says about a wrong command line, as an error of ours."""
    context = getattr(error, "ctx", None)
    see = f"See `{context.command_path if context else 'kapelle'} --help`."
    message = " ".join(error.format_message().split())
    too_many = _TOO_MANY.fullmatch(message)
    option: str | None = getattr(error, "option_name", None)
    if too_many and (runs := _meant_for_runs(context, getattr(error, "typed", ()))):
        return runs
    if too_many:
        quoted = "Put a text of several words into quotation marks."
        return InvalidInput(
            f"No further argument is expected: {too_many[1]}.", hint=f"{quoted} {see}"
        )
    if option is not None and hasattr(error, "possibilities"):
        near = suggestion(option, error.possibilities or (), 0.7)
        if option in _INSTEAD:
            return InvalidInput(f"No such option: {option}.", hint=f"{_INSTEAD[option]} {see}")
        return InvalidInput(f"No such option: {option}.{near}", hint=see)
    if context is not None and option is not None:
        return _without_value(context, option, message, see)
    if context is not None and getattr(error, "param_type", "") is None:
        return _missing(context, error, see)
    return InvalidInput(message, hint=see)


def _meant_for_runs(context: Any, typed: Sequence[str]) -> InvalidInput | None:
    """Return the error for `kapelle loop status ID`, as other tools spell it."""
    from kapelle.cli.spec_options import OF_RUNS, built_in

    if context is not None:
        name = context.info_name
    else:
        name = ""
    if name not in built_in() or len(typed) < 2 or typed[0] not in OF_RUNS:
        return None
    problem = f"`kapelle {name}` has no command {typed[0]!r}."
    return InvalidInput(problem, hint=f"Write `kapelle runs {' '.join(typed)}`.")


def suggestion(typed: str, known: Iterable[str], cutoff: float, shown: str = "{}") -> str:
    """A question after the names that are like what was typed; nothing if there are none."""
    import difflib

    close = difflib.get_close_matches(typed, list(known), n=2, cutoff=cutoff)
    if close:
        return f" Did you mean {' or '.join(map(shown.format, close))}?"
    return ""


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is like one that is known."""
    import difflib

    near = difflib.get_close_matches(name, list(known), 1, 0.6)
    if near:
        return f"; did you mean {near[0]}?"
    return ""


def _without_value(context: Any, option: str, message: str, see: str) -> InvalidInput:
    """An option without the value that it needs, or a switch with one."""
    known = [item for item in context.command.get_params(context) if option in item.opts]
    if not known or known[0].is_flag:
        off = "".join(f", or {name}" for item in known for name in item.secondary_opts[:1])
        return InvalidInput(message, hint=f"Write {option} alone{off}. {see}")
    value = known[0].metavar or "VALUE"
    return InvalidInput(f"{option} needs a value.", hint=f"Write {option} {value}. {see}")


def _missing(context: Any, error: Any, see: str) -> InvalidInput:
    arguments = [
        item.metavar or item.name.upper()
        for item in context.command.get_params(context)
        if item.param_type_name == "argument"
    ]
    name = error.param.metavar or error.param.name.upper()
    command = " ".join([context.command_path, *arguments])
    return InvalidInput(f"{name.removesuffix('...')} is missing.", hint=f"Write `{command}`. {see}")


class _Light:
    """Has parameters that are plain wherever they can be, and errors that know their command."""

    def get_params(self, ctx: Any) -> Any:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if descriptor := getattr(param, "type_descriptor", None):
                kind = (get_args(descriptor.annotation) or [descriptor.annotation])[0]
                if kind in (str, int, Path, bool):
                    param.get_runtime_param = _PlainValue(kind, descriptor.parameter_info)
            if param.param_type_name == "argument":
                # Typer adds braces, dots and a type to what the name alone says well enough.
                name = param.metavar or param.name.upper()
                if param.required or name.startswith("["):
                    marked = name
                else:
                    marked = f"[{name}]"
                marked += "..." if param.nargs == -1 and not name.endswith("...") else ""
                param.get_usage_pieces = lambda ctx, marked=marked: [marked]
                param.display_type_rich = lambda ctx: ""
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = [*args]
        try:
            parsed: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except typer.TyperException as error:
            error.typed = typed  # type: ignore[attr-defined]
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise
        return parsed


class LightCommand(_Light, TyperCommand):
    """A command that is read without pydantic."""


# The command of a group that is called without one.
_WITHOUT_COMMAND = ("list", "show")


class LightGroup(_Light, TyperGroup):
    """A group of commands that is read without pydantic; without a command it lists or shows."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        unnamed = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        default = next((name for name in _WITHOUT_COMMAND if name in self.commands), None)
        if unnamed and default and not ctx.resilient_parsing:
            args = [default, *args]
        return super().parse_args(ctx, args)


class Group(typer.Typer):
    """A group that reads its commands without pydantic, and gives --json to those that report."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        register = super().command(name, cls=LightCommand, **settings)

        def kept(function: Function) -> Function:
            register(_completed(function))
            return function

        return kept


CommandOutput = Iterator[Any]
"""What a command found, which is all that --json prints, then lines about it for people."""


class CommandExit(NamedTuple):
    """What a command found, and the exit code that tells about it, or what went wrong besides."""

    found: Any
    code: int | KapelleError | None


def _completed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command as Typer takes it; one that reports has the option that all of them have."""
    parameters = [_parameter(one) for one in inspect.signature(function).parameters.values()]
    reports = function.__annotations__.get("return") == CommandOutput
    if reports:
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(_parameter(inspect.Parameter("as_json", kind, annotation=JsonFlag)))

    @wraps(function)
    def command(**params: Any) -> None:
        if not reports:
            function(**params)
            return
        as_json = params.pop("as_json")
        report = function(**params)
        found = next(report)
        value, code = found if isinstance(found, CommandExit) else (found, 0)
        document(value) if as_json else write(report)
        if isinstance(code, KapelleError):
            raise code
        if code:
            raise typer.Exit(code)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _parameter(given: inspect.Parameter) -> inspect.Parameter:
    """A parameter whose default is its option or argument, or that has it in its annotation.

    What is on or off is named after the parameter, and what may be None need not be given.
    """
    kind = given.annotation
    info = given.default
    default = given.default
    if get_origin(kind) is Annotated:
        kind, info = get_args(kind)
    if default is info or default is given.empty:
        default = info.default
    info = copy(info)
    if default is ... and NoneType in get_args(kind):
        info.default = None
    else:
        info.default = default
    if kind is bool and not info.param_decls:
        info.param_decls = (f"--{given.name.replace('_', '-')}",)
    return given.replace(annotation=kind, default=info, kind=given.KEYWORD_ONLY)


def command_of(function: Callable[..., Any], name: str, **settings: Any) -> Any:
    """A command by itself, made of a function with Typer's annotations."""
    single = Group(add_completion=False, rich_markup_mode=None)
    single.command(name, **settings)(function)
    return get_command(single)


LISTS = "\n\nWithout a command it lists them, with the options of `list`, such as --json."


def command_group(about: str, without: Callable[[], None] | None = None) -> Group:
    """A group of commands; without is called if none is named."""
    made = Group(
        cls=LightGroup,
        help=about,
        invoke_without_command=without is not None,
        add_completion=False,
        rich_markup_mode=None,
    )

    @made.callback()
    def alone(ctx: typer.Context) -> None:
        if without is not None and ctx.invoked_subcommand is None:
            without()

    return made


class _PlainValue:
    """Turns what was typed into a text, a whole number or a path, or a list of them."""

    def __init__(self, kind: Any, limits: Any) -> None:
        self._kind = kind
        self._least = limits.min
        self._most = limits.max

    def __call__(self) -> "_PlainValue":
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        is_option = param.param_type_name == "option"
        if is_option:
            name = max(param.opts, key=len)
        else:
            name = param.metavar
        if several:
            return [self._one(part, name) for part in value]
        return self._one(value, name)

    def _one(self, value: Any, name: str) -> Any:
        if self._kind is Path:
            return Path(not_empty(str(value), name))
        if self._kind is int:
            return self._number(value, name)
        return self._kind(value)

    def _number(self, value: Any, name: str) -> int:
        least = self._least
        most = self._most
        with suppress(ValueError):
            number = int(value)
            if (least is None or number >= least) and (most is None or number <= most):
                return number
        if least is None:
            some = ""
        else:
            some = f", {least:,} or more"
        if most is not None:
            some = f", from {least or 0:,} to {most:,}"
        raise InvalidInput(f"{name} cannot be {value!r}.", hint=f"Use a whole number{some}.")
