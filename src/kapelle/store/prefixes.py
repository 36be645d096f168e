"""From what a person typed to a whole id: any prefix will do that only one thing has."""

import sqlalchemy as sa

from kapelle.domain.errors import InvalidInput, NotFound
from kapelle.domain.ids import Kind, as_prefix, is_id


def resolve(
    connection: sa.Connection, table: sa.Table, kind: Kind, text: str, list_command: str
) -> str:
    """The whole id in a table for an id or a prefix; the command is one that lists the ids."""
    if is_id(kind, text):
        return text
    prefix, hint = as_prefix(kind, text), f"{list_command} shows the ids."
    if prefix is None:
        raise NotFound(f"{text!r} is not a {kind} id.", hint=hint)
    query = sa.select(table.c.id).where(table.c.id.startswith(prefix, autoescape=True)).limit(2)
    found = list(connection.execute(query).scalars())
    if not found:
        raise NotFound(f"No {kind}'s id begins with {text!r}.", hint=hint)
    if len(found) > 1:
        raise InvalidInput(f"Several {kind}s' ids begin with {text!r}.", hint="Type more of it.")
    return str(found[0])
