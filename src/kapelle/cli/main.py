"""The entry point: parse, run one command, and turn whatever happens into an exit code.

Also `kapelle completion`, which has the shell ask this entry point.
"""

import os
import sys
from typing import Any

import typer
from typer.main import get_command

from kapelle.cli.command import CommandOutput, argument, usage_error
from kapelle.cli.commands import LazyGroup, PipeClosed
from kapelle.cli.output import (
    give_up,
    internal_error,
    lenient_streams,
    open_streams,
    say,
    show_error,
    system_error,
    wants_json,
)
from kapelle.domain.errors import InvalidInput, KapelleError, NotTrusted

INTERRUPTED = 130
# What a shell reports for a program that ended because its reader went away.
PIPE_CLOSED = 141

app = typer.Typer(
    cls=LazyGroup,
    # Its options write into the shell's own files; `kapelle completion` only prints.
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from kapelle import __version__

        sys.stdout.write(f"kapelle {__version__}\n")
        raise typer.Exit


_VERSION: Any = typer.Option(
    False, "--version", help="Print the version.", callback=_print_version, is_eager=True
)


@app.callback()
def kapelle(version: bool = _VERSION) -> None:
    """Kapelle conducts coding agents: background tasks that survive crashes and tell the truth."""


def main() -> None:
    """Run the command line and exit; never with a traceback."""
    open_streams()
    lenient_streams()
    is_command = sys.argv[1:] and not sys.argv[1].startswith("-")
    if is_command and "_KAPELLE_COMPLETE" not in os.environ:
        _tell_what_is_unusual()
    code = guarded(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = PIPE_CLOSED
    except OSError as error:
        code = _show(system_error(error), wants_json(sys.argv[1:]))
    if code == PIPE_CLOSED:
        give_up(sys.stdout)
    sys.exit(code)


def _tell_what_is_unusual() -> None:
    """Have connections tell on stderr that the daemon is slow or of another version."""
    from kapelle.client.http import DaemonConnection

    DaemonConnection.tell = say


def guarded(arguments: list[str], *, may_ask: bool = True) -> int:
    """Run one command and say what went wrong; its exit code."""
    as_json = wants_json(arguments)
    try:
        return _run(arguments)
    except NotTrusted as error:
        from kapelle.cli.trust import ask

        # Nothing was done yet, so the command begins once more.
        again = may_ask and not as_json and ask(error)
        if again:
            return guarded(arguments, may_ask=False)
        return _show(error, as_json)
    except KapelleError as error:
        return _show(error, as_json)
    except (KeyboardInterrupt, typer.Abort):
        say("Interrupted.")
        return INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        return PIPE_CLOSED
    except OSError as error:
        return _show(system_error(error), as_json)
    except Exception as error:
        return _show(internal_error(error), as_json)


def _show(error: KapelleError, as_json: bool) -> int:
    show_error(error, as_json=as_json)
    return error.exit_code


def _run(arguments: list[str]) -> int:
    command = get_command(app)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    if "_KAPELLE_COMPLETE" in os.environ:
        from typer._completion_classes import completion_init

        # The scripts that `kapelle completion` prints speak Typer's dialect, not click's.
        completion_init()
    try:
        code = command(arguments or ["--help"], prog_name="kapelle", standalone_mode=False)
    except typer.TyperException as error:
        raise usage_error(error) from None
    return code if isinstance(code, int) else 0


_SHELLS = {
    "bash": 'eval "$(kapelle completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(kapelle completion zsh)"   in ~/.zshrc, after compinit',
    "fish": "kapelle completion fish | source   in ~/.config/fish/config.fish",
}


def completion(
    shell: str | None = argument("bash|zsh|fish", "By default your shell."),
) -> CommandOutput:
    """Print the completion script of a shell."""
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in _SHELLS:
        raise InvalidInput(
            f"There is no completion for {name or 'an unknown shell'!r}.",
            hint="Use `kapelle completion bash`, zsh or fish.",
        )
    from typer._completion_shared import get_completion_script

    names = {"prog_name": "kapelle", "complete_var": "_KAPELLE_COMPLETE"}
    script = get_completion_script(**names, shell=name)
    yield {"shell": name, "script": script}
    yield script
    if sys.stdout.isatty():
        say(f"To have it in every shell, put this line into place:\n  {_SHELLS[name]}")
