"""A process directory as the daemon sees it: what to execute, who claims it, and how it ended."""

import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from kapelle.domain.task import Exit
from kapelle.runner import identity
from kapelle.runner.identity import Identity
from kapelle.runner.redaction import redact
from kapelle.runner.shim import files, request


@dataclass(frozen=True)
class Launch:
    """One command and its process directory; values of env and stdin never reach the disk."""

    process_dir: Path
    argv: list[str]
    cwd: Path
    env: dict[str, str]
    stdin: bytes | None = None
    timeout_s: float | None = None
    grace_s: float = 5.0
    redact: tuple[bytes, ...] = ()
    label: str = ""


@dataclass(frozen=True)
class Ended:
    """How an execution ended; leftovers are processes that outlived the command itself."""

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

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself and well."""
        return self.exit.kind == "exited" and self.exit.code == 0 and self.ended_by is None

    def ending(self, timeout_s: float | None) -> str:
        """How a command that was given so much time ended, in a few words."""
        if self.ended_by == "timeout":
            return f"timed out after {timeout_s:g} s"
        if self.ended_by == "stop":
            return "stopped"
        if self.exit.code is not None:
            return f"exit code {self.exit.code}"
        if self.exit.signal is not None:
            return f"signal {self.exit.signal}"
        return self.detail or "it did not end by itself"


class UnreadableClaim(ValueError):
    """The claim is there, but it is not one that we wrote."""


@dataclass(frozen=True)
class Claim:
    """The content of the claim file."""

    kind: Literal["shim", "daemon"]
    owner: Identity
    cgroup: str | None
    detail: str | None


def read_claim(process_dir: Path) -> Claim | None:
    """Who claims a process directory, if anybody; UnreadableClaim if that makes no sense."""
    data = files.read(str(process_dir / files.CLAIM))
    if data is None:
        return None
    try:
        fields = json.loads(data)
        owner = Identity.from_json(fields)
    except (ValueError, RecursionError) as error:
        raise UnreadableClaim(f"the claim cannot be read: {error}") from error
    kind, cgroup, detail = (fields.get(name) for name in ("kind", "cgroup", "detail"))
    if kind not in ("shim", "daemon") or not isinstance(cgroup, str | None):
        raise UnreadableClaim("the claim cannot be read: unknown kind")
    return Claim(kind, owner, cgroup, detail if isinstance(detail, str) else None)


def is_claimed(process_dir: Path) -> bool:
    return (process_dir / files.CLAIM).exists()


def take_claim(process_dir: Path, detail: str | None) -> bool:
    """Claim a directory for the daemon, so that no shim will execute it; False if it is taken."""
    me = identity.current(os.getpid())
    assert me is not None
    fields = {"kind": "daemon", **asdict(me), "detail": detail}
    path = str(process_dir / files.CLAIM)
    return files.publish(path, json.dumps(fields).encode(), durable=False)


def write_intent(launch: Launch) -> None:
    """Note the intent; of the environment only the names, of the input only the size."""
    launch.process_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = {
        "protocol": files.PROTOCOL,
        "label": launch.label,
        "argv": launch.argv,
        "env": sorted(launch.env),
        "cwd": str(launch.cwd),
        "stdin_bytes": None if launch.stdin is None else len(launch.stdin),
        "timeout_s": launch.timeout_s,
        "grace_s": launch.grace_s,
        "boot_id": identity.boot_id(),
    }
    data = redact(json.dumps(facts).encode(), launch.redact)
    files.replace(str(launch.process_dir / files.INTENT), data)


def is_from_earlier_boot(process_dir: Path) -> bool:
    """Whether a power cut may have taken the claim that once followed this intent."""
    try:
        facts = json.loads(files.read(str(process_dir / files.INTENT)) or b"null")
    except (ValueError, RecursionError):
        return False
    boot = facts.get("boot_id") if isinstance(facts, dict) else None
    return isinstance(boot, str) and boot != identity.boot_id()


def encode_request(launch: Launch, leaf: Path | None) -> bytes:
    """The request for a shim; ValueError if some text cannot be given to a process."""
    if not launch.argv:
        raise ValueError("there is no command")
    return request.encode(
        process_dir=str(launch.process_dir),
        argv=launch.argv,
        cwd=str(launch.cwd),
        env=launch.env,
        stdin=launch.stdin,
        redact=launch.redact,
        timeout_s=launch.timeout_s,
        grace_s=launch.grace_s,
        boot_id=identity.boot_id(),
        leaf=None if leaf is None else str(leaf),
    )


class UnreadableExit(ValueError):
    """The exit record is there, but it cannot be read."""


def read_exit(process_dir: Path) -> Ended | None:
    """How it ended, None if it has not yet; UnreadableExit if the record makes no sense."""
    data = files.read(str(process_dir / files.EXIT))
    if data is None:
        return None
    try:
        return _parse(json.loads(data))
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise UnreadableExit(f"exit.json cannot be read: {error}") from error


def set_exit_aside(process_dir: Path) -> None:
    path = process_dir / files.EXIT
    path.rename(path.with_suffix(".unreadable"))


def declare_exit(process_dir: Path, kind: str, detail: str | None, survivors: int = 0) -> None:
    """Record an end that the daemon concluded, unless one is recorded already."""
    reason = files.read(str(process_dir / files.STOP))
    started_at = None if kind == "not_started" else _started_at(process_dir)
    now = time.time()
    record = {
        "protocol": files.PROTOCOL,
        "kind": kind,
        "ended_by": None if reason is None else "stop",
        "stop_reason": None if reason is None else reason.decode("utf-8", "replace"),
        "detail": detail,
        "out_bytes": files.size(str(process_dir / files.OUT)),
        "err_bytes": files.size(str(process_dir / files.ERR)),
        "started_at": started_at,
        "ended_at": now,
        "duration_s": 0.0 if started_at is None else max(0.0, now - started_at),
        "leftovers": survivors,
    }
    files.publish(str(process_dir / files.EXIT), json.dumps(record).encode(), durable=True)


def agent_pid(process_dir: Path) -> int | None:
    """The agent's pid as the shim noted it, to be shown and never to be signalled."""
    pid = _run_facts(process_dir).get("agent", {}).get("pid")
    return pid if isinstance(pid, int) else None


