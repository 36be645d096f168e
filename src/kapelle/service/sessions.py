"""Use cases of browser sessions: exchange a one-time code for a session, which expires."""

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
    """The login codes of this daemon, and sessions, which a file keeps over its restart.

    The file has only digests, so that nobody can log in with its content.
    """

    def __init__(self, clock: Callable[[], float] = time.time, file: Path | None = None) -> None:
        self._clock = clock
        self._file = file
        self._codes: dict[str, float] = {}
        self._sessions: dict[str, float] = {}
        self._logged_out = asyncio.Event()
        if file is not None:
            with suppress(OSError, ValueError, TypeError, RecursionError):
                stored_sessions = dict(json.loads(read_own(file)))
                self._sessions = {str(key): float(end) for key, end in stored_sessions.items()}

    def new_code(self) -> LoginCodeView:
        """Create a login code, which opens one browser session within a minute."""
        self._codes = _drop_expired(self._codes, self._clock())
        code = secrets.token_urlsafe(24)
        self._codes[code] = self._clock() + _CODE_LIFE_S
        expires_at = datetime.now(UTC) + timedelta(seconds=_CODE_LIFE_S)
        return LoginCodeView(code=code, expires_at=expires_at)

    def log_in(self, code: str) -> str:
        """Return a new session for a login code; raises Unauthorized."""
        if self._codes.pop(code, 0.0) <= self._clock():
            raise Unauthorized(
                "This login code is not valid: it was used before, or is over a minute old.",
                hint="Type `kapelle open` for a new one.",
            )
        self._sessions = _drop_expired(self._sessions, self._clock())
        while len(self._sessions) >= _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session)] = self._clock() + SESSION_LIFE_S
        self._store()
        return session

    def log_out(self, session: str) -> None:
        """End a session and wake everybody who waits for the end of one."""
        self._sessions.pop(_digest(session), None)
        self._store()
        self._logged_out.set()
        self._logged_out = asyncio.Event()

    async def wait_until_ended(self, session: str) -> None:
        """Wait until the browser of a session has logged out."""
        while self.knows(session):
            await self._logged_out.wait()

    def knows(self, session: str) -> bool:
        """Return whether a session is valid."""
        return self._sessions.get(_digest(session), 0.0) > self._clock()

    def _store(self) -> None:
        # If the disk is full, the session is lost at the next restart, but it works until then.
        with suppress(OSError):
            if self._file is not None:
                write_private(self._file, json.dumps(self._sessions).encode())


def _digest(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()


def _drop_expired(ends: dict[str, float], now: float) -> dict[str, float]:
    return {key: end for key, end in ends.items() if end > now}
