"""Tokens of attempts: made from the daemon's secret, so that none has to be stored."""

import hashlib
import hmac

_PREFIX = "kapelle-attempt."


def attempt_token(secret: str, attempt_id: str) -> str:
    digest = hmac.new(secret.encode(), attempt_id.encode(), hashlib.sha256).hexdigest()
    return f"{_PREFIX}{attempt_id}.{digest}"


def attempt_of(secret: str, token: str) -> str | None:
    """The attempt that a token was made for; None for any other text."""
    if not token.startswith(_PREFIX):
        return None
    attempt_id = token.removeprefix(_PREFIX).rpartition(".")[0]
    made = attempt_token(secret, attempt_id)
    return attempt_id if hmac.compare_digest(made.encode(), token.encode()) else None
