"""What an opencode session used, from opencode's own database.

Over ACP opencode reports the tokens of its last answer only. Its table of sessions counts all
answers. That table may change with any version: if it is not as expected, nothing is known.
"""

import os
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

_QUERY = """
SELECT tokens_input + tokens_cache_read + tokens_cache_write, tokens_output + tokens_reasoning,
       tokens_cache_read
FROM session WHERE id = ?
"""
_NAMES = ("input_tokens", "output_tokens", "cached_tokens")


def session_tokens(session_id: str) -> Counter[str] | None:
    """Return the tokens of all answers of a session so far; None if they cannot be read."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    database = Path(data) / "opencode" / "opencode.db"
    try:
        with closing(
            sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=2)
        ) as opened:
            row = opened.execute(_QUERY, (session_id,)).fetchone()
    except (sqlite3.Error, ValueError):
        return None
    if row is None or not all(isinstance(number, int) for number in row):
        return None
    return Counter(dict(zip(_NAMES, row, strict=True)))
