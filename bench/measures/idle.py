"""A daemon that has nothing to do: how soon it is ready, and what it costs to have it."""

import statistics
import time

from bench.bare import bare_server, until_answered
from bench.daemon import BenchDaemon, running
from bench.processes import cpu_s, pss_bytes
from bench.report import Row, Run

_TARGET_READY_S = 0.9
_TARGET_PSS_MB = 75
_TARGET_CPU_PERCENT = 0.4


def ready(run: Run) -> list[Row]:
    """From the start of the process to its first answer; the first start makes the databases."""
    ours, bare = [], []
    daemon = BenchDaemon(run.directory / "home", {}, 4)
    for _ in range(3 if run.quick else 6):
        try:
            begun = time.monotonic()
            daemon.spawn_cold()
            until_answered(daemon.home.socket, "/healthz")
            ours.append(time.monotonic() - begun)
            daemon.stop()
        finally:
            daemon.destroy()
        with bare_server(run.directory) as server:
            bare.append(server.ready_s)
    beside = f"bare FastAPI: {statistics.median(bare):.2f} s"
    return [
        Row("daemon ready, first start", ours[0], "s", _TARGET_READY_S, beside=beside),
        Row("daemon ready", statistics.median(ours[1:]), "s", _TARGET_READY_S, beside=beside),
    ]


def idle(run: Run) -> list[Row]:
    """Memory and processor time of the daemon with its spawner."""
    seconds = 4 if run.quick else 10
    with running(run) as daemon, bare_server(run.directory) as server:
        time.sleep(3)
        ours = [daemon.main, daemon.spawner]
        before, begun = sum(cpu_s(process) for process in ours), time.monotonic()
        time.sleep(seconds)
        spent = sum(cpu_s(process) for process in ours) - before
        percent = spent / (time.monotonic() - begun) * 100
        parts = {"daemon": pss_bytes(ours[0].pid) / 1e6, "spawner": pss_bytes(ours[1].pid) / 1e6}
        bare = pss_bytes(server.pid) / 1e6
    memory = sum(parts.values())
    beside = f"bare FastAPI: {bare:.0f} MB"
    return [
        Row("idle memory (PSS)", memory, "MB", _TARGET_PSS_MB, beside=beside, facts=parts),
        Row("idle CPU", percent, "%", _TARGET_CPU_PERCENT, facts={"seconds": seconds}),
    ]
