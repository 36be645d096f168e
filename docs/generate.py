"""Writes what the documents take from the code: `make docs` calls it, a test compares."""

import inspect
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kapelle import pages
from kapelle.cli.patterns.tables import tables
from kapelle.patterns.context import Context
from kapelle.patterns.results import Checked, Merged, RunResult, Scored, TaskResult

DOCS = Path(__file__).parent
_RESULTS = (TaskResult, Checked, Scored, Merged, RunResult)


def parts() -> dict[str, pages.Parts]:
    """The made parts of every page."""
    return {**tables(), **patterns_page()}


def patterns_page() -> dict[str, pages.Parts]:
    """Of docs/patterns.md: what a Context offers, and what its methods give back."""
    return {"patterns.md": {"methods": methods(), "results": results()}}


def methods() -> str:
    """Every method with its parameters and what it promises."""
    lines = []
    for name, member in vars(Context).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            lines.append(f"- **`ctx.{name}`**: {_text(member)}")
        elif inspect.isfunction(member):
            lines.append(f"- **`ctx.{name}{_signature(member)}`**: {_text(member)}")
    return "\n".join(lines)


def _signature(function: Any) -> str:
    shown: list[str] = []
    starred = False
    for item in inspect.signature(function).parameters.values():
        if item.name == "self":
            continue
        if item.kind is item.KEYWORD_ONLY and not starred:
            starred = True
            if not any(word.startswith("*") for word in shown):
                shown.append("*")
        shown.append(_parameter(item))
        starred = starred or item.kind is item.VAR_POSITIONAL
    returned = inspect.signature(function).return_annotation
    return f"({', '.join(shown)})" + ("" if returned is None else f" → {_type(returned)}")


def _parameter(item: inspect.Parameter) -> str:
    if item.default is not item.empty:
        return f"{item.name}={item.default!r}"
    if item.kind is item.VAR_POSITIONAL:
        return f"*{item.name}"
    return f"**{item.name}" if item.kind is item.VAR_KEYWORD else str(item.name)


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    # A type variable says nothing to whoever does not see the others.
    return re.sub(r"~\w+", "object", re.sub(r"\b(?:\w+\.)+", "", text))


def _text(member: Any) -> str:
    return " ".join((inspect.getdoc(member) or "").split())


def results() -> str:
    """What the methods give back, with every field."""
    lines = ["| result | what it is | fields |", "|---|---|---|"]
    for kind in _RESULTS:
        lines.append(f"| `{kind.__name__}` | {_text(kind)} | {', '.join(_fields(kind))} |")
    return "\n".join(lines)


def _fields(kind: type[BaseModel]) -> list[str]:
    own = [name for name, member in vars(kind).items() if isinstance(member, property)]
    return [f"`{name}`" for name in (*own, *kind.model_fields)]


if __name__ == "__main__":
    pages.write(DOCS, parts())
