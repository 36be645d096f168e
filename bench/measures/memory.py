"""What one running attempt costs in memory, its agent aside."""

import sys
import time
from contextlib import closing

from bench.daemon import BenchDaemon, Client, running
from bench.processes import BARE_PYTHON, pss_bytes, started
from bench.report import Row, Run

_ATTEMPTS = 50
_TARGET_MB = 1.5


def measure(run: Run) -> list[Row]:
    with running(run, {"sleep": ["sleep", "60"]}, max_attempts=_ATTEMPTS) as daemon:
        before = _ours(daemon)
        with closing(Client(daemon.home.socket)) as client:
            for _ in range(_ATTEMPTS):
                client.post("/tasks", daemon.spec("sleep"))
        daemon.until("running", _ATTEMPTS)
        _until_agents_run(daemon)
        after = _ours(daemon)
    growth = {name: (after[name] - before[name]) / _ATTEMPTS / 1e6 for name in after}
    bare = _bare() / 1e6
    facts = {"mb_per_attempt": growth, "bare_mb": bare}
    beside = f"a sleeping bare python: {bare:.1f} MB"
    total = sum(growth.values())
    return [Row("memory per attempt", total, "MB", _TARGET_MB, beside=beside, facts=facts)]


def _ours(daemon: BenchDaemon) -> dict[str, int]:
    return {
        "daemon": pss_bytes(daemon.main.pid),
        "spawner": pss_bytes(daemon.spawner.pid),
        "shims": sum(pss_bytes(shim.pid) for shim in daemon.shims()),
    }


def _until_agents_run(daemon: BenchDaemon) -> None:
    """Once every shim has an agent, none is still between its fork and its quiet life."""
    deadline = time.monotonic() + 30
    while sum(len(shim.children()) for shim in daemon.shims()) < _ATTEMPTS:
        if time.monotonic() > deadline:
            raise TimeoutError("the agents did not start")
        time.sleep(0.1)
    time.sleep(1)


def _bare() -> float:
    """Mean memory of as many interpreters that only sleep."""
    command = [sys.executable, *BARE_PYTHON, "import time; time.sleep(60)"]
    children = [started(command) for _ in range(_ATTEMPTS)]
    try:
        time.sleep(2)
        return sum(pss_bytes(child.pid) for child in children) / _ATTEMPTS
    finally:
        for child in children:
            child.kill()
            child.wait()
