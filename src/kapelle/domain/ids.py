"""Ids, a prefix for the kind and 26 characters that sort by time; tokens made from them."""

import hashlib
import hmac
import re
import secrets
import threading
import time
from typing import Literal

Kind = Literal["task", "attempt", "run", "schedule", "merge"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_BODY = re.compile(rf"[{_ALPHABET}]{{26}}")
_RANDOM_BITS = 80

_lock = threading.Lock()
_last = 0


def new_id(kind: Kind) -> str:
    """A new id; ids made by one process are strictly increasing."""
    global _last
    with _lock:
        now = time.time_ns() // 1_000_000
        # Within one millisecond, or after the clock went back, count on from the last id.
        fresh = now << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        _last = fresh if fresh >> _RANDOM_BITS > _last >> _RANDOM_BITS else _last + 1
        number = _last
    digits = []
    for _ in range(26):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return f"{kind}_{''.join(reversed(digits))}"


def is_id(kind: Kind, text: str) -> bool:
    """Whether text is a whole id of this kind."""
    prefix, _, body = text.partition("_")
    return prefix == kind and _BODY.fullmatch(body) is not None


def as_prefix(kind: Kind, text: str) -> str | None:
    """What a person typed, as the beginning of an id of this kind; None if it cannot be one."""
    body = text.strip().lower().removeprefix(f"{kind}_")
    if not body or len(body) > 26 or any(letter not in _ALPHABET for letter in body):
        return None
    return f"{kind}_{body}"


_PREFIX = "kapelle-attempt."


def attempt_token(secret: str, attempt_id: str) -> str:
    """The token of an attempt: made from the daemon's secret, so that none has to be stored."""
    digest = hmac.new(secret.encode(), attempt_id.encode(), hashlib.sha256).hexdigest()
    return f"{_PREFIX}{attempt_id}.{digest}"


def attempt_of(secret: str, token: str) -> str | None:
    """The attempt that a token was made for; None for any other text."""
    if not token.startswith(_PREFIX):
        return None
    attempt_id = token.removeprefix(_PREFIX).rpartition(".")[0]
    made = attempt_token(secret, attempt_id)
    return attempt_id if hmac.compare_digest(made.encode(), token.encode()) else None
