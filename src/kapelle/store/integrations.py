"""A PostgreSQL database of somebody else's, in which agents may look something up."""

from typing import Any

from kapelle.domain.errors import InvalidInput


async def select(
    address: str, query: str, limit: int, timeout_s: float, most_bytes: int
) -> tuple[list[dict[str, Any]], bool]:
    """The rows of one statement in a read-only transaction, and whether there were more."""
    # Imported when it is needed: most homes have no use for it.
    import psycopg
    from psycopg.rows import dict_row

    options = f"-c default_transaction_read_only=on -c statement_timeout={timeout_s * 1000:.0f}"
    rows: list[dict[str, Any]] = []
    size = 0
    try:
        connection = await psycopg.AsyncConnection.connect(
            address, options=options, connect_timeout=10, row_factory=dict_row
        )
        async with connection, connection.cursor() as cursor:
            await connection.set_read_only(True)
            # Streamed, it is sent as one prepared statement: a second one is refused.
            async for row in cursor.stream(query.encode()):
                size += len(str(row))
                if len(rows) == limit or size > most_bytes:
                    return rows, True
                rows.append({name: _plain(value) for name, value in row.items()})
            await connection.rollback()
    except psycopg.Error as error:
        raise InvalidInput(f"The database refused: {str(error).strip()}") from None
    return rows, False


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None | list | dict):
        return value
    return str(value)
