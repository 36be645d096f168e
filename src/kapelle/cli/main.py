"""The entry point: parse, run one command, and turn every error into an exit code.

Also `kapelle completion`: its scripts let the shell ask this entry point.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from kapelle.cli.commands import Program
from kapelle.cli.help_page import OUTPUT
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
from kapelle.cli.parser import CliOption, argument, command, reports
from kapelle.cli.result import Result
from kapelle.cli.usage_errors import translate
from kapelle.domain.errors import InvalidInput, KapelleError, NotTrusted

# The variable by which the scripts of click ask for completions.
COMPLETE_VARIABLE = "_KAPELLE_COMPLETE"
_SHELLS = {
    "bash": 'eval "$(kapelle completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(kapelle completion zsh)"   in ~/.zshrc, after compinit',
    "fish": "kapelle completion fish | source   in ~/.config/fish/config.fish",
}

INTERRUPTED = 130
# The exit code that a shell reports for a program whose reader went away.
PIPE_CLOSED = 141


def _print_version(ctx: click.Context, _param: click.Parameter, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        from kapelle import __version__

        sys.stdout.write(f"kapelle {__version__}\n")
        ctx.exit()


program = Program(
    "kapelle",
    help="Run coding agents in the background, with verified results that survive crashes.",
    params=[
        CliOption(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_print_version,
            help="Print the version.",
            group=OUTPUT,
        )
    ],
)


def main() -> None:
    """Run the command line and exit; never with a traceback."""
    open_streams()
    lenient_streams()
    is_command = sys.argv[1:] and not sys.argv[1].startswith("-")
    if is_command and COMPLETE_VARIABLE not in os.environ:
        _report_daemon_problems()
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


def _report_daemon_problems() -> None:
    """Let connections report on stderr that the daemon is slow or of another version."""
    from kapelle.client.http import DaemonConnection

    DaemonConnection.tell = say


def guarded(arguments: list[str], *, may_ask: bool = True) -> int:
    """Run one command, print its error if it fails, and return its exit code."""
    as_json = wants_json(arguments)
    try:
        return run_command(arguments)
    except NotTrusted as error:
        from kapelle.cli.trust import ask

        # The command has changed nothing yet, so it can run again.
        if may_ask and not as_json and ask(error):
            return guarded(arguments, may_ask=False)
        return _show(error, as_json)
    except KapelleError as error:
        return _show(error, as_json)
    except (KeyboardInterrupt, click.Abort):
        say("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except OSError as error:
        return _show(system_error(error), as_json)
    except Exception as error:
        return _show(internal_error(error), as_json)


def _show(error: KapelleError, as_json: bool) -> int:
    show_error(error, as_json=as_json)
    return error.exit_code


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code; raises KapelleError for a wrong command line."""
    if COMPLETE_VARIABLE in os.environ:
        return _print_completions()
    try:
        with program.make_context("kapelle", arguments or ["--help"]) as context:
            code: Any = program.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        raise translate(error) from None
    return code if isinstance(code, int) else 0


def _print_completions() -> int:
    """Print what the shell asks for in its variables; return an exit code."""
    from click.shell_completion import shell_complete

    instruction = os.environ[COMPLETE_VARIABLE]
    return shell_complete(program, {}, "kapelle", COMPLETE_VARIABLE, instruction)


@command("completion", 'eval "$(kapelle completion bash)"')
@argument(
    "shell", metavar="bash|zsh|fish", required=False, help="Name of the shell; by default yours."
)
@reports
def completion(shell: str | None) -> Result:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    shell_class = get_completion_class(name)
    if name not in _SHELLS or shell_class is None:
        raise InvalidInput(
            f"There is no completion for {name or 'an unknown shell'!r}.",
            hint="Use `kapelle completion bash`, zsh or fish.",
        )
    script = shell_class(program, {}, "kapelle", COMPLETE_VARIABLE).source()
    return Result({"shell": name, "script": script}, [script], _instructions(name))


def _instructions(name: str) -> Iterator[str]:
    if sys.stdout.isatty():
        yield f"To load it in every shell, add this line:\n  {_SHELLS[name]}"
