"""`kapelle completion`."""

import os
import sys
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script

from kapelle.cli.options import Json
from kapelle.cli.output import document, say
from kapelle.domain.errors import InvalidInput

SHELLS = ("bash", "zsh", "fish")
_USE = {
    "bash": 'eval "$(kapelle completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(kapelle completion zsh)"   in ~/.zshrc, after compinit',
    "fish": "kapelle completion fish | source   in ~/.config/fish/config.fish",
}


def completion(
    shell: Annotated[
        str | None,
        typer.Argument(metavar="bash|zsh|fish", help="By default your shell.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the completion script of a shell."""
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise InvalidInput(
            f"There is no completion for {name or 'an unknown shell'!r}.",
            hint="Use `kapelle completion bash`, zsh or fish.",
        )
    script = get_completion_script(
        prog_name="kapelle", complete_var="_KAPELLE_COMPLETE", shell=name
    )
    if as_json:
        document({"shell": name, "script": script})
        return
    sys.stdout.write(script + "\n")
    if sys.stdout.isatty():
        say(f"To have it in every shell, put this line into place:\n  {_USE[name]}")
