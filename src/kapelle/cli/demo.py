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
    from kapelle.demo.place import Place
    from kapelle.demo.views import View

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
    from kapelle.demo import place as places
    from kapelle.demo.doors import own_name

    kapelle = own_name(os.environ.get("PATH"))
    playbook = playbook and _existing(playbook)
    place = places.make(directory)
    clean_environment = places.environment(place, os.environ)
    os.environ.clear()
    os.environ.update(clean_environment)
    view = _view(as_json)
    try:
        code = _play(place, view, playbook, kapelle, keep=not clean, as_json=as_json)
    except BaseException:
        if not clean:
            say(f"The files are kept; `rm -rf {shlex.quote(str(place.root))}` removes them.")
        raise
    finally:
        if clean:
            place.remove()
    raise typer.Exit(code)


def _existing(playbook: Path) -> Path:
    if not playbook.is_file():
        raise InvalidInput(f"The playbook {playbook} is not a file.")
    return playbook.absolute()


def _view(as_json: bool) -> "View":
    from kapelle.cli.style import colourful
    from kapelle.demo.views import Lines, Silence

    if as_json:
        return Silence()
    if not sys.stdout.isatty() or not colourful():
        return Lines()
    from kapelle.demo.live import LiveTable

    return LiveTable()


def _play(
    place: "Place", view: "View", playbook: Path | None, kapelle: str, *, keep: bool, as_json: bool
) -> int:
    from kapelle.demo import ending
    from kapelle.demo.curtain import nothing_left_running
    from kapelle.demo.story import perform

    view.say("Kapelle demo", "bold")
    view.say(OPENING)
    view.say()
    with nothing_left_running(place) as survivors:
        report = perform(place, view, playbook)
    report.survivors = survivors
    if as_json:
        document(ending.as_document(report, place, kept=keep))
    else:
        lines = [*ending.summary(report), "", *ending.verdict(report), ""]
        lines += [*ending.directions(report, place, kapelle), ""] if keep else []
        lines += ending.invitation(kapelle)
        sys.stdout.writelines(f"{line}\n" for line in lines)
    return WORK_FAILED if report.problems() else DONE
