"""The machine that the figures were taken on."""

import os
import platform
from pathlib import Path
from typing import Any

import psutil


def facts(directory: Path) -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": platform.release(),
        "system": platform.system(),
        "python": platform.python_version(),
        "filesystem": _filesystem(directory),
        "load_at_start": [round(load, 2) for load in os.getloadavg()],
    }


def sentence(found: dict[str, Any]) -> str:
    load = found["load_at_start"][0]
    return (
        f"{found['cpu']}, {found['cores']} cores, {found['memory_gb']} GB, {found['system']}"
        f" {found['kernel']}, {found['filesystem']}, Python {found['python']};"
        f" load {load} at the start"
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _filesystem(directory: Path) -> str:
    """The kind of filesystem below a directory, on which every fsync depends."""
    mounts = [
        (len(part.mountpoint), part.fstype)
        for part in psutil.disk_partitions(all=True)
        if directory.resolve().is_relative_to(part.mountpoint)
    ]
    return max(mounts)[1] if mounts else "unknown"
