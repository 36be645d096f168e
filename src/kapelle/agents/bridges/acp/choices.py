"""What an ACP session lets the client choose, its mode and its model, however it says so."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from kapelle.agents.reading import list_of, mapping_of, text_of

# The modes in which the well-known agents ask for nothing, the letters and digits of their names.
_AUTONOMOUS = (
    "bypasspermissions",
    "agentfullaccess",
    "fullaccess",
    "yolo",
    "autopilot",
    "allowall",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing to choose: how to, what from, and what it is now."""

    method: str
    key: str  # of the parameter that takes the value
    params: dict[str, Any]
    options: dict[str, str]  # ids to names
    current: str

    def pick(self, wanted: str) -> str | None:
        """The id that a person means by its id, its name, or its id without a [variant]."""
        for option, name in self.options.items():
            if wanted == option or wanted.lower() == name.lower():
                return option
        variants = [option for option in self.options if option.partition("[")[0] == wanted]
        same = wanted + self.current[len(self.current.partition("[")[0]) :]
        return same if same in variants else next(iter(variants), None)

    def most_autonomous(self) -> str | None:
        plain = {_plain(option): option for option in self.options}
        return next((plain[name] for name in _AUTONOMOUS if name in plain), None)


def choice(session: dict[str, Any], what: Literal["mode", "model"]) -> Choice | None:
    """How a session's mode or model is chosen; None when the agent offers no choice."""
    plural, title = f"{what}s", what.title()
    listed = mapping_of(session.get(plural))
    available = [mapping_of(item) for item in list_of(listed.get(f"available{title}s"))]
    id_key = "id" if what == "mode" else "modelId"
    if available:
        options = {text_of(item.get(id_key)): text_of(item.get("name")) for item in available}
        current = text_of(listed.get(f"current{title}Id"))
        return Choice(f"session/set_{what}", f"{what}Id", {}, options, current)
    for option in map(mapping_of, list_of(session.get("configOptions"))):
        if what in {option.get("category"), option.get("id")} and option.get("type") == "select":
            options = _values(list_of(option.get("options")))
            params = {"configId": option.get("id")}
            current = text_of(option.get("currentValue"))
            return Choice("session/set_config_option", "value", params, options, current)
    return None


def _values(options: list[Any]) -> dict[str, str]:
    """The options of a select, which may be in groups."""
    values: dict[str, str] = {}
    for option in map(mapping_of, options):
        values |= _values(list_of(option.get("options")))
        if value := text_of(option.get("value")):
            values[value] = text_of(option.get("name"))
    return values


def _plain(option: str) -> str:
    """An id reduced to its letters; some are addresses that end in #name."""
    return re.sub(r"[^a-z]", "", option.rpartition("#")[2].lower())
