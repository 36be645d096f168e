"""From submitting a task to the agent's process running."""

import subprocess
import time
from contextlib import closing

from bench.daemon import Client, running
from bench.report import Row, Run, spread

# The shell's own clock: the stamp includes the start of bash here as in the bare loop.
_STAMP = ["bash", "--norc", "-c", "echo $EPOCHREALTIME"]
_TARGET_MS = 15
# Time for what follows an attempt's end, so that each sample finds an idle daemon.
_PAUSE_S = 0.05


def measure(run: Run) -> list[Row]:
    ours: list[float] = []
    bare: list[float] = []
    with running(run, {"stamp": _STAMP}) as daemon, closing(Client(daemon.home.socket)) as client:
        for number in range(run.samples(100) + 5):
            time.sleep(_PAUSE_S)
            begun = time.time()
            task = client.post("/tasks", daemon.spec("stamp"))
            ended = client.get(f"/tasks/{task['id']}/wait?timeout_s=30")
            if ended["status"] != "completed":
                raise RuntimeError(f"a task did not complete: {ended['reason']}")
            if number >= 5:
                ours.append(float(client.bytes("GET", f"/tasks/{task['id']}/output")) - begun)
                bare.append(_bare())
    found, limit = spread(ours), spread(bare)
    facts = {"ours": found, "bare": limit, "agent": _STAMP}
    middle, late = (f"bare fork and exec: {limit[name]:.1f} ms" for name in ("p50_ms", "p95_ms"))
    name = "submit → agent runs"
    return [
        Row(f"{name}, p50", found["p50_ms"], "ms", _TARGET_MS, beside=middle, facts=facts),
        Row(f"{name}, p95", found["p95_ms"], "ms", beside=late),
    ]


def _bare() -> float:
    begun = time.time()
    return float(subprocess.run(_STAMP, capture_output=True, check=True).stdout) - begun
