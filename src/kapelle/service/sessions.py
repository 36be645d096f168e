"""Use cases of browsers: a code that works once becomes a session that ends by itself."""

import hmac
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel

from kapelle.domain.errors import Unauthorized

_CODE_LIFE_S = 60.0
_SESSION_LIFE_S = 7 * 86_400.0
_MOST_SESSIONS = 100


class LoginCodeView(BaseModel):
    code: str
    expires_at: datetime


class Sessions:
    """Codes and sessions of one daemon; none outlives it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._codes: dict[str, float] = {}
        self._sessions: dict[str, float] = {}

    def new_code(self) -> LoginCodeView:
        self._codes = _alive(self._codes, self._clock())
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock() + _CODE_LIFE_S
        expires_at = datetime.now(UTC) + timedelta(seconds=_CODE_LIFE_S)
        return LoginCodeView(code=code, expires_at=expires_at)

    def log_in(self, code: str) -> str:
        if self._codes.pop(code, 0.0) <= self._clock():
            raise Unauthorized(
                "This login code is not valid: it was used before, or is over a minute old.",
                hint="Ask for a new one.",
            )
        self._sessions = _alive(self._sessions, self._clock())
        while len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(32)
        self._sessions[session] = self._clock() + _SESSION_LIFE_S
        return session

    def log_out(self, session: str) -> None:
        self._sessions.pop(session, None)

    def knows(self, session: str) -> bool:
        found = False
        for known in _alive(self._sessions, self._clock()):
            found |= hmac.compare_digest(session.encode(), known.encode())
        return found


def _alive(ends: dict[str, float], now: float) -> dict[str, float]:
    return {key: end for key, end in ends.items() if end > now}
