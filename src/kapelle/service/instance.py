"""Use cases of the daemon itself: what it is, its agents, backups, login codes, its end."""

import asyncio
import hmac
import os
import secrets
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from kapelle import __version__
from kapelle.agents import registry
from kapelle.domain.errors import Conflict, Unauthorized
from kapelle.engine.conductor import Conductor
from kapelle.engine.stage import Stage
from kapelle.store import backup, tasks

_CODE_LIFE_S = 60


class DaemonView(BaseModel):
    version: str
    pid: int
    started_at: datetime
    home: str
    url: str
    database: str
    running: int
    max_attempts: int
    queued: int
    held: str | None
    stranded: list[str]


class AgentView(BaseModel):
    name: str
    type: str
    installed: str | None
    default: bool
    problem: str | None
    capabilities: dict[str, bool]


class LoginCodeView(BaseModel):
    code: str
    expires_at: datetime
    url: str


class BackupView(BaseModel):
    path: str


@dataclass
class Stopping:
    """Set when the daemon has been asked to end."""

    event: asyncio.Event
    agents: bool = False


class Instance:
    def __init__(self, stage: Stage, conductor: Conductor, stopping: Stopping) -> None:
        self._stage = stage
        self._conductor = conductor
        self._stopping = stopping
        self._started_at = datetime.now(UTC)
        self._codes: dict[str, float] = {}
        self._sessions: set[str] = set()

    async def describe(self) -> DaemonView:
        counts = await self._stage.db.read(tasks.counts)
        return DaemonView(
            version=__version__,
            pid=os.getpid(),
            started_at=self._started_at,
            home=str(self._stage.home.root),
            url=self._stage.url,
            database=self._stage.db.engine.dialect.name,
            running=self._conductor.running,
            max_attempts=self._conductor.slots,
            queued=counts.get("queued", 0),
            held=self._conductor.held,
            stranded=self._conductor.stranded,
        )

    def agents(self, directory: str | None) -> list[AgentView]:
        found = registry.available(self._stage.settings(directory))
        return [
            AgentView(
                name=agent.name,
                type=agent.type,
                installed=agent.installed,
                default=agent.is_default,
                problem=agent.problem,
                capabilities=_flags(agent.capabilities),
            )
            for agent in found
        ]

    async def back_up(self) -> BackupView:
        """Copy the databases now, while they are in use."""
        if not self._stage.db.is_sqlite:
            raise Conflict(
                "This daemon keeps its data in PostgreSQL, which Kapelle does not back up.",
                hint="Use pg_dump.",
            )
        home, keep = self._stage.home, self._stage.settings().backup.keep
        files = [home.database, home.engine_database]
        return BackupView(path=str(await asyncio.to_thread(backup.make, files, home.backups, keep)))

    def stop(self, agents: bool) -> None:
        self._stopping.agents = agents
        self._stopping.event.set()

    def new_login_code(self) -> LoginCodeView:
        """A code that opens one browser session, once, within a minute."""
        now = time.monotonic()
        self._codes = {code: end for code, end in self._codes.items() if end > now}
        code = secrets.token_urlsafe(24)
        self._codes[code] = now + _CODE_LIFE_S
        expires_at = datetime.now(UTC) + timedelta(seconds=_CODE_LIFE_S)
        return LoginCodeView(
            code=code, expires_at=expires_at, url=f"{self._stage.url}/login#code={code}"
        )

    def log_in(self, code: str) -> str:
        """Exchange a code for the value of a session cookie."""
        end = self._codes.pop(code, 0.0)
        if end <= time.monotonic():
            raise Unauthorized(
                "This login code is not valid: it was used before, or is over a minute old.",
                hint="kapelle login makes a new one.",
            )
        session = secrets.token_urlsafe(32)
        self._sessions.add(session)
        return session

    def knows_session(self, session: str) -> bool:
        return any(
            hmac.compare_digest(session.encode(), known.encode()) for known in self._sessions
        )


def _flags(capabilities: Any) -> dict[str, bool]:
    return {name: bool(value) for name, value in asdict(capabilities).items()}
