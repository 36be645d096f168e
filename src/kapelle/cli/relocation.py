"""`kapelle relocate`, and the remark that a repository was moved."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kapelle.cli.config import current, root
from kapelle.cli.output import say
from kapelle.cli.parser import argument, command, reports
from kapelle.cli.result import Result
from kapelle.cli.text import one_line
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Forbidden, NotFound
from kapelle.domain.text import format_count

if TYPE_CHECKING:
    from kapelle.client.records import MovedRepositoryJson, RelocationJson

_PATH = "/relocations"


@command("relocate", "kapelle relocate ~/old/place", "kapelle relocate ~/old/place ~/new/place")
@argument("old", metavar="OLD", help="Place of the repository before the move.")
@argument("new", metavar="NEW", required=False, help="Place now; by default this repository.")
@reports
def relocate(old: str, new: str | None) -> Result:
    """Move the work of a repository that was moved.

    Tasks, runs, schedules, templates, learnings, projects, worktrees and trust follow it. Trust
    follows only if what the repository may execute is unchanged.
    """
    place = Path(new) if new else root(current()) or current()
    # The daemon knows resolved paths; a link may lead from the old place to the new one.
    above, name = os.path.split(os.path.abspath(old))
    body = {"old": os.path.join(os.path.realpath(above), name), "new": os.path.abspath(place)}
    answer = DaemonConnection().post(_PATH, body)
    return Result(answer, remarks=_remarks(answer))


def _remarks(answer: "RelocationJson") -> Iterator[str]:
    for problem in answer["problems"]:
        yield f"A worktree could not be linked: {one_line(problem)}"
    if answer["trust"] == "changed":
        yield "Not trusted any more, for what it may execute has changed: kapelle trust --show"
    counts = {
        "task": answer["tasks"],
        "run": answer["runs"],
        "schedule": answer["schedules"],
        "template": answer["templates"],
        "learning": answer["learnings"],
        "project": answer["projects"],
        "worktree": answer["worktrees"],
    }
    parts = [format_count(count, noun) for noun, count in counts.items() if count]
    if answer["trust"] == "trusted":
        parts.append("trust")
    yield f"Moved to {one_line(answer['new'])}: {', '.join(parts) or 'nothing'}."


def say_if_moved(client: DaemonConnection) -> None:
    """Say where this repository was, if it has no work and was evidently moved."""
    hint = moved_hint(client)
    if hint:
        say(hint)


def moved_hint(client: DaemonConnection) -> str | None:
    """Return where the work of this repository is, if it was moved; None if it was not."""
    if root(current()) is None:
        return None
    try:
        places: list[MovedRepositoryJson] = client.get(_PATH, {"directory": str(current())})
    # An older daemon does not know the route, and to an agent it is forbidden.
    except (NotFound, Forbidden):
        return None
    if not places:
        return None
    commands = " or ".join(f"`kapelle relocate {shlex.quote(one['old'])}`" for one in places)
    names = " or ".join(one_line(one["old"]) for one in places)
    return f"This repository was at {names}: {commands} takes its work along."
