"""Types of values on the command line, whose errors name the option and what to type."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kapelle.cli import values
from kapelle.domain.errors import InvalidInput

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def _name_of(param: click.Parameter | None) -> str:
    """Return the long name of an option, or the metavar of an argument."""
    if param is None:
        return "The value"
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.human_readable_name


class Number(click.ParamType[int]):
    """A whole number, which may have a minimum and a maximum."""

    name = "number"

    def __init__(self, minimum: int | None = None, maximum: int | None = None) -> None:
        self._minimum = minimum
        self._maximum = maximum
        # The limits as the help names them, such as `1 to 100`.
        self.limits_text = ""
        if maximum is not None:
            self.limits_text = f"{minimum or 0:,} to {maximum:,}"
        elif minimum is not None:
            self.limits_text = f"{minimum:,} or more"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        with suppress(ValueError):
            number = int(value)
            is_large_enough = self._minimum is None or number >= self._minimum
            is_small_enough = self._maximum is None or number <= self._maximum
            if is_large_enough and is_small_enough:
                return number
        limits = f": {self.limits_text}" if self.limits_text else ""
        raise InvalidInput(
            f"{_name_of(param)} cannot be {value!r}.", hint=f"Use a whole number{limits}."
        )


class FileName(click.ParamType[Path]):
    """The path of a file or directory, which need not exist."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(values.not_empty(str(value), _name_of(param)))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        # The shell completes the name itself.
        return [CompletionItem(incomplete, type="file")]


FILE = FileName()
