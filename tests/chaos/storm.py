"""Kills daemons and shims at random moments while tasks run, then asks what became of them."""

import http.client
import json
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.agent import expected_code, expected_output
from tests.e2e.support.instance import ApiError, Instance

_AGENT = Path(__file__).parent / "agent.py"


@dataclass(frozen=True)
class StormSize:
    """How much is started and how often what is killed."""

    tasks: int
    at_once: int
    daemon_kills: int
    shim_kills: int
    seed: int = 1


@dataclass
class Report:
    """What became of it all; every list but killed_shims must be empty."""

    seconds: float = 0.0
    daemon_kills: int = 0
    shim_kills: int = 0
    attempts: int = 0
    lost: int = 0
    unfinished: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    left_running: list[str] = field(default_factory=list)

    @property
    def problems(self) -> dict[str, list[str]]:
        names = ("unfinished", "unexplained", "repeated", "different", "left_running")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


class Storm:
    def __init__(self, directory: Path, size: StormSize) -> None:
        self.size = size
        self.directory = directory
        self.ledger = directory / "ledger"
        self.random = random.Random(size.seed)
        self.instance = Instance(
            directory / "home",
            KAPELLE_LIMITS__MAX_ATTEMPTS=str(size.at_once),
            KAPELLE_TASKS__GRACE_S="0.5",
        )
        self.killed_shims: set[str] = set()
        self.ids: dict[int, str] = {}
        self.report = Report()
        self._calm = threading.Event()

    def run(self) -> Report:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.ledger.touch()
        began = time.monotonic()
        try:
            self.instance.start()
            self._configure()
            submitting = threading.Thread(target=self._submit_all)
            submitting.start()
            self._rage()
            self._calm.set()
            submitting.join()
            self._await_ends()
            self._examine()
        finally:
            self._calm.set()
            self.instance.destroy()
        self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    def _configure(self) -> None:
        words = [sys.executable, "-I", "-S", str(_AGENT), "{prompt}"]
        script = 'exec "$0" "$1" "$2" "$3" $4'
        command = json.dumps(["/bin/sh", "-c", script, *words])
        done = self.instance.cli("config", "set", "agents.storm.command", command)
        assert done.returncode == 0, done.stderr

    def _seconds(self) -> float:
        """So long that the tasks last about as long as the killing does."""
        size = self.size
        mean = 2.0 * size.daemon_kills * size.at_once / size.tasks
        return self.random.uniform(0.0, 2.0 * mean)

    def _submit_all(self) -> None:
        for number in range(self.size.tasks):
            body = {
                "prompt": f"{number} {self._seconds():.2f} {self.ledger}",
                "directory": str(self.directory),
                "agent": "storm",
                "workspace": "in_place",
                "checks": ["true"] if number % 3 == 0 else [],
                "priority": f"P{number % 3}",
            }
            self.ids[number] = self._insist("POST", "/tasks", body, f"storm-{number}")["id"]

    def _insist(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """Ask until somebody answers; the key keeps a repeated question from counting twice."""
        headers = {"Idempotency-Key": key} if key else None
        while True:
            try:
                return self.instance.call(method, path, body, headers)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
            except ApiError as error:
                if error.status < 500:
                    raise
                time.sleep(0.05)

    def _rage(self) -> None:
        size = self.size
        shim_turns = set(self.random.sample(range(size.daemon_kills), size.shim_kills))
        owed = 0
        for turn in range(size.daemon_kills):
            if self.random.random() < 0.8:
                self.instance.await_ready()
                time.sleep(self.random.expovariate(2.0))
            else:
                time.sleep(self.random.uniform(0.0, 1.5))
            owed += turn in shim_turns
            # Where no attempt happens to run, the kill is owed to a later turn.
            while owed and self._kill_a_shim():
                owed -= 1
            self.instance.kill()
            self.report.daemon_kills += 1
            self.instance.spawn()
        while owed and self._kill_a_shim():
            owed -= 1

    def _kill_a_shim(self) -> bool:
        runs = list(self.instance.home.attempts.glob("attempt_*/run.json"))
        self.random.shuffle(runs)
        for path in runs:
            if (path.parent / "exit.json").exists():
                continue
            shim = json.loads(path.read_bytes())["shim"]
            try:
                os.kill(shim["pid"], signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.killed_shims.add(path.parent.name)
            self.report.shim_kills += 1
            return True
        return False

    def _await_ends(self) -> None:
        self.instance.await_ready()
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            counts = self._insist("GET", "/daemon")
            open_tasks = counts["queued"] + counts["running"]
            if not open_tasks and len(self.ids) == self.size.tasks:
                return
            time.sleep(0.2)

    def _examine(self) -> None:
        runs = self.ledger.read_text(encoding="ascii").split()
        self.report.repeated = sorted({run for run in runs if runs.count(run) > 1})
        for number, task_id in self.ids.items():
            task = self.instance.task(task_id)
            self.report.attempts += len(task["attempts"])
            if task["status"] not in {"completed", "failed"} or len(task["attempts"]) != 1:
                self.report.unfinished.append(f"{task_id}: {task['status']} {task['reason']}")
                continue
            self._examine_attempt(number, task)
        self.report.left_running = self._strangers()

    def _examine_attempt(self, number: int, task: Any) -> None:
        attempt = task["attempts"][0]
        output = self.instance.output(task["id"])
        expected = expected_output(number)
        if attempt["exit"]["kind"] == "lost":
            self.report.lost += 1
            if attempt["id"] not in self.killed_shims or not task["reason"]:
                self.report.unexplained.append(f"{task['id']}: {task['reason']}")
            if not expected.startswith(output):
                self.report.different.append(f"{task['id']}: its output is not a prefix")
            return
        code = expected_code(number)
        status = "failed" if code else "completed"
        if (attempt["exit"]["code"], task["status"], output) != (code, status, expected):
            self.report.different.append(
                f"{task['id']}: code {attempt['exit']} status {task['status']} "
                f"{len(output)} of {len(expected)} bytes"
            )
        if self.instance.output(task["id"], "err") != b"end of %d\n" % number:
            self.report.different.append(f"{task['id']}: standard error")

    def _strangers(self) -> list[str]:
        """Processes of this home other than the daemon and its spawner, after a moment's grace."""
        deadline = time.monotonic() + 10
        while True:
            daemon = self.instance.process
            assert daemon is not None
            children = {child.pid for child in psutil.Process(daemon.pid).children(recursive=True)}
            left = [p for p in self.instance.processes() if p.pid not in {daemon.pid, *children}]
            if not left or time.monotonic() > deadline:
                return [str(process) for process in left]
            time.sleep(0.2)
