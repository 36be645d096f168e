"""One daemon of its own: start it, kill it, talk to it, and leave nothing of it behind."""

import contextlib
import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from kapelle.home import Home
from kapelle.runner import process_tree
from kapelle.store.database import Database, sqlite_url
from kapelle.store.migrate import migrate
from tests.daemons import ForkedProcess, daemon_factory

_FINAL = {"completed", "failed", "cancelled"}


class ApiError(Exception):
    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("kapelle", timeout=timeout)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def pauses(timeout_s: float) -> Iterator[None]:
    """For a loop that asks until the time is over: who asks too often keeps the daemon busy."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.02
    while time.monotonic() < deadline:
        yield
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.1)


@cache
def _empty_database() -> bytes:
    """A database with all tables, which a new daemon would spend a third of its start on."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "kapelle.db")
        database = Database(sqlite_url(path))
        migrate(database.engine)
        database.close()
        return path.read_bytes()


def _mentions(pid: int, mark: bytes) -> bool:
    """Whether the environment or the words of a process have it; a zombie has neither."""
    with contextlib.suppress(OSError):
        place = Path("/proc", str(pid))
        return any(mark in (place / name).read_bytes() for name in ("environ", "cmdline"))
    return False


def user_home(directory: Path) -> Path:
    """The home of the person whose daemon has its own in a directory of a test."""
    made = directory.with_name(f"{directory.name}-user")
    made.mkdir(parents=True, exist_ok=True)
    return made


