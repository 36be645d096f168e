"""`kapelle demo`."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kapelle.cli.options import Json
from kapelle.cli.outcome import DONE, WORK_FAILED
from kapelle.cli.output import document, say
from kapelle.domain.errors import InvalidInput

if TYPE_CHECKING:
    from kapelle.demo.sandbox import Sandbox
    from kapelle.demo.view import View

OPENING = """\
The agents here are rehearsals: real processes that play scripted parts. No account is needed,
and no model is asked. Everything else is real: daemon, worktrees, checks, kill -9, merges.
With an agent of yours it is `kapelle init` once, and then `kapelle run "…"`."""


def demo(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="PATH", help="Where; by default a temporary directory."),
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Remove its files at the end.")] = False,
    playbook: Annotated[
        Path | None,
        typer.Option(help="Other parts for the agents to play."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Watch a small ensemble of agents work on a sample repository.

    Exits with 0 only if everything came out as it should and the sample's tests pass.
    """
    from kapelle.demo.sandbox import environment, make, own_name

    kapelle = own_name(os.environ.get("PATH"))
    playbook = playbook and _existing(playbook)
    sandbox = make(directory)
    clean_environment = environment(sandbox, os.environ)
    os.environ.clear()
    os.environ.update(clean_environment)
    view = _view(as_json)
    try:
        code = _run(sandbox, view, playbook, kapelle, keep=not clean, as_json=as_json)
    except BaseException:
        if not clean:
            say(f"The files are kept; `rm -rf {shlex.quote(str(sandbox.root))}` removes them.")
        raise
    finally:
        if clean:
            sandbox.remove()
    raise typer.Exit(code)


def _existing(playbook: Path) -> Path:
    if not playbook.is_file():
        raise InvalidInput(f"The playbook {playbook} is not a file.")
    return playbook.absolute()


def _view(as_json: bool) -> "View":
    from kapelle.cli.format import colourful
    from kapelle.demo.view import Lines, LiveTable, View

    if as_json:
        return View()
    return LiveTable() if sys.stdout.isatty() and colourful() else Lines()


def _run(
    sandbox: "Sandbox",
    view: "View",
    playbook: Path | None,
    kapelle: str,
    *,
    keep: bool,
    as_json: bool,
) -> int:
    from kapelle.demo.report import as_document, lines
    from kapelle.demo.sandbox import nothing_left_running
    from kapelle.demo.steps import run_demo

    view.say("Kapelle demo", "bold")
    view.say(OPENING)
    view.say()
    with nothing_left_running(sandbox) as survivors:
        report = run_demo(sandbox, view, playbook)
    report.survivors = survivors
    if as_json:
        document(as_document(report, sandbox, kept=keep))
    else:
        shown = lines(report, sandbox, kapelle, kept=keep)
        sys.stdout.writelines(f"{line}\n" for line in shown)
    return WORK_FAILED if report.problems() else DONE
