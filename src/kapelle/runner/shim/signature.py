"""Signs the files by which a shim or the daemon witnesses a process; standard library only.

The key is the secret that the daemon made for this one process, stored before it was begun and
gave to its shim over their socket: whoever else writes such a file cannot sign it.
"""

import hmac

_FIELD = b', "signature": "'


def sign(secret: bytes, name: str, data: bytes) -> bytes:
    """The JSON object of a file of this name, with its signature as the last field."""
    digest = hmac.digest(secret, name.encode() + b"\0" + data, "sha256").hex()
    return data[:-1] + _FIELD + digest.encode() + b'"}'


def verified(secret: bytes, name: str, signed: bytes) -> bytes | None:
    """The object without its signature; None if it was not signed with this secret."""
    data = signed.rpartition(_FIELD)[0] + b"}"
    return data if hmac.compare_digest(sign(secret, name, data), signed) else None
