"""The parts that the views of tasks, runs, schedules and learnings have in common."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kapelle.cli.figures import format_size
from kapelle.cli.layout import STATUS_STYLE, field_line, paint
from kapelle.cli.states import describe_delivery, describe_marks, describe_status
from kapelle.cli.text import clean, one_line, reason_lines, shorten_ids_on_terminal
from kapelle.home import disk_use

if TYPE_CHECKING:
    from kapelle.client.records import WorkJson


def heading_lines(title: str, id: str, status: str, reason: str | None) -> Iterator[str]:
    """Yield the title, the id and the status with its reason; the status may be painted."""
    yield paint(one_line(title), "bold")
    yield field_line("id", format_id(id))
    if not reason:
        yield field_line("status", status)
        return
    first, *output = reason_lines(reason)
    if first:
        status = f"{status}: {first}"
    yield field_line("status", status)
    for line in output:
        yield f"    {line}"


def work_heading_lines(item: "WorkJson", reason: str | None) -> Iterator[str]:
    """Yield the title, the id and the status of a task or a run, with its marks."""
    status = paint(describe_status(item), STATUS_STYLE.get(item["status"]))
    if item.get("archived_at"):
        status += ", archived"
    for mark in describe_marks(item):
        status += f", {mark}"
    yield from heading_lines(item["title"], item["id"], status, reason)


def format_id(id: str) -> str:
    """Return an id as people type it, and behind it the whole id if that is longer."""
    short_id = shorten_ids_on_terminal(id)
    if short_id == id:
        return id
    return f"{short_id} {paint(f'({id})', 'dim')}"


def format_agent(agent: str | None, model: str | None, fallback: Sequence[str] | None = ()) -> str:
    """Return the agent with its model, and the agents that replace it."""
    text = agent or "the default"
    if model:
        text += f" with {model}"
    if fallback:
        text += f", then {', '.join(fallback)}"
    return one_line(text)


def repository_path(item: "WorkJson") -> str:
    """Return the repository of a task or a run; its directory if that is outside of one."""
    return str(item.get("repository") or item.get("directory") or "")


def repository_name(item: "WorkJson") -> str:
    return one_line(os.path.basename(repository_path(item)), 60)


def workspace_lines(item: "WorkJson") -> Iterator[str]:
    """Yield the workspace of a task or a run, its branch, and where its work is delivered to."""
    yield field_line("workspace", _describe_workspace(item))
    workspace = item["workspace"]
    if workspace["branch"]:
        branch = one_line(workspace["branch"])
        if workspace["base"]:
            branch += f" (from {one_line(workspace['base'])})"
        if item.get("merge_undone_at"):
            branch += ", merge undone"
        elif item["merged_at"]:
            branch += ", merged"
        yield field_line("branch", branch)
    delivery = item.get("delivery")
    if delivery:
        text = describe_delivery(delivery, item["status"])
        if delivery["status"] == "failed":
            text = paint(text, "yellow")
        yield field_line("deliver", text)


def _describe_workspace(item: "WorkJson") -> str:
    """Return the path of the workspace, with the room that a worktree takes on the disk."""
    workspace = item["workspace"]
    path = workspace["path"]
    is_there = path is not None and os.path.isdir(path)
    if (item.get("archived_at") or item["merged_at"]) and not is_there:
        return "removed"
    if path is None:
        return "a worktree, which is made when it starts"
    if workspace["branch"] and is_there:
        size, file_count = disk_use(Path(path))
        return f"{clean(path)} ({format_size(size)} in {file_count:,} files)"
    return clean(path)
