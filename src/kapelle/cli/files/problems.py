"""What the specification of a pipeline says against a file, in sentences and with lines."""

import difflib
from collections.abc import Collection, Sequence
from typing import Any

from kapelle.cli.files.tree import Node, Problem, kind
from kapelle.cli.files.variables import SECTION

Place = Sequence[str | int]

# Keys of a file by what they are in the specification.
ALIASES = {"timeout_s": ("timeout",), "task_timeout_s": ("timeout", "task_timeout")}
_ONE_OF = {"steps": "step", "checks": "check"}
_WORDS: dict[str, str] = {
    "missing": "is missing",
    "list_type": "must be a list, not {given}",
    "dict_type": "must be a mapping, not {given}",
    "model_type": "must be text or a mapping, not {given}",
    "string_type": "must be text, not {given}",
    "string_too_short": "is empty",
    "string_pattern_mismatch": "holds a character that is not allowed there",
    "int_parsing": "must be a whole number, not {given}",
    "int_type": "must be a whole number, not {given}",
    "float_parsing": "must be a number, not {given}",
    "float_type": "must be a number, not {given}",
    "greater_than": "must be more than {gt:g}, not {given}",
    "greater_than_equal": "must be at least {ge:g}, not {given}",
    "less_than_equal": "must be at most {le:g}, not {given}",
    "enum": "must be {expected}, not {given}",
    "literal_error": "must be {expected}, not {given}",
    "too_short": "must have at least {min_length} items, not {actual_length}",
    "too_long": "may have at most {max_length} items, not {actual_length}",
}


def problem(error: Any, tree: Node, overridden: Collection[str]) -> Problem:
    """One error of pydantic as a problem of the file, or of an option that overrode it."""
    place: Place = [part for part in error["loc"] if part != "[key]"]
    line = _located(tree, place).line
    name = _name(place)
    if error["type"] == "extra_forbidden":
        return Problem(line, *_unknown(place))
    if error["type"] in _WORDS:
        given = {**error.get("ctx", {}), "given": shown(error["input"])}
        words = f"{name} {_WORDS[error['type']].format_map(given)}"
    else:
        said = error["msg"].removeprefix("Value error, ")
        words = f"{name}: {said[:1].lower()}{said[1:]}"
    if place and place[0] in overridden:
        return Problem(1, f"{words} (it was given on the command line)")
    return Problem(line, words, _hint(error["type"], place))


def _located(tree: Node, place: Place) -> Node:
    """What stands at a place, or as near to it as there is something."""
    here = tree
    for part in place:
        names = (part, *ALIASES.get(str(part), ()))
        inner = next(filter(None, (here.below(name) for name in names)), None)
        if inner is None:
            break
        here = inner
    return here


def _name(place: Place) -> str:
    """A place in words, such as step 2: check 1: command."""
    words: list[str] = []
    for part in place:
        if isinstance(part, int):
            words[-1] = f"{_ONE_OF.get(words[-1], words[-1])} {part + 1}"
        else:
            words.append(part if part.isprintable() else ascii(part))
    return ": ".join(words) or "the pipeline"


def _unknown(place: Place) -> tuple[str, str]:
    *around, key = place
    known = _known(around)
    near = difflib.get_close_matches(str(key).lower(), known, 1, 0.6)
    words = f"there is no key {key!r}" + (f"; did you mean {near[0]}?" if near else "")
    prefix = f"{_name(around)}: " if around else ""
    return prefix + words, f"Known are {', '.join(known)}."


def _known(place: Place) -> list[str]:
    from kapelle.domain.specs import CheckSpec
    from kapelle.patterns.pipeline import PipelineSpec, StepSpec

    if not place:
        return sorted({*PipelineSpec.model_fields, SECTION, "timeout"})
    spec = CheckSpec if "checks" in place else StepSpec
    return sorted({*spec.model_fields, "timeout"})


def _hint(error: str, place: Place) -> str:
    if list(place) == ["steps"] and error in {"missing", "too_short", "too_long", "list_type"}:
        return "A pipeline has 2 to 20 steps, each a prompt or a mapping with one, after a dash."
    if error == "list_type":
        return f"Write {place[-1]}: [the first, the second], also for one."
    if error in {"string_too_short", "missing"}:
        return "Write something there."
    return ""


def shown(value: Any) -> str:
    """A value in a sentence: short, and on one line."""
    if not isinstance(value, str):
        return kind(value)
    cut = value if len(value) <= 60 else value[:59] + "…"
    return repr(cut) if cut.isprintable() else ascii(cut)
