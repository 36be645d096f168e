"""What an attempt may ask for, however deep in a specification it is."""

from typing import Any

import pytest

from kapelle.domain.errors import Forbidden
from kapelle.engine.children import require_modest


@pytest.mark.parametrize(
    "options",
    [
        {"deliver": "pr"},
        {"deliver": "merge"},
        {"deliver": {"mode": "pr"}},
        {"base": "main"},
        {"workspace": "in_place"},
        {"env": {"PATH": "/tmp"}},
        {"shell": {"variables": {"PATH": "/tmp"}}},
        {"mcp": {"m": {"command": ["m"]}}},
        {"checks": ["ci"]},
        {"until": ["ci"]},
        {"checks": [{"name": "x", "kind": "ci"}]},
        {"items": [{"prompt": "x", "options": {"verify": ["ci"]}}]},
    ],
)
def test_what_is_inside_is_refused_as_well(options: dict[str, Any]) -> None:
    item = {"prompt": "x", "pattern": "workflow", "options": options}
    for spec in ({"items": [item]}, {"items": [{"prompt": "x"}], "options": options}):
        with pytest.raises(Forbidden):
            require_modest(spec)


def test_itself_it_is_merged_and_words_are_words() -> None:
    spec = {"prompt": "ci", "title": "ci", "tags": ["ci"], "deliver": "merge", "base": "main"}
    require_modest(spec)
    require_modest({"items": [{"prompt": "ci", "checks": ["make ci"], "options": {"rounds": 2}}]})
    for more in ({"deliver": "pr"}, {"checks": [{"kind": "ci"}]}, {"env": {"A": "b"}}):
        with pytest.raises(Forbidden):
            require_modest({"prompt": "x", **more})
