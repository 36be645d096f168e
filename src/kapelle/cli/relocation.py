"""`kapelle relocate`, and the remark that a repository was moved."""

import os
import shlex
from pathlib import Path
from typing import Any

from kapelle.cli.command import CommandOutput, argument
from kapelle.cli.config import current, root
from kapelle.cli.format import one_line
from kapelle.cli.output import say
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Forbidden, NotFound
from kapelle.domain.text import format_count

_PATH = "/relocations"
_COUNTED = ("task", "run", "schedule", "template", "learning", "project")


def relocate(
    old: str = argument("OLD", "Its place before the move."),
    new: str | None = argument("[NEW]", "Its place now; by default this repository."),
) -> CommandOutput:
    """Take the work of a repository along after it was moved.

    Tasks, runs, schedules, templates, learnings, projects, worktrees and trust follow it. Trust
    follows only if what the repository may execute is unchanged.
    """
    if new:
        place = Path(new)
    else:
        place = root(current()) or current()
    # The daemon knows resolved paths; a link may lead from the old place to the new one.
    above, name = os.path.split(os.path.abspath(old))
    body = {"old": os.path.join(os.path.realpath(above), name), "new": os.path.abspath(place)}
    yield (moved := DaemonConnection().post(_PATH, body))
    for problem in moved["problems"]:
        say(f"A worktree could not be linked: {one_line(problem)}")
    if moved["trust"] == "changed":
        say("Not trusted any more, for what it may execute has changed: kapelle trust --show")
    parts = [format_count(moved[f"{noun}s"], noun) for noun in _COUNTED if moved[f"{noun}s"]]
    parts += [format_count(moved["worktrees"], "worktree")] if moved["worktrees"] else []
    parts += ["trust"] if moved["trust"] == "trusted" else []
    say(f"Moved to {one_line(moved['new'])}: {', '.join(parts) or 'nothing'}.")


def say_if_moved(client: DaemonConnection) -> None:
    """Say where this repository was, if it has no work and was evidently moved."""
    if hint := moved_hint(client):
        say(hint)


def moved_hint(client: DaemonConnection) -> str | None:
    """Return where the work of this repository is, if it was moved; None if it was not."""
    if root(current()) is None:
        return None
    try:
        found: list[dict[str, Any]] = client.get(_PATH, {"directory": str(current())})
    # An older daemon does not know the route, and to an agent it is forbidden.
    except (NotFound, Forbidden):
        return None
    if not found:
        return None
    commands = " or ".join(f"`kapelle relocate {shlex.quote(one['old'])}`" for one in found)
    places = " or ".join(one_line(one["old"]) for one in found)
    return f"This repository was at {places}: {commands} takes its work along."