class Instance:
    """A daemon in a home of its own. Settings are given as KAPELLE_SECTION__KEY variables."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = Home(home)
        # Beside the directories of the test: in a person's home no work is done in place.
        self.user_home = user_home(home.parent)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.user_home),
            "LANG": "C.UTF-8",
            "KAPELLE_HOME": str(home),
            "KAPELLE_LIMITS__MAX_LOAD_PER_CORE": "0",
            "KAPELLE_TASKS__GRACE_S": "1",
            # Most checks of tests look at nothing; tests of proofs ask for them.
            "KAPELLE_TASKS__PROVE": "never",
            # What tests put into .kapelle is theirs; tests of trust take this away.
            "KAPELLE_TRUST": "all",
            # KAPELLE_CONFINE__LEVEL=auto runs any test confined.
            **{name: os.environ[name] for name in os.environ if name.startswith("KAPELLE_CONFINE")},
            **settings,
        }
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def spawn(self, *arguments: str, **extra: str) -> ForkedProcess:
        """Start a daemon from a warm process without waiting for it; the one before must have
        ended."""
        if self.process is not None:
            self.process.wait(30)
        self.home.root.mkdir(parents=True, exist_ok=True)
        known = self.home.info.exists() or self.home.database.exists()
        if not known and "KAPELLE_DATABASE_URL" not in self.env:
            self.home.database.write_bytes(_empty_database())
        self._await_lock()
        process = daemon_factory().start_daemon({**self.env, **extra}, self.home.log, arguments)
        self.process = process
        return process

    def spawn_cold(self, *arguments: str, **extra: str) -> subprocess.Popen[bytes]:
        """Start a daemon as a person's machine does, in a new interpreter."""
        self.home.root.mkdir(parents=True, exist_ok=True)
        with self.home.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "kapelle.daemon", *arguments],
                env={**self.env, **extra},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        self.process = process
        return process

    def _await_lock(self) -> None:
        """What a daemon was forking when it was killed holds its lock for another moment."""
        with self.home.lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)

    def await_death(self, timeout_s: float = 60) -> None:
        """Return when the daemon has died at its failpoint."""
        assert self.process is not None
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not die:\n{self.log_tail()}") from None

    def start(self, **extra: str) -> None:
        self.spawn(**extra)
        self.await_ready()

    def await_ready(self, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                self.get("/healthz")
                return
            except (OSError, http.client.HTTPException):
                if self.process is not None and self.process.poll() is not None:
                    break
                time.sleep(0.02)
        raise AssertionError(f"no daemon came up:\n{self.log_tail()}")

    def kill(self) -> None:
        """kill -9, as the out-of-memory killer or an impatient person would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)

    def destroy(self) -> None:
        """End the daemon and every process that carries this home in its environment."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        deadline = time.monotonic() + 20
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            time.sleep(0.02)
        self._remove_cgroups()

    def _remove_cgroups(self) -> None:
        root = process_tree.find_root(self.home.root)
        if root is None:
            return
        # What cleared its environment is still in there.
        (root / "cgroup.kill").write_text("1", encoding="ascii")
        deadline = time.monotonic() + 10
        while process_tree.is_populated(root) and time.monotonic() < deadline:
            time.sleep(0.02)
        process_tree.sweep(root)
        root.rmdir()

    def processes(self) -> list[psutil.Process]:
        """Every live process that belongs to this home."""
        found = []
        mark = str(self.home.root)
        for pid in psutil.pids():
            if pid == os.getpid() or not _mentions(pid, mark.encode()):
                continue
            try:
                process = psutil.Process(pid)
                environ = process.environ()
                words = process.cmdline()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            own = environ.get("KAPELLE_HOME") == mark
            run = environ.get("KAPELLE_RUN_DIR", "").startswith(mark + "/")
            if own or run or any(word.startswith(mark + "/runner/") for word in words):
                found.append(process)
        return found

    def log_tail(self) -> str:
        return self.home.log.read_text(encoding="utf-8", errors="replace")[-4000:]

    @property
    def bearer(self) -> dict[str, str]:
        """The header that carries the token of this home, once a daemon has made one."""
        try:
            return {"Authorization": f"Bearer {self.home.token.read_text(encoding='ascii')}"}
        except FileNotFoundError:
            return {}

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = 60,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = UnixConnection(self.home.socket, timeout_s)
        try:
            data = None if body is None else json.dumps(body).encode()
            kind = {"Content-Type": "application/json"} if data is not None else {}
            target = path if path.startswith("/healthz") else f"/api/v1{path}"
            connection.request(method, target, data, self.bearer | kind | (headers or {}))
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Any:
        response, data = self.request(method, path, body, headers)
        if response.status >= 400:
            raise ApiError(response.status, json.loads(data))
        return json.loads(data) if data else None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, body)

    def submit(self, prompt: str, directory: Path | str = "/tmp", **spec: Any) -> str:
        values = {"prompt": prompt, "directory": str(directory), "agent": "rehearsal", **spec}
        around = (Path(directory), *Path(directory).parents)
        if "base" not in spec and not any((place / ".git").exists() for place in around):
            values.setdefault("workspace", "in_place")
        return str(self.post("/tasks", values)["id"])

    def play(self, steps: str, directory: Path | str = "/tmp", **spec: Any) -> str:
        """Submit a rehearsal whose part is given as TOML `[[do]]` steps."""
        return self.submit(f"Play.\n```rehearsal\n{steps}\n```\n", directory, **spec)

    def task(self, task_id: str) -> Any:
        return self.get(f"/tasks/{task_id}")

    def wait(self, task_id: str, timeout_s: float = 60) -> Any:
        """The task when it has ended or waits for a person."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            task = self.get(f"/tasks/{task_id}/wait?timeout_s=5")
            if task["status"] in _FINAL or task["waiting_for"] == "input":
                return task
        raise AssertionError(f"{task_id} did not end: {task}\n{self.log_tail()}")

    def wait_for_status(self, task_id: str, status: str, timeout_s: float = 30) -> Any:
        for _ in pauses(timeout_s):
            task = self.task(task_id)
            if task["status"] == status:
                return task
        raise AssertionError(f"{task_id} never was {status}: {task}")

    def output(self, task_id: str, stream: str = "out", attempt: int | None = None) -> bytes:
        """Every byte of a stream, read in pages."""
        found, offset = [], 0
        number = f"&attempt={attempt}" if attempt else ""
        while True:
            path = f"/tasks/{task_id}/output?stream={stream}&offset={offset}&limit=8000000{number}"
            response, data = self.request("GET", path)
            assert response.status == 200, data
            found.append(data)
            offset = int(response.headers["X-Next-Offset"])
            if not data:
                return b"".join(found)

    def cli(
        self,
        *arguments: str,
        input: str | None = None,
        check: bool = False,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run the real command line against this home."""
        done = daemon_factory().run_command(arguments, self.env, cwd or "/", input)
        if check:
            done.check_returncode()
        return done
