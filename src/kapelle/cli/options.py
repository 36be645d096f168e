"""Options that several commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on showing what happens.")]
Budget = Annotated[
    str | None,
    typer.Option(metavar="USD", help="Stop when all attempts together have cost so much."),
]
MaxTurns = Annotated[
    int | None,
    typer.Option(min=1, max=1_000_000, metavar="NUMBER", help="Stop an attempt after so many."),
]
FollowToEnd = Annotated[
    bool,
    typer.Option(
        "--follow", "-f", help="Watch it to the end; exit 0 done, 1 failed, 3 input needed."
    ),
]
