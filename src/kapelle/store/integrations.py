"""Queries of agents in other PostgreSQL databases, read-only."""

from typing import Any

from kapelle.domain.errors import InvalidInput


async def select(
    address: str, query: str, limit: int, timeout_s: float, most_bytes: int
) -> tuple[list[dict[str, Any]], bool]:
    """Execute one statement in a read-only transaction.

    Return its rows, at most `limit` of them and about `most_bytes`, and whether there were more.
    """
    # Imported on first use: few homes need it.
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
            # A stream uses a prepared statement, which cannot contain a second statement.
            async for row in cursor.stream(query.encode()):
                size += len(str(row))
                if len(rows) == limit or size > most_bytes:
                    return rows, True
                rows.append({name: _convert_to_json(value) for name, value in row.items()})
            await connection.rollback()
    except psycopg.Error as error:
        raise InvalidInput(f"The database refused the query: {str(error).strip()}") from None
    return rows, False


def _convert_to_json(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None | list | dict):
        return value
    return str(value)
