"""Plain texts, numbers and paths taken from the command line without importing pydantic.

Typer checks every parameter through a pydantic adapter, which costs more than all the rest of a
command; the few kinds of parameters used here need none of it.
"""

from pathlib import Path
from typing import Any, get_args, get_origin

from typer.core import TyperCommand, TyperGroup

from kapelle.cli.misuse import knowing
from kapelle.cli.values import not_empty
from kapelle.domain.errors import InvalidInput

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
