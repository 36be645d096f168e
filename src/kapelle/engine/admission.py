"""Whether this machine has room for one more attempt, and if not, why."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from kapelle.settings import Limits, default_max_attempts

_MB = 1_000_000


@dataclass(frozen=True)
class Reading:
    """The state of the machine at one moment."""

    free_memory: int
    free_disk: int
    load: float
    cores: int
    memory: int


def read_machine(path: Path) -> Reading:
    memory = psutil.virtual_memory()
    return Reading(
        free_memory=memory.available,
        free_disk=psutil.disk_usage(str(path)).free,
        load=os.getloadavg()[0],
        cores=psutil.cpu_count() or 1,
        memory=memory.total,
    )


def max_attempts(limits: Limits, reading: Reading) -> int:
    return limits.max_attempts or default_max_attempts(reading.cores, reading.memory)


def held(limits: Limits, reading: Reading, running: int) -> str | None:
    """Why no attempt may start now, as a sentence a person can act on; None when one may."""
    slots = max_attempts(limits, reading)
    if running >= slots:
        return f"waits for a free slot: {running} of {slots} attempts are running"
    if reading.free_disk < limits.min_free_disk_mb * _MB:
        return (
            f"the disk is low: {reading.free_disk // _MB} MB free, "
            f"limits.min_free_disk_mb is {limits.min_free_disk_mb}"
        )
    # With nothing running, waiting for memory or load of other programs could last for ever.
    if not running:
        return None
    if reading.free_memory < limits.min_free_memory_mb * _MB:
        return (
            f"memory is low: {reading.free_memory // _MB} MB free, "
            f"limits.min_free_memory_mb is {limits.min_free_memory_mb}"
        )
    ceiling = limits.max_load_per_core * reading.cores
    if ceiling and reading.load > ceiling:
        return (
            f"the machine is busy: load {reading.load:.1f}, "
            f"limits.max_load_per_core allows {ceiling:.1f}"
        )
    return None
