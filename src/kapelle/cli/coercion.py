"""Plain texts, numbers and paths taken from the command line without importing pydantic.

Typer checks every parameter through a pydantic adapter, which costs more than all the rest of a
command; the few kinds of parameters used here need none of it.
"""

from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

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
        if self._kind is not int:
            return self._kind(value)
        try:
            number = int(value)
        except ValueError:
            raise typer.BadParameter(
                f"{value!r} is not a whole number.", ctx=ctx, param=param
            ) from None
        if self._least is not None and number < self._least:
            raise typer.BadParameter(f"It is at least {self._least}.", ctx=ctx, param=param)
        if self._most is not None and number > self._most:
            raise typer.BadParameter(f"It is at most {self._most}.", ctx=ctx, param=param)
        return number


class LightCommand(TyperCommand):
    """A command whose parameters are plain wherever they can be."""

    def get_params(self, ctx: Any) -> Any:
        return [_lightened(param) for param in super().get_params(ctx)]


class LightGroup(TyperGroup):
    """A group of commands, as light as each of them."""

    def get_params(self, ctx: Any) -> Any:
        return [_lightened(param) for param in super().get_params(ctx)]


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
