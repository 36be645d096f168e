"""`kapelle demo`."""

import os
import shlex
from pathlib import Path

from kapelle.cli.output import document, say, write
from kapelle.cli.parser import command, flag, json_flag, option
from kapelle.cli.states import DONE, WORK_FAILED
from kapelle.cli.types import FILE
from kapelle.domain.errors import InvalidInput

OPENING = """\
The agents here are rehearsals: real processes that play scripted parts. No account is needed,
and no model is asked. Everything else is real: daemon, worktrees, checks, kill -9, merges.
With an agent of yours it is `kapelle init` once, and then `kapelle run "…"`."""


@command("demo", "kapelle demo", "kapelle demo --keep")
@option(
    "--dir",
    "directory",
    type=FILE,
    metavar="PATH",
    help="Directory of the demo; by default a temporary one.",
)
@flag("--clean", help="Remove its files at the end.")
@flag("--keep", help="Leave its daemon running, with the page to look at.")
@option("--playbook", type=FILE, metavar="FILE", help="Playbook for the agents.")
@json_flag
def demo(
    directory: Path | None, clean: bool, keep: bool, playbook: Path | None, as_json: bool
) -> int:
    """Watch scripted agents work on a sample repository.

    Exits with 0 only if every step has the expected outcome and the sample's tests pass.
    """
    from kapelle.cli.demo_view import DemoView, result_lines
    from kapelle.demo.report import as_document
    from kapelle.demo.sandbox import environment, make, nothing_left_running, own_name
    from kapelle.demo.sandbox import kapelle as run_kapelle
    from kapelle.demo.steps import run_demo

    kapelle = own_name(os.environ.get("PATH"))
    if keep and clean:
        raise InvalidInput("Choose one: --keep leaves it running, --clean removes it.")
    if playbook is not None and not playbook.is_file():
        raise InvalidInput(f"The playbook {playbook} is not a file.")
    sandbox = make(directory)
    clean_environment = environment(sandbox, os.environ)
    os.environ.clear()
    os.environ.update(clean_environment)
    view = DemoView(quiet=as_json)
    try:
        view.say("Kapelle demo", "bold")
        view.say(OPENING)
        view.say()
        with nothing_left_running(sandbox, say, keep=keep) as not_ended:
            report = run_demo(sandbox, view, playbook)
            # The code in it is for one browser, so it is asked for at the very end.
            if keep:
                page = run_kapelle("open", "--print").stdout.strip()
            else:
                page = None
        report.not_ended = not_ended
        if as_json:
            document(as_document(report, sandbox, is_kept=not clean) | {"page": page})
        else:
            write(result_lines(report, sandbox, kapelle, is_kept=not clean, page=page))
    except BaseException:
        if not clean:
            say(f"The files are kept; `rm -rf {shlex.quote(str(sandbox.root))}` removes them.")
        raise
    finally:
        if clean:
            sandbox.remove()
    return WORK_FAILED if report.problems() else DONE
