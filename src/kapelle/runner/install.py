"""The content-addressed copy from which the spawner and its shims run."""

import hashlib
import os
from pathlib import Path

FILES = (
    "child.py",
    "failpoints.py",
    "libc.py",
    "procs.py",
    "redactor.py",
    "request.py",
    "rundir.py",
    "shim.py",
    "signals.py",
    "spawner.py",
    "streams.py",
    "subtree.py",
    "supervisor.py",
)


def install(home: Path) -> Path:
    """Copy the stand-alone modules below home, once per content; returns the spawner's path."""
    here = Path(__file__).parent
    contents = {name: (here / name).read_bytes() for name in FILES}
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    target = home / "runner" / digest.hexdigest()[:16]
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in contents.items():
        _put(target / name, content)
    return target / "spawner.py"


def _put(path: Path, content: bytes) -> None:
    # A power cut may have left a copy with holes, which its name would not show.
    if path.is_file() and path.read_bytes() == content:
        return
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.rename(path)