def _started_at(process_dir: Path) -> float | None:
    at = _run_facts(process_dir).get("started_at")
    return float(at) if isinstance(at, int | float) and 0 < at <= time.time() else None


def _run_facts(process_dir: Path) -> dict[str, Any]:
    try:
        facts = json.loads(files.read(str(process_dir / files.RUN)) or b"{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(facts, dict) or not isinstance(facts.get("agent", {}), dict):
        return {}
    return facts


def _parse(record: dict[str, Any]) -> Ended:
    ended_by = record.get("ended_by")
    if ended_by not in (None, "timeout", "stop"):
        raise ValueError("unknown ended_by")
    return Ended(
        exit=_exit(record),
        ended_by=ended_by,
        stop_reason=record.get("stop_reason"),
        detail=record.get("detail"),
        out_bytes=int(record["out_bytes"]),
        err_bytes=int(record["err_bytes"]),
        started_at=None if record["started_at"] is None else _moment(record["started_at"]),
        ended_at=_moment(record["ended_at"]),
        duration_s=float(record["duration_s"]),
        leftovers=int(record.get("leftovers", 0)),
        cpu_s=float(record.get("cpu_s", 0.0)),
        max_rss_bytes=int(record.get("max_rss_bytes", 0)),
    )


def _exit(record: dict[str, Any]) -> Exit:
    found = Exit(kind=record["kind"], code=record.get("code"), signal=record.get("signal"))
    if (found.kind == "exited") != (found.code is not None):
        raise ValueError("an exit code belongs to a process that exited")
    if (found.kind == "signaled") != (found.signal is not None):
        raise ValueError("a signal belongs to a process that was signalled")
    return found


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
