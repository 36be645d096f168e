"""Short queries and helpers that all modules of the store use."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa

Row = Mapping[Any, Any]  # the values of a row by the names of its columns
Conditions = Sequence[sa.ColumnElement[bool]]
T = TypeVar("T")

# Databases limit the number of parameters of a statement.
_MOST_PARAMETERS = 500


def has_row(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> bool:
    """Return whether a row meets all conditions."""
    query = sa.select(sa.literal(1)).where(*conditions).limit(1)
    return connection.execute(query).first() is not None


def count_rows(connection: sa.Connection, *conditions: sa.ColumnElement[bool]) -> int:
    """Return the number of rows that meet all conditions."""
    return connection.execute(sa.select(sa.func.count()).where(*conditions)).scalar_one()


def group(pairs: Iterable[tuple[str, T]]) -> defaultdict[str, list[T]]:
    """Return the values of each key, in order; an empty list for an unknown key."""
    groups: defaultdict[str, list[T]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def select_in_parts(
    connection: sa.Connection, query: sa.Select[Any], column: sa.Column[str], among: Sequence[str]
) -> Iterator[Any]:
    """Yield the rows whose column has one of the values, with several queries for many values."""
    for start in range(0, len(among), _MOST_PARAMETERS):
        part = among[start : start + _MOST_PARAMETERS]
        yield from connection.execute(query.where(column.in_(part)))
