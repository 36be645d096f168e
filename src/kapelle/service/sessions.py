"""Use cases of browsers: a code that works once becomes a session that ends by itself."""

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel

from kapelle.domain.errors import Unauthorized
from kapelle.home import read_own, write_private

_CODE_LIFE_S = 60.0
SESSION_LIFE_S = 7 * 86_400.0
_MOST_SESSIONS = 100


class LoginCodeView(BaseModel):
    code: str
    expires_at: datetime


class SessionService:
    """Codes of one daemon, and sessions, which a file keeps by their digests for the next one."""

    def __init__(self, clock: Callable[[], float] = time.time, file: Path | None = None) -> None:
        self._clock = clock
        self._file = file
        self._codes: dict[str, float] = {}
        self._sessions: dict[str, float] = {}
        self._logged_out = asyncio.Event()
        if file is not None:
            with suppress(OSError, ValueError, TypeError, RecursionError):
                kept = json.loads(read_own(file))
                self._sessions = {str(key): float(end) for key, end in dict(kept).items()}

    def new_code(self) -> LoginCodeView:
        """A code that opens one browser session, once, within a minute."""
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
        self._sessions[_digest(session)] = self._clock() + SESSION_LIFE_S
        self._keep()
        return session

    def log_out(self, session: str) -> None:
        self._sessions.pop(_digest(session), None)
        self._keep()
        self._logged_out.set()
        self._logged_out = asyncio.Event()

    async def ended(self, session: str) -> None:
        """Wait until its browser has logged out."""
        while self.knows(session):
            await self._logged_out.wait()

    def knows(self, session: str) -> bool:
        return self._sessions.get(_digest(session), 0.0) > self._clock()

    def _keep(self) -> None:
        # A browser that must log in again is better than one that cannot.
        with suppress(OSError):
            if self._file is not None:
                write_private(self._file, json.dumps(self._sessions).encode())


def _digest(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()


def _alive(ends: dict[str, float], now: float) -> dict[str, float]:
    return {key: end for key, end in ends.items() if end > now}
