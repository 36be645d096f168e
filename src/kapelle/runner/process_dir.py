"""Read and write a process directory from the daemon's side: request, claim and result."""

import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from kapelle.domain.errors import format_problems
from kapelle.domain.task import Exit, Record
from kapelle.runner import identity
from kapelle.runner.identity import Identity
from kapelle.runner.redaction import redact
from kapelle.runner.shim import exit_record, files, request

R = TypeVar("R", bound=Record)


def make_secret() -> bytes:
    """Return a new secret, with which the records of one process are signed."""
    return secrets.token_bytes(32)


@dataclass(frozen=True)
class Process:
    """A process directory, and the secret that its records are signed with.

    A caller that has to find the process again after a restart passes a secret that is stored in
    the database.
    """

    directory: Path
    secret: bytes = field(default_factory=make_secret, repr=False)


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
    terminal: tuple[int, int] | None = None  # rows and columns, if it gets a terminal
    confinement: request.Confinement | None = None
    secret: bytes = field(default_factory=make_secret, repr=False)


class ProcessEnd(Record):
    """The result of an execution; `leftovers` counts processes that outlived the command."""

    exit: Exit
    ended_by: Literal["timeout", "stop"] | None = None
    stop_reason: str | None = None
    detail: str | None = None
    out_bytes: int
    err_bytes: int
    started_at: datetime | None
    ended_at: datetime
    duration_s: float
    out_sha256: str | None = None
    err_sha256: str | None = None
    leftovers: int = 0
    cpu_s: float = 0.0
    max_rss_bytes: int = 0

    @property
    def succeeded(self) -> bool:
        """Tell whether the command ended by itself with exit code 0."""
        return self.exit.kind == "exited" and self.exit.code == 0 and self.ended_by is None

    def describe_end(self, timeout_s: float | None) -> str:
        """Describe in a few words how a command with this timeout ended."""
        if self.ended_by == "timeout":
            return f"timed out after {timeout_s:g} s"
        if self.ended_by == "stop":
            return "stopped"
        if self.exit.code is not None:
            return f"exit code {self.exit.code}"
        if self.exit.signal is not None:
            return f"signal {self.exit.signal}"
        return self.detail or "it did not end by itself"


class ProcessClaim(Record):
    """The content of the claim file."""

    kind: Literal["shim", "daemon"]
    owner: Identity
    cgroup: str | None = None
    detail: str | None = None


class UnreadableRecord(ValueError):
    """A file of a process directory exists, but Kapelle did not write it."""


def read_claim(process_dir: Path, secret: bytes | None = None) -> ProcessClaim | None:
    """Return the claim of a process directory, None if nobody has claimed it.

    Raises UnreadableRecord if the file is damaged. Without the secret, the content is not verified:
    any process may have written it.
    """
    fields = _read_json(process_dir, files.CLAIM, secret)
    if fields is None:
        return None
    return _validate(ProcessClaim, {**fields, "owner": fields}, files.CLAIM)


def read_claim_unverified(process_dir: Path) -> ProcessClaim | None:
    """Return a claim that any process may have written; None if it is unreadable."""
    with suppress(UnreadableRecord):
        return read_claim(process_dir)
    return None


def is_running(process_dir: Path) -> bool:
    """Tell whether the supervisor that claims a process directory is alive."""
    claim = read_claim_unverified(process_dir)
    return claim is not None and claim.kind == "shim" and claim.owner.is_alive()


def take_claim(process_dir: Path, secret: bytes, detail: str | None) -> bool:
    """Claim a directory for the daemon, so that no shim executes it; False if it is claimed."""
    me = identity.identify_process(os.getpid())
    assert me is not None
    fields = {"kind": "daemon", **me.model_dump(), "detail": detail}
    path = str(process_dir / files.CLAIM)
    data = files.sign(secret, files.CLAIM, json.dumps(fields).encode())
    return files.publish(path, data, durable=False)


def write_intent(launch: Launch) -> None:
    """Record what is about to be executed.

    Of the environment only the names are written, and of the input only its size.
    """
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
    """Tell whether the execution was requested before the last reboot.

    Then a power cut may have removed a claim that followed this intent.
    """
    boot = _read_unverified(process_dir, files.INTENT).get("boot_id")
    return isinstance(boot, str) and boot != identity.boot_id()


def encode_request(launch: Launch, leaf: Path | None) -> bytes:
    """Encode the request for a shim; raises ValueError for text that no process can get."""
    if not launch.argv:
        raise ValueError("there is no command")
    fields = {
        "process_dir": str(launch.process_dir),
        "argv": [os.fsencode(word) for word in launch.argv],
        "cwd": os.fsencode(launch.cwd),
        "env": {os.fsencode(name): os.fsencode(value) for name, value in launch.env.items()},
        "redact": launch.redact,
        "timeout_s": launch.timeout_s,
        "grace_s": launch.grace_s,
        "boot_id": identity.boot_id(),
        "leaf": None if leaf is None else str(leaf),
        "secret": launch.secret,
        "terminal": launch.terminal,
        "confinement": None if launch.confinement is None else vars(launch.confinement),
    }
    return request.encode(fields, launch.stdin)


def read_exit(process_dir: Path, secret: bytes) -> ProcessEnd | None:
    """Return the verified result of an execution, None if there is no exit record yet.

    Raises UnreadableRecord if the record is damaged or not signed with the secret. This is the only
    place where an exit record is read and verified.
    """
    record = _read_json(process_dir, files.EXIT, secret)
    if record is None:
        return None
    exit = {name: record.get(name) for name in ("kind", "code", "signal")}
    return _validate(ProcessEnd, {**record, "exit": exit}, files.EXIT)


def declare_exit(
    process_dir: Path, secret: bytes, kind: str, detail: str | None, survivors: int = 0
) -> None:
    """Record a result that the daemon concluded, unless a signed one exists already."""
    if kind == "not_started":
        started_at = None
    else:
        started_at = _started_at(process_dir)
    now = time.time()
    facts = {
        "kind": kind,
        "ended_by": None if files.read(str(process_dir / files.STOP)) is None else "stop",
        "detail": detail,
        "started_at": started_at,
        "ended_at": now,
        "duration_s": 0.0 if started_at is None else max(0.0, now - started_at),
        "leftovers": survivors,
    }
    exit_record.write(str(process_dir), secret, facts)


def _started_at(process_dir: Path) -> float | None:
    at = _read_unverified(process_dir, files.RUN).get("started_at")
    if isinstance(at, int | float) and 0 < at <= time.time():
        return float(at)
    return None


def _read_unverified(process_dir: Path, name: str) -> dict[str, Any]:
    """Return the object in a file whose content is only displayed; empty if unreadable."""
    try:
        return _read_json(process_dir, name) or {}
    except UnreadableRecord:
        return {}


def _read_json(process_dir: Path, name: str, secret: bytes | None = None) -> dict[str, Any] | None:
    """Return the object in a file, None if it is missing.

    With a secret, a file without a valid signature raises UnreadableRecord.
    """
    data = files.read(str(process_dir / name))
    if secret is not None and (data is not None or os.path.lexists(process_dir / name)):
        data = files.verify_signature(secret, name, data or b"")
        if data is None:
            raise UnreadableRecord(f"another process wrote {name}")
    if data is None:
        return None
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableRecord(f"{name} cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise UnreadableRecord(f"{name} cannot be read: it is not a JSON object")
    return fields


def _validate(kind: type[R], fields: dict[str, Any], name: str) -> R:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise UnreadableRecord(f"{name} cannot be read: {format_problems(error, 1)}") from error
