"""How much of a list is read at once."""

from collections.abc import Iterable, Sequence
from typing import Any

_MOST_LETTERS = 4_000_000


def bounded(found: Iterable[Sequence[Any]]) -> list[str]:
    """The first ids of rows of id and length that together are not too long; at least one."""
    ids: list[str] = []
    letters = 0
    for id_, length in found:
        letters += length
        if ids and letters > _MOST_LETTERS:
            break
        ids.append(id_)
    return ids
