"""The lines that the views of a task, a run and a schedule have in common."""

import os
from collections.abc import Iterator
from typing import Any

from kapelle.cli.style import paint, terminal_width
from kapelle.cli.text import clean, one_line


def field(name: str, value: str) -> str:
    return f"  {paint(name.ljust(10), 'dim')} {value}".rstrip()


def workspace_fields(item: dict[str, Any]) -> Iterator[str]:
    """Where a task or a run works, and on which branch."""
    workspace = item["workspace"]
    removed = item.get("archived_at") and not os.path.isdir(workspace["path"])
    yield field("workspace", "removed" if removed else clean(workspace["path"]))
    if workspace["branch"]:
        onto = f" (from {one_line(workspace['base'])})" if workspace["base"] else ""
        merged = ", merged" if item["merged_at"] else ""
        yield field("branch", f"{one_line(workspace['branch'])}{onto}{merged}")


def command_lines(commands: list[tuple[str, str]]) -> Iterator[str]:
    """What may be typed next, and what each does."""
    yield ""
    width = max(len(command) for command, _ in commands)
    room = terminal_width()
    beside = room is None or width + max(len(purpose) for _, purpose in commands) + 4 <= room
    for command, purpose in commands:
        if beside:
            yield f"  {command.ljust(width)}  {paint(purpose, 'dim')}"
        else:
            yield f"  {command}"
            yield paint(f"      {purpose}", "dim")
