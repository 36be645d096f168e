"""Options that several commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on showing what happens.")]
