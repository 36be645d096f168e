"""Write the exit record of an execution; no other module writes one.

Standard library only.
"""

import contextlib
import json
import os
from collections.abc import Mapping

from . import files

# One encoder for all calls: it writes to far less memory in each forked process than json.dumps.
_encoder = json.JSONEncoder()


def write(process_dir: str, secret: bytes, facts: Mapping[str, object]) -> None:
    """Write the signed record durably: the result, the reason of a stop, and the output's size.

    A signed record that exists already is kept. A record without a valid signature was written by
    another process: it is renamed, and the new record has the kind `tampered`.
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
    if files.verify_signature(secret, files.EXIT, files.read(path) or b"") is None:
        detail = f"another process wrote {files.EXIT}"
        record |= {"kind": "tampered", "code": None, "signal": None, "detail": detail}
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, f"{path}.{os.getpid()}.forged")
        files.replace(path, files.sign(secret, files.EXIT, encode(record)), durable=True)


def encode(fields: Mapping[str, object]) -> bytes:
    """Return the fields as JSON."""
    return _encoder.encode(fields).encode()
