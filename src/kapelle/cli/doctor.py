"""`kapelle doctor`."""

import sys
from collections.abc import Iterator
from dataclasses import asdict

import typer

from kapelle.cli.examinations import EXAMINATIONS
from kapelle.cli.finding import Finding
from kapelle.cli.options import Json
from kapelle.cli.outcome import WORK_FAILED
from kapelle.cli.output import document, say
from kapelle.cli.style import paint
from kapelle.cli.text import one_line
from kapelle.home import Home

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "broken": ("✗", "red")}


def doctor(as_json: Json = False) -> None:
    """Look for anything that keeps Kapelle from working.

    It changes nothing and starts no daemon. Exits with 1 when something is broken.
    """
    findings = list(_examine(Home.default()))
    broken = sum(finding.state == "broken" for finding in findings)
    if as_json:
        document({"ok": not broken, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            mark, style = _MARKS[finding.state]
            hint = f". {paint(one_line(finding.hint), 'dim')}" if finding.hint else ""
            sys.stdout.write(
                f"{paint(mark, style)} {finding.name}: {one_line(finding.text).rstrip('.')}{hint}\n"
            )
        sys.stdout.flush()
        say("Something is broken; see ✗ above." if broken else "Kapelle can work here.")
    if broken:
        raise typer.Exit(WORK_FAILED)


def _examine(home: Home) -> Iterator[Finding]:
    for examination in EXAMINATIONS:
        try:
            yield from examination(home)
        except Exception as error:
            # One examination that fails must not hide what the others find.
            yield Finding(examination.__name__, "warning", f"could not be examined: {error}")
