"""What to run, and how it ended."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from kapelle.domain.task import Exit


@dataclass(frozen=True)
class Launch:
    """One command to run in one process directory; values of env and stdin never reach the disk."""

    process_dir: Path
    argv: list[str]
    cwd: Path
    env: dict[str, str]
    stdin: bytes | None
    timeout_s: float | None
    grace_s: float
    redact: tuple[bytes, ...]
    label: str


@dataclass(frozen=True)
class Ended:
    """The one verdict on a run; leftovers are processes that outlived the command itself."""

    exit: Exit
    ended_by: Literal["timeout", "stop"] | None
    stop_reason: str | None
    detail: str | None
    out_bytes: int
    err_bytes: int
    started_at: datetime | None
    ended_at: datetime
    duration_s: float
    leftovers: int
    cpu_s: float
    max_rss_bytes: int
