"""Whether a number is to become smaller or larger, as several options may say it."""

from typing import Annotated, Any

import typer

from kapelle.cli.values import choice
from kapelle.domain.errors import InvalidInput

Minimize = Annotated[bool, typer.Option("--minimize", help="The smaller the number, the better.")]
Maximize = Annotated[bool, typer.Option("--maximize", help="The larger the number, the better.")]
Direction = Annotated[
    str | None,
    typer.Option(metavar="minimize|maximize", help="The same as --minimize, --maximize."),
]


def direction(options: dict[str, Any]) -> str | None:
    """minimize, maximize, or None when no option says so; two that disagree are refused."""
    named = choice("--direction", options.get("direction"), ("minimize", "maximize"))
    said = [word for word in ("minimize", "maximize") if options[word] or named == word]
    if len(said) > 1:
        raise InvalidInput(
            "A number cannot become both smaller and larger.",
            hint="Leave --minimize or --maximize out.",
        )
    return said[0] if said else None
