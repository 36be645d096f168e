"""How much a run has done so far: what it wrote and the CPU time that it used."""

import contextlib
from pathlib import Path

import psutil

from kapelle.runner import cgroup, claims, rundir
from kapelle.runner.claims import UnreadableClaim


def output_bytes(process_dir: Path) -> int:
    return sum(rundir.size(str(process_dir / name)) for name in (rundir.OUT, rundir.ERR))


def cpu_s(process_dir: Path) -> float | None:
    """CPU seconds of all processes of a run; None when that cannot be told."""
    try:
        claim = claims.read(process_dir)
    except UnreadableClaim:
        return None
    if claim is None:
        return None
    leaf = cgroup.trusted_leaf(claim.cgroup, process_dir)
    if leaf is not None:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            lines = (leaf / "cpu.stat").read_text("ascii").splitlines()
            return int(next(x for x in lines if x.startswith("usage_usec")).split()[1]) / 1e6
    return _of_tree(claim.owner.pid)


def _of_tree(pid: int) -> float | None:
    """The same by looking at the processes that live now; one that has ended counts through its
    parent, which has waited for it."""
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.Error:
        return None
    total = 0.0
    for process in family:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
            total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total
