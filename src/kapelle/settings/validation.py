"""Values as settings, and sentences about those that cannot be."""

import difflib
import tomllib
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from kapelle.domain.errors import InvalidInput, problem
from kapelle.settings.models import REPOSITORY_KEYS, Settings
from kapelle.settings.secrecy import shown

Scope = Literal["user", "repository"]
Tree = Mapping[str, Any]


def validate(values: Tree, where: str, scope: Scope = "user") -> Settings:
    """The settings these values make; raises InvalidInput naming where they stand."""
    foreign = (set(values) & set(Settings.model_fields)) - REPOSITORY_KEYS
    if scope == "repository" and foreign:
        key = min(foreign)
        raise InvalidInput(f"{where}: {key} cannot be set here, only in your own config.toml.")
    if scope == "repository":
        _refuse_addresses(values, where)
    try:
        return Settings.model_validate(values, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    keys = [str(part) for part in first["loc"] if part != "[key]"]
    if first["type"] == "extra_forbidden":
        raise _unknown(where, keys)
    dotted, given = ".".join(keys), first["input"]
    value = f" (it is {shown(dotted, given)!r})" if isinstance(given, str | int | float) else ""
    raise InvalidInput(f"{where}: {problem(first)}{value}.")


def _refuse_addresses(values: Tree, where: str) -> None:
    """Your keys go to the address of an agent, so a repository may not choose it."""
    agents = values.get("agents")
    for name, agent in agents.items() if isinstance(agents, Mapping) else ():
        if isinstance(agent, Mapping) and "base_url" in agent:
            key = f"agents.{name}.base_url"
            raise InvalidInput(f"{where}: {key} cannot be set here, only in your own config.toml.")


def _unknown(where: str, keys: list[str]) -> InvalidInput:
    known = children_of(annotation_of(keys[:-1], where))
    prefix = "".join(f"{key}." for key in keys[:-1])
    problem = f"{where}: there is no setting {prefix}{keys[-1]}"
    near = difflib.get_close_matches(keys[-1].lower(), known, 1, 0.5)
    if near:
        return InvalidInput(f"{problem}; did you mean {prefix}{near[0]}?")
    return InvalidInput(f"{problem}; known are {', '.join(sorted(known))}.")


def children_of(annotation: Any) -> dict[str, Any]:
    fields = getattr(annotation, "model_fields", {})
    return {field.alias or name: field.annotation for name, field in fields.items()}


def annotation_of(keys: list[str], where: str) -> Any:
    """The type of the setting of this dotted key."""
    annotation: Any = Settings
    for depth, key in enumerate(keys):
        if get_origin(annotation) in {dict, list} and key:
            annotation = get_args(annotation)[-1]
        elif key in (children := children_of(annotation)):
            annotation = children[key]
        elif children:
            raise _unknown(where, keys[: depth + 1])
        else:
            raise InvalidInput(f"{where}: {'.'.join(keys[:depth])} has no {key!r} inside it.")
    return annotation


def value_of(annotation: Any, text: str) -> Any:
    """Text as a TOML value if it is one that the setting may take, else as a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    value = parsed.get("value")
    return text if len(parsed) > 1 or (_is_text(annotation) and type(value) is not str) else value


def _is_text(annotation: Any) -> bool:
    origin = get_origin(annotation)
    inside = () if origin in {list, dict} else get_args(annotation)
    return annotation is str or origin is Literal or any(_is_text(part) for part in inside)
