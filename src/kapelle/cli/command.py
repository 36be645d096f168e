"""A command: its values are read without pydantic, and what it cannot understand is explained.

Typer checks every parameter through a pydantic adapter, which costs more than all the rest of a
command; the few kinds of parameters used here need none of it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from kapelle.cli.options import Json
from kapelle.cli.values import not_empty
from kapelle.domain.errors import InvalidInput

_TOO_MANY = re.compile(r"Got unexpected extra argument\(s\) \((.*)\)", re.DOTALL)


@contextmanager
def knowing(context: Any) -> Iterator[None]:
    """Give what Typer's parser complains of the command it is about, which Typer forgets."""
    try:
        yield
    except typer.TyperException as error:
        if getattr(error, "ctx", context) is None:
            error.ctx = context  # type: ignore[attr-defined]
        raise


def usage_error(error: typer.TyperException) -> InvalidInput:
    """What Typer says about a wrong command line, as an error of ours."""
    context = getattr(error, "ctx", None)
    see = f"See `{context.command_path if context else 'kapelle'} --help`."
    message = " ".join(error.format_message().split())
    too_many = _TOO_MANY.fullmatch(message)
    option: str | None = getattr(error, "option_name", None)
    if too_many:
        quoted = "Put a text of several words into quotation marks."
        return InvalidInput(
            f"No further argument is expected: {too_many[1]}.", hint=f"{quoted} {see}"
        )
    if option is not None and hasattr(error, "possibilities"):
        return InvalidInput(_unknown(option, error.possibilities or ()), hint=see)
    if context is not None and option is not None:
        return _unlike_itself(context, option, message, see)
    if context is not None and getattr(error, "param_type", "") is None:
        return _missing(context, error, see)
    return InvalidInput(message, hint=see)


def _unknown(option: str, near: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(option, near, n=2, cutoff=0.7)
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    return f"No such option: {option}.{meant}"


def _unlike_itself(context: Any, option: str, message: str, see: str) -> InvalidInput:
    """An option without the value that it needs, or a switch with one."""
    known = [item for item in context.command.get_params(context) if option in item.opts]
    if not known or known[0].is_flag:
        return InvalidInput(message, hint=f"Write {option} alone. {see}")
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


_PLAIN = (str, int, Path, bool)


class PlainValue:
    """Turns what was typed into a text, a whole number or a path, or a list of them."""

    def __init__(self, kind: Any, least: float | None, most: float | None) -> None:
        self._kind, self._least, self._most = kind, least, most

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if several:
            return [self._one(part, param, ctx) for part in value]
        return self._one(value, param, ctx)

    def _one(self, value: Any, param: Any, ctx: Any) -> Any:
        if self._kind is Path:
            return Path(not_empty(str(value), _name(param)))
        return self._number(value, param) if self._kind is int else self._kind(value)

    def _number(self, value: Any, param: Any) -> int:
        try:
            number = int(value)
        except ValueError:
            number = None
        least, most = self._least, self._most
        if number is None or number < (least or 0) or (most is not None and number > most):
            some = f"{least or 0:,} or more" if most is None else f"from {least or 0:,} to {most:,}"
            raise InvalidInput(
                f"{_name(param)} cannot be {value!r}.", hint=f"Use a whole number, {some}."
            )
        return number


class LightCommand(TyperCommand):
    """A command whose parameters are plain wherever they can be."""

    def get_params(self, ctx: Any) -> Any:
        return [_lightened(param) for param in super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with knowing(ctx):
            return super().parse_args(ctx, args)


class LightGroup(TyperGroup):
    """A group of commands, as light as each of them."""

    def get_params(self, ctx: Any) -> Any:
        return [_lightened(param) for param in super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with knowing(ctx):
            return super().parse_args(ctx, args)


def command_group(about: str, without: Callable[[bool], None] | None = None) -> typer.Typer:
    """A group of commands; without is called, with whether JSON is wanted, if none is named."""
    made = typer.Typer(
        cls=LightGroup,
        help=about,
        invoke_without_command=without is not None,
        add_completion=False,
        rich_markup_mode=None,
    )
    if without is None:
        made.callback()(lambda: None)
        return made

    @made.callback()
    def alone(ctx: typer.Context, as_json: Json = False) -> None:
        if ctx.invoked_subcommand is None:
            without(as_json)
        elif as_json:
            raise InvalidInput(
                "--json belongs to the command it is for.",
                hint=f"Write `{ctx.command_path} {ctx.invoked_subcommand} … --json`.",
            )

    return made


def _name(param: Any) -> str:
    """How a parameter is called where it is typed."""
    return str(max(param.opts, key=len) if param.param_type_name == "option" else param.metavar)


def _lightened(param: Any) -> Any:
    """The parameter itself; one of any other kind keeps Typer's own coercion."""
    descriptor = getattr(param, "type_descriptor", None)
    kind = descriptor and _kind(descriptor.annotation)
    if descriptor and kind:
        info = descriptor.parameter_info
        plain = PlainValue(kind, info.min, info.max)
        param.get_runtime_param = lambda: plain
    return param


def _kind(annotation: Any) -> Any:
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    return annotation if annotation in _PLAIN else None
