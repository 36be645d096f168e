"""docs/python.md names every method, and no other."""

import inspect
import re
from pathlib import Path

import kapelle
from kapelle.client.client import Learnings, Locks, Notes
from kapelle.client.work import Runs, Schedules, Tasks

PAGE = Path(__file__).parents[3] / "docs" / "python.md"
PARTS: dict[str, type] = {
    "client.": kapelle.Client,
    "client.tasks.": Tasks,
    "client.runs.": Runs,
    "client.schedules.": Schedules,
    "client.notes.": Notes,
    "client.locks.": Locks,
    "client.learnings.": Learnings,
}


def test_the_page_names_every_method_with_its_parameters() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("## Every method") :]
    named = dict(re.findall(r"`(client\.[\w.]+)\(([^`]*)\)`", table))
    methods = {
        f"{prefix}{name}": method
        for prefix, kind in PARTS.items()
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
    assert set(named) == set(methods)
    for name, method in methods.items():
        assert named[name] == _parameters(method), name


def _parameters(method: object) -> str:
    assert callable(method)
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    words = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.name != "idempotency_key":
            words.append(stars.get(parameter.kind.name, "") + parameter.name)
    return ", ".join(words)
