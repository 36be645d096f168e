"""Keeps Gemini from destroying a session that it is to go on with."""

import asyncio
import os
import time
from pathlib import Path


async def out_of_its_minute(session_id: str) -> None:
    """Wait until the minute in which a session began is over.

    Gemini names a chat's file by minute and session, and begins it anew when it loads a session.
    """
    home = Path(os.environ.get("GEMINI_CLI_HOME") or Path.home())
    minute = time.strftime("%Y-%m-%dT%H-%M", time.gmtime())
    name = f"session-{minute}-{session_id[:8]}.jsonl"
    if any(home.glob(f".gemini/tmp/*/chats/{name}")):
        await asyncio.sleep(60.5 - time.time() % 60)
