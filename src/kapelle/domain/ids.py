"""Ids, a prefix for the kind and 26 characters that sort by time; tokens made from them.

Ids of the same days begin alike, so people read and type the end, which is random.
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
# So much of the end is shown; new ids are made so that no other one ends alike.
SHORT = 5
# Not in a path, a branch or the token of a question, which are of use only as a whole.
_WHOLE = re.compile(
    rf"(?<![\w/.-])(?:task|run|schedule|attempt|learning)_([{_ALPHABET}]{{26}})(?![\w/-]|[.:]\w)"
)

_lock = threading.Lock()
_last = 0


def new_id(kind: IdKind) -> str:
    """A new id; ids made by one process are strictly increasing."""
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
    """Whether text is a whole id of this kind."""
    prefix, _, body = text.partition("_")
    return prefix == kind and _BODY.fullmatch(body) is not None


def read_kind(id_: str) -> str:
    """What an id is of."""
    return id_.partition("_")[0]


def strip_kind(id_: str) -> str:
    """The characters behind the kind, by which ids of all kinds sort by time."""
    return id_.partition("_")[2]


def parse_id_part(kind: IdKind, text: str) -> str | None:
    """What a person typed, as a part of the 26 characters; None if it cannot be one."""
    body = text.strip().lower().removeprefix(f"{kind}_")
    if not body or len(body) > 26 or any(letter not in _ALPHABET for letter in body):
        return None
    return body


def is_id_part(text: str) -> bool:
    """Whether somebody may have typed a text as an id, or as a part of one."""
    kind, mark, _ = text.strip().lower().partition("_")
    return parse_id_part(kind if mark else "task", text) is not None  # type: ignore[arg-type]


def shorten_ids(text: str) -> str:
    """A text in which ids stand by their short forms."""
    return _WHOLE.sub(lambda whole: whole[1][-SHORT:], text)


_PREFIX = "kapelle-attempt."


def make_attempt_token(secret: str, attempt_id: str) -> str:
    """The token of an attempt: made from the daemon's secret, so that none has to be stored."""
    # Imported here: the command line, which needs only ids, starts sooner without.
    import hashlib
    import hmac

    digest = hmac.new(secret.encode(), attempt_id.encode(), hashlib.sha256).hexdigest()
    return f"{_PREFIX}{attempt_id}.{digest}"


def read_attempt_token(secret: str, token: str) -> str | None:
    """The attempt that a token was made for; None for any other text."""
    if not token.startswith(_PREFIX):
        return None
    attempt_id = token.removeprefix(_PREFIX).rpartition(".")[0]
    import hmac

    made = make_attempt_token(secret, attempt_id)
    if hmac.compare_digest(made.encode(), token.encode()):
        return attempt_id
    return None
