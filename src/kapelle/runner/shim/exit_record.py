"""How an execution ended: the only place where its exit record is written.

Standard library only.
"""

import json
from collections.abc import Mapping

from . import files

# Kept at hand, it touches far less memory in each forked process than json.dumps.
_encoder = json.JSONEncoder()


def write(process_dir: str, facts: Mapping[str, object], *, is_supervisor: bool) -> None:
    """Leave the record durably: the facts, why it was stopped, and how much it printed.

    Whoever comes second leaves it as it is. Only the supervisor overrules what is there: the claim
    makes its record the true one, whatever the agent may have put there, unless the daemon has
    concluded already that the execution is lost.
    """
    reason = files.read(f"{process_dir}/{files.STOP}") if facts["ended_by"] == "stop" else None
    record = {
        "protocol": files.PROTOCOL,
        **facts,
        "stop_reason": None if reason is None else reason.decode("utf-8", "replace"),
        "out_bytes": files.size(f"{process_dir}/{files.OUT}"),
        "err_bytes": files.size(f"{process_dir}/{files.ERR}"),
    }
    path, data = f"{process_dir}/{files.EXIT}", encode(record)
    if not files.publish(path, data, durable=True) and is_supervisor and not _says_lost(path):
        files.replace(path, data, durable=True)


def encode(fields: Mapping[str, object]) -> bytes:
    return _encoder.encode(fields).encode()


def _says_lost(path: str) -> bool:
    try:
        found = json.loads(files.read(path) or b"null")
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("kind") == "lost"
