"""A place in the cgroup v2 tree under which every run gets a leaf of its own."""

import hashlib
import os
from pathlib import Path

from kapelle.runner.subtree import remove_leaf

_ROOT_PREFIX = "kapelle-"
_LEAF_PREFIX = "process-"


def find_root(home: Path) -> Path | None:
    """A writable cgroup for all runs of this home; None where the system offers none."""
    own = _own_cgroup()
    if own is None:
        return None
    root = own / f"{_ROOT_PREFIX}{_digest(str(home))}"
    try:
        root.mkdir(exist_ok=True)
    except OSError:
        return None
    usable = (root / "cgroup.kill").exists() and os.access(own / "cgroup.procs", os.W_OK)
    return root if usable else None


def leaf(root: Path, process_dir: Path) -> Path:
    """Where the processes of one run belong."""
    return root / _leaf_name(process_dir)


def trusted_leaf(path: str | None, process_dir: Path) -> Path | None:
    """A leaf that a file in the process directory names, if it can only be the one of this run."""
    if path is None:
        return None
    claimed = Path(path)
    mount = _mount()
    if mount is None or ".." in claimed.parts or not claimed.is_relative_to(mount[0]):
        return None
    ours = claimed.name == _leaf_name(process_dir) and claimed.parent.name.startswith(_ROOT_PREFIX)
    return claimed if ours and claimed.is_dir() else None


def sweep(root: Path) -> None:
    """Remove the empty leaves that dead shims left; a busy one cannot be removed."""
    for stale in root.glob(f"{_LEAF_PREFIX}*"):
        if not is_populated(stale):
            remove_leaf(str(stale))


def is_populated(leaf: Path) -> bool:
    """Whether a process lives in a leaf or below it."""
    try:
        return "populated 1" in (leaf / "cgroup.events").read_text("ascii")
    except OSError:
        return False


def _leaf_name(process_dir: Path) -> str:
    return f"{_LEAF_PREFIX}{_digest(str(process_dir))}"


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]


def _own_cgroup() -> Path | None:
    mount = _mount()
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return None
    inside = next((line[3:] for line in lines if line.startswith("0::")), None)
    if mount is None or inside is None or ".." in inside:
        return None
    point, exposed = mount
    if not Path(inside).is_relative_to(exposed):
        return None
    return point / Path(inside).relative_to(exposed)


def _mount() -> tuple[Path, Path] | None:
    """Where cgroup v2 is mounted, and which part of it."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        fields, _, filesystem = line.partition(" - ")
        if filesystem.startswith("cgroup2 "):
            exposed, point = fields.split()[3:5]
            return Path(point), Path(exposed)
    return None
