"""Runs: what an iteration costs beside its agent, and what a thousand that wait cost."""

import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.daemon import BenchDaemon, Client, running
from bench.processes import cpu_s, pss_bytes
from bench.report import Row, Run

_RUNS = 1000
_ITERATIONS = 20


def iterations(run: Run) -> list[Row]:
    """A loop with an agent that does nothing, beside a bare task with the same check."""
    repository = _repository(run.directory / "repository")
    count = run.samples(_ITERATIONS)
    with running(run) as daemon, closing(Client(daemon.home.socket)) as client:
        rows = []
        for name, place in (("in place", str(daemon.home.root.parent)), ("in git", repository)):
            spec = {**daemon.spec("noop"), "directory": place}
            if name == "in git":
                spec["workspace"] = "worktree"
            alone = statistics.median(_task_s(client, spec) for _ in range(count))
            loop = _loop_s(client, spec, count) / count
            beside = f"a task with the check alone: {alone * 1000:.0f} ms"
            overhead = (loop - alone) * 1000
            facts = {"iteration_ms": loop * 1000, "task_ms": alone * 1000}
            figure = f"overhead of a run per iteration, {name}"
            rows.append(Row(figure, overhead, "ms", beside=beside, facts=facts))
    return rows


def queued(run: Run) -> list[Row]:
    """A thousand runs behind one busy slot: memory, idle processor time, recovery."""
    count = 100 if run.quick else _RUNS
    with running(run, {"sleep": ["sleep", "600"]}, max_attempts=1) as daemon:
        with closing(Client(daemon.home.socket)) as client:
            before = pss_bytes(daemon.main.pid)
            client.post("/tasks", daemon.spec("sleep"))
            body = {"pattern": "loop", "spec": _loop_spec(daemon.spec("noop"), 3)}
            for _ in range(count):
                client.post("/runs", body)
        under_way = _until_steady(daemon, count)
        memory = (pss_bytes(daemon.main.pid) - before) / 1e6
        percent = _idle_percent(daemon, 4 if run.quick else 10)
        daemon.kill()
        begun = time.monotonic()
        daemon.spawn_cold()
        _until_steady(daemon, count)
        recovery = time.monotonic() - begun
    name = f"{count:,} queued runs"
    facts = {"under_way": under_way}
    beside = f"{under_way} of them under way, each with a queued task"
    return [
        Row(f"{name}, memory", memory, "MB", beside=beside, facts=facts),
        Row(f"{name}, idle CPU", percent, "%", beside="the daemon alone: ≤ 2 %"),
        Row(f"{name}, all found again after kill -9", recovery, "s"),
    ]


def _loop_spec(spec: dict[str, Any], count: int) -> dict[str, Any]:
    return {**spec, "until": ["false"], "max_iterations": count, "convergence": 0}


def _loop_s(client: Client, spec: dict[str, Any], count: int) -> float:
    run = client.post("/runs", {"pattern": "loop", "spec": _loop_spec(spec, count)})
    while run["status"] not in {"completed", "failed", "cancelled"}:
        run = client.get(f"/runs/{run['id']}/wait?timeout_s=50")
    return float(run["spent"]["seconds"])


def _task_s(client: Client, spec: dict[str, Any]) -> float:
    begun = time.monotonic()
    task = client.post("/tasks", {**spec, "checks": ["false"]})
    while task["status"] != "failed":
        task = client.get(f"/tasks/{task['id']}/wait?timeout_s=50")
    return time.monotonic() - begun


def _until_steady(daemon: BenchDaemon, count: int) -> int:
    """Wait until every run is either under way with its task queued, or waits for its turn."""
    for _ in _patiently():
        try:
            found = daemon.get("/daemon")
        except OSError:
            continue
        under_way: int = found["runs_under_way"]
        is_steady = under_way + found["runs_queued"] == count and found["queued"] == under_way
        if under_way and is_steady:
            return under_way
    raise TimeoutError("the runs did not come to rest")


def _patiently() -> Iterator[None]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)


def _idle_percent(daemon: BenchDaemon, seconds: float) -> float:
    time.sleep(2)
    before, begun = cpu_s(daemon.main), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(daemon.main) - before) / (time.monotonic() - begun) * 100


def _repository(path: Path) -> str:
    path.mkdir(parents=True)
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["-c", "user.name=b", "-c", "user.email=b@b", "commit", "-q", "--allow-empty", "-m", "s"],
    ):
        subprocess.run(["git", *arguments], cwd=path, check=True)
    return str(path)
