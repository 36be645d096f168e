"""The entry point: parse, run one command, and turn whatever happens into an exit code."""

import os
import sys
from typing import Annotated

import typer
from typer.main import get_command

from kapelle.cli.commands import LazyGroup, PipeClosed
from kapelle.cli.errors import internal_error, show_error, usage_error, wants_json
from kapelle.cli.output import lenient_streams, say
from kapelle.domain.errors import KapelleError

INTERRUPTED = 130
# What a shell reports for a program that ended because its reader went away.
PIPE_CLOSED = 141

app = typer.Typer(
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kapelle import __version__

        sys.stdout.write(f"kapelle {__version__}\n")
        raise typer.Exit


@app.callback()
def kapelle(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Kapelle conducts coding agents: background tasks that survive crashes and tell the truth."""


def main() -> None:
    """Run the command line and exit; never with a traceback."""
    lenient_streams()
    code = _guarded(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = PIPE_CLOSED
    if code == PIPE_CLOSED:
        # Otherwise the interpreter complains when it flushes the closed pipe at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _guarded(arguments: list[str]) -> int:
    as_json = wants_json(arguments)
    try:
        return _run(arguments)
    except KapelleError as error:
        show_error(error, as_json=as_json)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        say("Interrupted.")
        return INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        return PIPE_CLOSED
    except Exception as error:
        failure = internal_error(error)
        show_error(failure, as_json=as_json)
        return failure.exit_code


def _run(arguments: list[str]) -> int:
    command = get_command(app)
    try:
        code = command(arguments or ["--help"], prog_name="kapelle", standalone_mode=False)
    except typer.TyperException as error:
        raise usage_error(error) from None
    return code if isinstance(code, int) else 0
