"""Ids: the kind as a prefix, then 26 characters that sort by time. Tokens of attempts.

Ids of the same day start with the same characters. People read and type the end, which is random.
"""

import os
import re
import threading
import time
from typing import Literal

IdKind = Literal["task", "attempt", "run", "schedule", "merge", "learning", "message"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_BODY = re.compile(rf"[{_ALPHABET}]{{26}}")
_RANDOM_BITS = 80
# The length of a short id: the end of an id. The store gives no two ids the same end.
SHORT = 5
# Ids inside paths, branches and tokens of questions do not match: these must stay complete.
_WHOLE = re.compile(
    rf"(?<![\w/.-])(?:task|run|schedule|attempt|learning)_([{_ALPHABET}]{{26}})(?![\w/-]|[.:]\w)"
)

_lock = threading.Lock()
_last = 0


def new_id(kind: IdKind) -> str:
    """Return a new id, greater than all earlier ids of this process."""
    global _last
    with _lock:
        now = time.time_ns() // 1_000_000
        # Within one millisecond, or after the clock went back, count on from the last id.
        fresh = now << _RANDOM_BITS | int.from_bytes(os.urandom(_RANDOM_BITS // 8))
        if fresh >> _RANDOM_BITS > _last >> _RANDOM_BITS:
            _last = fresh
        else:
            _last = _last + 1
        number = _last
    digits = []
    for _ in range(26):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return f"{kind}_{''.join(reversed(digits))}"


def is_id(kind: IdKind, text: str) -> bool:
    """Return whether a text is a whole id of a kind."""
    prefix, _, body = text.partition("_")
    return prefix == kind and _BODY.fullmatch(body) is not None


def read_kind(id_: str) -> str:
    """Return the kind of an id."""
    return id_.partition("_")[0]


def strip_kind(id_: str) -> str:
    """Return the characters after the kind, by which ids of all kinds sort by time."""
    return id_.partition("_")[2]


def parse_id_part(kind: IdKind, text: str) -> str | None:
    """Return the part of an id's 26 characters that a person typed; None for any other text."""
    body = text.strip().lower().removeprefix(f"{kind}_")
    if not body or len(body) > 26 or any(letter not in _ALPHABET for letter in body):
        return None
    return body


def is_id_part(text: str) -> bool:
    """Return whether a text may be an id or a part of one."""
    kind, mark, _ = text.strip().lower().partition("_")
    return parse_id_part(kind if mark else "task", text) is not None  # type: ignore[arg-type]


def shorten_ids(text: str) -> str:
    """Return a text with every whole id replaced by its short form."""
    return _WHOLE.sub(lambda whole: whole[1][-SHORT:], text)


_PREFIX = "kapelle-attempt."


def make_attempt_token(secret: str, attempt_id: str) -> str:
    """Return the token of an attempt, made from the daemon's secret so that none is stored."""
    # Imported here because the command line needs only ids and starts faster without hmac.
    import hashlib
    import hmac

    digest = hmac.new(secret.encode(), attempt_id.encode(), hashlib.sha256).hexdigest()
    return f"{_PREFIX}{attempt_id}.{digest}"


def read_attempt_token(secret: str, token: str) -> str | None:
    """Return the id of the attempt that a token was made for; None for an invalid token."""
    if not token.startswith(_PREFIX):
        return None
    attempt_id = token.removeprefix(_PREFIX).rpartition(".")[0]
    import hmac

    valid_token = make_attempt_token(secret, attempt_id)
    if hmac.compare_digest(valid_token.encode(), token.encode()):
        return attempt_id
    return None
