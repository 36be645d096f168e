"""How an execution ended: the only place where its exit record is written.

Standard library only.
"""

import contextlib
import json
import os
from collections.abc import Mapping

from . import files

# Kept at hand, it touches far less memory in each forked process than json.dumps.
_encoder = json.JSONEncoder()


def write(process_dir: str, secret: bytes, facts: Mapping[str, object]) -> None:
    """Leave the record durably: the facts, why it was stopped, and how much it printed.

    Whoever comes second leaves a signed record as it is. One that is there without a signature was
    written by somebody else: it is put aside, and the record says so instead of how it ended.
    """
    if facts["ended_by"] == "stop":
        reason = files.read(f"{process_dir}/{files.STOP}")
    else:
        reason = None
    record = {
        "protocol": files.PROTOCOL,
        **facts,
        "stop_reason": None if reason is None else reason.decode("utf-8", "replace"),
        "out_bytes": files.size(f"{process_dir}/{files.OUT}"),
        "err_bytes": files.size(f"{process_dir}/{files.ERR}"),
    }
    path = f"{process_dir}/{files.EXIT}"
    if files.publish(path, files.sign(secret, files.EXIT, encode(record)), durable=True):
        return
    if files.verified(secret, files.EXIT, files.read(path) or b"") is None:
        detail = f"somebody else wrote {files.EXIT}"
        record |= {"kind": "tampered", "code": None, "signal": None, "detail": detail}
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, f"{path}.{os.getpid()}.forged")
        files.replace(path, files.sign(secret, files.EXIT, encode(record)), durable=True)


def encode(fields: Mapping[str, object]) -> bytes:
    return _encoder.encode(fields).encode()
