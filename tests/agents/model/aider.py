"""Aider declares no tools: it reads edits out of the text, in the form that its prompt asks for."""

from collections.abc import Callable

Edit = Callable[[str, str], str]


def edit_block(path: str, content: str) -> str:
    """A new file in its form "diff"."""
    return listing(path, f"<<<<<<< SEARCH\n=======\n{_ended(content)}>>>>>>> REPLACE\n")


def listing(path: str, content: str) -> str:
    """A whole file in its form "whole"."""
    return f"\n{path}\n```\n{_ended(content)}```\n"


def form_asked_for(text: str) -> Edit | None:
    """How a request of aider wants its edits, or None for a request of another agent."""
    if "SEARCH/REPLACE" in text:
        return edit_block
    return listing if "*file listing*" in text else None


def _ended(content: str) -> str:
    return content if content.endswith("\n") else content + "\n"
