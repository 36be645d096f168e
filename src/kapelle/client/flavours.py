"""The little that differs between the two flavours, in pairs that generate.py knows by name."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from typing import TypeAlias, TypeVar

from kapelle.client.autostart import ensure_daemon
from kapelle.home import Home

T = TypeVar("T")

AsyncStream: TypeAlias = AsyncGenerator[T, None]
Stream: TypeAlias = Generator[T, None, None]

async_sleep = asyncio.sleep
sleep = time.sleep


async def async_start_daemon(home: Home) -> None:
    await asyncio.to_thread(ensure_daemon, home)


def start_daemon(home: Home) -> None:
    ensure_daemon(home)
