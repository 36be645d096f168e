"""Many no-op tasks at once: how many a second, and what each costs."""

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.daemon import BenchDaemon, bearer, raw_connection, raw_post, running
from bench.processes import BARE_PYTHON, cpu_s, run_and_wait
from bench.report import Row, Run

_SUPERVISOR = [
    sys.executable,
    *BARE_PYTHON,
    "import os\npid = os.fork() or os.execvp('true', ['true'])\nos.waitpid(pid, 0)",
]
_TARGET_CPU_MS = 18
_SHAPES = ((50, 50), (200, 16))


@dataclass(frozen=True)
class _Bare:
    """A bare supervisor for each task, one after the other and four at once."""

    in_turn: float
    at_once: float
    cpu_ms: float


def measure(run: Run) -> list[Row]:
    return [row for tasks, slots in _SHAPES for row in _shape(run, tasks, slots)]


def _shape(run: Run, tasks: int, slots: int) -> list[Row]:
    rates, costs = [], []
    bare = [_bare(run.samples(60))]
    with running(run, max_attempts=slots) as daemon:
        for _ in range(1 if run.quick else 3):
            before = {"daemon": cpu_s(daemon.main), "spawner": cpu_s(daemon.spawner)}
            rates.append(tasks / _burst(daemon, tasks))
            time.sleep(0.2)  # the last shims are still being reaped
            after = {"daemon": cpu_s(daemon.main), "spawner": cpu_s(daemon.spawner)}
            costs.append({name: (after[name] - before[name]) / tasks * 1000 for name in after})
    bare.append(_bare(run.samples(60)))
    return _rows(f"burst of {tasks}, {slots} at a time", rates, costs, bare)


def _rows(
    name: str, rates: list[float], costs: list[dict[str, float]], bare: list[_Bare]
) -> list[Row]:
    in_turn = statistics.mean(found.in_turn for found in bare)
    at_once = statistics.mean(found.at_once for found in bare)
    cpu_ms = statistics.mean(found.cpu_ms for found in bare)
    ours = statistics.median(sum(cost.values()) for cost in costs)
    parts = {part: statistics.median(cost[part] for cost in costs) for part in costs[0]}
    supervisors = f"bare supervisors: {in_turn:.0f} in turn, {at_once:.0f} four at once"
    rate = statistics.median(rates)
    facts = {"bare_in_turn_s": in_turn, "bare_at_once_s": at_once, "cpu_ms": parts, "rates": rates}
    return [
        Row(name, rate, "tasks/s", in_turn, at_least=True, beside=supervisors, facts=facts),
        Row(f"{name}, CPU", ours, "ms/task", _TARGET_CPU_MS, beside=f"bare: {cpu_ms:.1f} ms"),
    ]


def _burst(daemon: BenchDaemon, tasks: int) -> float:
    """Seconds from the first request to the last completed task."""
    request = raw_post("/tasks", daemon.spec("noop"), bearer(daemon.home.socket))
    done = daemon.count("completed") + tasks
    connections = [raw_connection(daemon.home.socket) for _ in range(tasks)]
    begun = time.monotonic()
    for connection in connections:
        connection.sendall(request)
    for connection in connections:
        if not connection.recv(100).startswith(b"HTTP/1.1 201"):
            raise RuntimeError("a task was refused")
        connection.close()
    daemon.until("completed", done)
    return time.monotonic() - begun


def _bare(count: int) -> _Bare:
    begun = time.monotonic()
    cost = sum(run_and_wait(_SUPERVISOR) for _ in range(count))
    in_turn = count / (time.monotonic() - begun)
    begun = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: run_and_wait(_SUPERVISOR), range(count)))
    return _Bare(in_turn, count / (time.monotonic() - begun), cost / count * 1000)
