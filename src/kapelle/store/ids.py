"""Ids in the database: the whole id for what a person typed, and new ids with a unique end."""

import sqlalchemy as sa

from kapelle.domain.errors import InvalidInput, NotFound
from kapelle.domain.ids import SHORT, IdKind, new_id, parse_id_part
from kapelle.store.statements import Statement
from kapelle.store.tables import id_ending, metadata

_MOST_NAMED = 5
# A shorter part is likely to fit another id some day.
_SHORTEST = 4
# Kinds whose ids a person may type, with the commands that show one and list all of them.
_SHOW_COMMANDS: dict[IdKind, str] = {
    "task": "kapelle status",
    "run": "kapelle runs status",
    "schedule": "kapelle schedule status",
    "learning": "kapelle learnings show",
}
_LIST_COMMANDS: dict[IdKind, str] = {
    "task": "kapelle list",
    "run": "kapelle runs list",
    "schedule": "kapelle schedule list",
    "learning": "kapelle learnings list",
}
_TABLES = [metadata.tables[f"{kind}s"] for kind in _SHOW_COMMANDS]
_FIND_BY_ENDING = Statement(
    sa.union_all(
        *(sa.select(table.c.id).where(id_ending(table) == sa.bindparam("end")) for table in _TABLES)
    ).limit(1)
)


def resolve_id(connection: sa.Connection, text: str, *kinds: IdKind) -> str:
    """Return the whole id of one of the kinds for a whole id, or the end or beginning of one.

    Raise InvalidInput if several ids fit. Raise NotFound if none fits, with a hint if the text is
    too short or fits an id of another kind.
    """
    if id_ := _find_id(connection, text, *kinds):
        return id_
    hint = hint_list_command(kinds[0])
    if 0 < len(parse_id_part(kinds[0], text) or "") < _SHORTEST:
        hint = f"Type at least {_SHORTEST} letters of the id."
    for other, command in _SHOW_COMMANDS.items():
        if other not in kinds and _find_id(connection, text, other):
            hint = f"It is a {other}: {command} {text.strip()}"
    raise NotFound(f"{text!r} is not the id of a {' or a '.join(kinds)}.", hint=hint)


def hint_list_command(kind: IdKind) -> str | None:
    """Return the hint for an unknown id; None for kinds without a command."""
    if kind not in _LIST_COMMANDS:
        return None
    return f"{_LIST_COMMANDS[kind]} shows the ids."


def make_unused_id(connection: sa.Connection, kind: IdKind) -> str:
    """Return a new id whose short form differs from those of all ids that a person may type."""
    while True:
        id_ = new_id(kind)
        if _FIND_BY_ENDING.scalar(connection, end=id_[-SHORT:]) is None:
            return id_


def _find_id(connection: sa.Connection, text: str, *kinds: IdKind) -> str | None:
    """Return the only id that ends, or else starts, with a text; raise InvalidInput for several."""
    parts = [(kind, parse_id_part(kind, text) or "") for kind in kinds]
    parts = [(kind, part) for kind, part in parts if len(part) >= _SHORTEST]
    if not parts:
        return None
    for select in (_select_by_end, _select_by_start):
        query = sa.union_all(*(select(kind, part) for kind, part in parts))
        rows = connection.execute(query.limit(_MOST_NAMED)).all()
        if len(rows) > 1:
            names = ", ".join(f"{row.id[-SHORT:]} ({row.title[:40]})" for row in rows)
            raise InvalidInput(f"Several ids have {text!r}: {names}.", hint="Type more.")
        if rows:
            return str(rows[0].id)
    return None


def _select_by_start(kind: IdKind, part: str) -> sa.Select[tuple[str, str]]:
    table = metadata.tables[f"{kind}s"]
    query = sa.select(table.c.id, table.c.title)
    return query.where(table.c.id.startswith(f"{kind}_{part}", autoescape=True))


def _select_by_end(kind: IdKind, part: str) -> sa.Select[tuple[str, str]]:
    table = metadata.tables[f"{kind}s"]
    query = sa.select(table.c.id, table.c.title).where(table.c.id.endswith(part))
    if len(part) >= SHORT:
        # This condition uses the index over the ends of ids.
        query = query.where(id_ending(table) == part[-SHORT:])
    return query
