"""Find and kill all processes of one execution, and measure their CPU time."""

import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]

from kapelle.runner.process_dir import read_claim_unverified
from kapelle.runner.shim import files, tree
from kapelle.runner.shim.files import MARKER
from kapelle.runner.shim.tree import kill_leaf, remove_leaf

_ROOT_PREFIX = "kapelle-"
_LEAF_PREFIX = "process-"
_PAUSE_S = 0.01


def find_root(home: Path) -> Path | None:
    """Return a writable cgroup for all processes of this home; None if the system has none."""
    own = find_own_cgroup()
    if own is None:
        return None
    root = own / f"{_ROOT_PREFIX}{_hash_text(str(home))}"
    try:
        root.mkdir(exist_ok=True)
    except OSError:
        return None
    # Moving a process needs the right to write to the common ancestor of both cgroups.
    usable = (root / "cgroup.kill").exists() and os.access(own / "cgroup.procs", os.W_OK)
    return root if usable else None


def leaf(root: Path, process_dir: Path) -> Path:
    """Return the cgroup for the processes of one execution."""
    return root / f"{_LEAF_PREFIX}{_hash_text(str(process_dir))}"


def verify_leaf(path: str | None, process_dir: Path) -> Path | None:
    """Return the leaf that a process directory names, if it can only be its own leaf.

    An agent can write into its process directory, and must not make Kapelle kill other processes.
    """
    if path is None:
        return None
    claimed_leaf = Path(path)
    mount = _find_mount()
    if mount is None or ".." in claimed_leaf.parts or not claimed_leaf.is_relative_to(mount[0]):
        return None
    is_ours = claimed_leaf == leaf(claimed_leaf.parent, process_dir)
    is_ours = is_ours and claimed_leaf.parent.name.startswith(_ROOT_PREFIX)
    if is_ours and claimed_leaf.is_dir():
        return claimed_leaf
    return None


def sweep(root: Path) -> None:
    """Remove the empty leaves of dead shims; a leaf with processes cannot be removed."""
    for stale in root.glob(f"{_LEAF_PREFIX}*"):
        if not is_populated(stale):
            remove_leaf(str(stale))


def is_populated(leaf: Path) -> bool:
    """Tell whether a process lives in a leaf or below it."""
    try:
        return "populated 1" in (leaf / "cgroup.events").read_text("ascii")
    except OSError:
        return False


def _hash_text(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:16]


def find_own_cgroup() -> Path | None:
    """Return the cgroup v2 directory of this process; None if there is none."""
    mount = _find_mount()
    lines = _read_lines("/proc/self/cgroup")
    inside = next((line[3:] for line in lines if line.startswith("0::")), None)
    if mount is None or inside is None or ".." in inside:
        return None
    point, exposed_root = mount
    is_there = Path(inside).is_relative_to(exposed_root)
    if is_there:
        return point / Path(inside).relative_to(exposed_root)
    return None


def _find_mount() -> tuple[Path, Path] | None:
    """Return the mount point of cgroup v2, and the part of the hierarchy mounted there."""
    for line in _read_lines("/proc/self/mountinfo"):
        fields, _, filesystem = line.partition(" - ")
        if filesystem.startswith("cgroup2 "):
            exposed_root, point = fields.split()[3:5]
            return Path(point), Path(exposed_root)
    return None


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("utf-8").splitlines()
    except OSError:
        return []


def kill_tree(process_dir: Path, leaf: Path | None) -> int:
    """Kill every process of an execution; return how many survived 10 seconds.

    Processes are found by their cgroup, and by the variable in their environment that names the
    process directory.
    """
    limit = time.monotonic() + tree.KILL_LIMIT_S
    while True:
        if leaf is not None:
            kill_leaf(str(leaf))
        # Found by their environment as well, because a process may have left the cgroup.
        survivors = find_marked_processes(process_dir)
        for pid, start in survivors:
            tree.send(pid, start, signal.SIGKILL)
        if not survivors and not (leaf is not None and is_populated(leaf)):
            break
        if time.monotonic() > limit:
            return len(survivors)
        time.sleep(_PAUSE_S)
    if leaf is not None:
        remove_leaf(str(leaf))
    return 0


def find_marked_processes(process_dir: Path) -> list[tuple[int, int]]:
    """Return pid and start time of the processes whose environment names the directory."""
    if tree.LINUX:
        pids = tree.list_pids()
    else:
        pids = psutil.pids()
    # The start time is read before the environment, and compared again before any signal is sent.
    start_times = [(pid, tree.start_time(pid)) for pid in pids if pid != os.getpid()]
    return [
        (pid, start)
        for pid, start in start_times
        if start is not None and _is_marked(pid, process_dir)
    ]


def _is_marked(pid: int, process_dir: Path) -> bool:
    try:
        if tree.LINUX:
            mark = MARKER.encode() + b"=" + os.fsencode(process_dir)
            return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return bool(psutil.Process(pid).environ().get(MARKER) == str(process_dir))
    except (OSError, psutil.Error):
        return False


def count_output_bytes(process_dir: Path) -> int:
    """Return how many bytes an execution has written so far."""
    return sum(files.size(str(process_dir / name)) for name in (files.OUT, files.ERR))


def read_cpu_seconds(process_dir: Path) -> float | None:
    """Return the CPU seconds of all processes of an execution; None if unknown."""
    claim = read_claim_unverified(process_dir)
    if claim is None:
        return None
    leaf = verify_leaf(claim.cgroup, process_dir)
    if leaf is not None:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = (leaf / "cpu.stat").read_text("ascii").splitlines()
            return int(next(x for x in lines if x.startswith("usage_usec")).split()[1]) / 1e6
    return _read_cpu_seconds_of_living(claim.owner.pid)


def _read_cpu_seconds_of_living(pid: int) -> float | None:
    """Return the CPU seconds of a process and its descendants.

    A dead descendant counts through its parent.
    """
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return None
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
            total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total
