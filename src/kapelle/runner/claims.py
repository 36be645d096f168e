"""Who a process directory belongs to: a shim, or the daemon that stopped it before it began."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from kapelle.runner import identity, rundir
from kapelle.runner.identity import Identity


class UnreadableClaim(ValueError):
    """The claim is there, but it is not one that we wrote."""


@dataclass(frozen=True)
class Claim:
    """The content of the claim file."""

    kind: Literal["shim", "daemon"]
    owner: Identity
    cgroup: str | None
    detail: str | None


def read(process_dir: Path) -> Claim | None:
    """Who claims a process directory, if anybody; UnreadableClaim if that makes no sense."""
    data = rundir.read(str(process_dir / rundir.CLAIM))
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


def exists(process_dir: Path) -> bool:
    return (process_dir / rundir.CLAIM).exists()


def take(process_dir: Path, detail: str | None) -> bool:
    """Claim a directory for the daemon, so that no shim will execute it; False if it is taken."""
    me = identity.current(os.getpid())
    assert me is not None
    fields = {"kind": "daemon", **asdict(me), "detail": detail}
    path = str(process_dir / rundir.CLAIM)
    return rundir.publish(path, json.dumps(fields).encode(), durable=False)
