"""A gibibyte of output: kept whole, in bounded memory, at the speed of a copy."""

import hashlib
import os
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.daemon import BenchDaemon, Client, running
from bench.processes import peak_rss_bytes
from bench.report import Row, Run

_BLOCK = 16 << 20
_PAGE = 8_000_000
_TARGET_SHIM_MB = 20
_TARGET_GROWTH_MB = 50


@dataclass
class _Peaks:
    before: int
    shim: int = 0
    daemon: int = 0

    def look(self, daemon: BenchDaemon) -> None:
        self.daemon = max(self.daemon, daemon.main.memory_info().rss)
        for shim in daemon.shims():
            try:
                self.shim = max(self.shim, peak_rss_bytes(shim.pid))
            except (ProcessLookupError, FileNotFoundError, psutil.NoSuchProcess):
                continue


def measure(run: Run) -> list[Row]:
    times = 16 if run.quick else 64
    block = os.urandom(_BLOCK)
    (run.directory / "block").write_bytes(block)
    script = f"for i in $(seq {times}); do cat {run.directory}/block; done"
    command = ["sh", "-c", script]
    bare_s = _bare(command, run.directory / "copy")
    with running(run, {"much": command}) as daemon, closing(Client(daemon.home.socket)) as client:
        peaks = _Peaks(daemon.main.memory_info().rss)
        begun = time.monotonic()
        task_id = client.post("/tasks", daemon.spec("much"))["id"]
        while client.get(f"/tasks/{task_id}")["status"] in {"queued", "running"}:
            peaks.look(daemon)
            time.sleep(0.05)
        ours_s = time.monotonic() - begun
        got, length = _digest(client, task_id, daemon, peaks)
    wanted = hashlib.sha256()
    for _ in range(times):
        wanted.update(block)
    same = got == wanted.hexdigest() and length == times * _BLOCK
    return _rows(times * _BLOCK, ours_s, bare_s, peaks, same)


def _rows(size: int, ours_s: float, bare_s: float, peaks: _Peaks, same: bool) -> list[Row]:
    name = f"{size / 2**30:g} GiB of output"
    growth = max(0, peaks.daemon - peaks.before) / 1e6
    speed, copy = size / ours_s / 1e6, size / bare_s / 1e6
    return [
        Row(f"{name}, peak of the shim", peaks.shim / 1e6, "MB", _TARGET_SHIM_MB),
        Row(f"{name}, growth of the daemon", growth, "MB", _TARGET_GROWTH_MB),
        Row(f"{name}, identical by sha256", float(same), "", 1, at_least=True),
        Row(f"{name}, speed", speed, "MB/s", beside=f"the same into a file: {copy:.0f} MB/s"),
    ]


def _bare(command: list[str], target: Path) -> float:
    """The same command into a file, synced as our logs are."""
    begun = time.monotonic()
    with target.open("wb") as file:
        subprocess.run(command, stdout=file, check=True)
        os.fsync(file.fileno())
    seconds = time.monotonic() - begun
    target.unlink()
    return seconds


def _digest(client: Client, task_id: str, daemon: BenchDaemon, peaks: _Peaks) -> tuple[str, int]:
    """Hash of the output as the API gives it, page by page."""
    digest, offset = hashlib.sha256(), 0
    while page := client.bytes("GET", f"/tasks/{task_id}/output?offset={offset}&limit={_PAGE}"):
        digest.update(page)
        offset += len(page)
        peaks.look(daemon)
    return digest.hexdigest(), offset
