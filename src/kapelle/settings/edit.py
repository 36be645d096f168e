"""Changing a config file, one setting at a time, without losing what a person wrote there."""

import tomllib
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.home import write_private
from kapelle.settings.load import Scope, annotation_of, read_toml, validate, value_of
from kapelle.settings.models import Settings


def set_value(path: Path, dotted_key: str, text: str, scope: Scope = "user") -> None:
    """Write one setting to a config file, keeping the rest of it as it is."""
    import tomlkit

    keys = dotted_key.split(".")
    value = value_of(annotation_of(keys, str(path)), text)
    table: Any = (document := tomlkit.parse(read_toml(path)[0]))
    while len(keys) > 1 and isinstance(table.get(keys[0]), dict):
        table = table[keys.pop(0)]
    while len(keys) > 1:
        value = {keys.pop(): value}
    if isinstance(table.get(keys[0]), dict | list):
        # A plain value in the place of a table would fall into the table before it.
        del table[keys[0]]
    table[keys[0]] = value
    _write(path, dotted_key, document, scope)


def reset_value(path: Path, dotted_key: str, scope: Scope = "user") -> None:
    """Remove one setting from a config file; one that is not in it is no error."""
    import tomlkit

    keys = dotted_key.split(".")
    annotation_of(keys, str(path))
    table: Any = (document := tomlkit.parse(read_toml(path)[0]))
    for key in keys[:-1]:
        table = table.get(key)
        if not isinstance(table, dict):
            return
    if keys[-1] in table:
        del table[keys[-1]]
        _write(path, dotted_key, document, scope)


def _write(path: Path, key: str, document: Any, scope: Scope) -> None:
    text = document.as_string()
    wanted = validate(document.unwrap(), str(path), scope)
    try:
        kept = Settings.model_validate(tomllib.loads(text)) == wanted
    except ValueError:
        kept = False
    if not kept:
        raise InvalidInput(f"{path} is laid out so that only you can change {key}; edit it.")
    write_private(path, text.encode())
