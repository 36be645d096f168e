"""What processes cost: memory as the kernel shares it out, and processor time."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import psutil

BARE_PYTHON = ["-I", "-S", "-c"]


def pss_bytes(pid: int) -> int:
    """Memory of a process, pages that it shares divided among those that share them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no Pss for process {pid}")


def peak_rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory any more")


def cpu_s(process: psutil.Process) -> float:
    """Processor seconds of a process and of the descendants that were waited for."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def run_and_wait(command: Sequence[str], env: dict[str, str] | None = None) -> float:
    """Processor seconds of one command and its descendants."""
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def started(command: Sequence[str], stdout: int | IO[bytes] = subprocess.DEVNULL) -> "Child":
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout)


Child = subprocess.Popen[bytes]
