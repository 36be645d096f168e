"""A command line that cannot be understood: what is wrong with it, and what to type instead."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

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
