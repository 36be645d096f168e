"""Locks that last as long as any git started under them, even when this process is killed."""

import asyncio
import fcntl
import os
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path

from kapelle.domain.errors import Conflict

_STRIPES = 256
_PATIENCE_S = 120.0
_inherited: ContextVar[tuple[int, ...]] = ContextVar("inherited", default=())


def inherited_descriptors() -> tuple[int, ...]:
    """The held locks; a git that inherits them keeps them until it ends."""
    return _inherited.get()


class Locks:
    """Locks by name, exclusive between tasks of this process and between processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._local: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def hold(self, kind: str, name: str) -> AsyncIterator[None]:
        # Striped: lock files must never be deleted, so their number has to be bounded.
        stripe = f"{kind}-{zlib.crc32(os.fsencode(name)) % _STRIPES:03}"
        async with self._local.setdefault(stripe, asyncio.Lock()):
            descriptor = await _acquire(self._directory / stripe, name)
            token = _inherited.set((*_inherited.get(), descriptor))
            try:
                yield
            finally:
                _inherited.reset(token)
                os.close(descriptor)


async def _acquire(path: Path, name: str) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up_at = time.monotonic() + _PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() > give_up_at:
                    raise Conflict(f"Another process is still at work on {name}.") from None
            await asyncio.sleep(0.01)
    except BaseException:
        os.close(descriptor)
        raise
