"""Read configuration files, and notice when they change."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.home import read_small

Stamp = tuple[int, int, int, int]


def stamp(path: Path) -> Stamp | None:
    """Return values that change with the content of a file; None if it is missing.

    Includes the time of the last status change, which no program can set back, unlike the
    modification time.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a file and its parsed content; both empty if the file is missing."""
    try:
        text = read_small(path).decode().replace("\r\n", "\n")
        return text, tomllib.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        return "", {}
    except tomllib.TOMLDecodeError as error:
        lines = text.rstrip("\n").split("\n")
        # tomllib gives no line for an error at the end of the file.
        end = f"at line {len(lines)}, column {len(lines[-1]) + 1}"
        problem = str(error).replace("at end of document", end)
        raise InvalidInput(f"{path} is not valid TOML: {problem}.") from None
    except (OSError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from None


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is not a table, by its dotted key; see names_in."""
    for name, value in values.items():
        # A name with dots is quoted, as in TOML.
        key = f'"{name}"' if "." in name else name
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def split_key(dotted_key: str) -> list[str]:
    """Split a dotted key into names; a name in quotes may contain dots."""
    names = re.split(r"""\.(?=(?:[^"]*"[^"]*")*[^"]*$)""", dotted_key)
    return [name.strip('"') for name in names]
