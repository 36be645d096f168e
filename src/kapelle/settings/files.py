"""Files with settings: what they hold as TOML, and whether they are still what they were."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.home import read_small

Stamp = tuple[int, int, int, int]


def stamp(path: Path) -> Stamp | None:
    """What changes with the content of a file; None if there is none. A time of modification can
    be put back, the one of change cannot."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a file and what it says; both empty when it is not there."""
    try:
        text = read_small(path).decode().replace("\r\n", "\n")
        return text, tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return "", {}
    except tomllib.TOMLDecodeError as error:
        lines = text.rstrip("\n").split("\n")
        end = f"at line {len(lines)}, column {len(lines[-1]) + 1}"
        problem = str(error).replace("at end of document", end)
        raise InvalidInput(f"{path} is not valid TOML: {problem}.") from None
    except (OSError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from None


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no table, by its dotted key; names_in takes that apart again."""
    for name, value in values.items():
        key = f'"{name}"' if "." in name else name
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def names_in(dotted_key: str) -> list[str]:
    """The names that a dotted key is made of; one in quotes may have dots itself."""
    names = re.split(r"""\.(?=(?:[^"]*"[^"]*")*[^"]*$)""", dotted_key)
    return [name.strip('"') for name in names]
