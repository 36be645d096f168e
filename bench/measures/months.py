"""What thousands of tasks leave on the disk, a day after they ended."""

import os
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

from bench.daemon import BenchDaemon, Client
from bench.report import Row, Run
from kapelle.home import disk_use
from kapelle.workspaces.repository import count_loose_objects

_MOST_KB, _MOST_INODES = 5, 2
_DAY_S = 86_400
# So few are left loose.
_FEW_OBJECTS = 250
# Half of them work in place and leave output alone; the others change a file and are merged.
_WORK = ["sh", "-c", 'test -e README || exit 0; echo "$$" > "$(date +%N)-$$.txt"']


def measure(run: Run) -> list[Row]:
    count = 400 if run.quick else 5000
    repository = _repository(run.directory / "repository")
    daemon = BenchDaemon(run.directory / "home", {"work": _WORK}, 8)
    daemon.start()
    try:
        with closing(Client(daemon.home.socket)) as client:
            _perform(daemon, client, repository, 20)  # locks, shadows and the like are there
            before, refs = _left(daemon, repository), _refs(repository)
            begun = time.monotonic()
            _perform(daemon, client, repository, count)
        ended = _left(daemon, repository)
        daemon.kill()
        seconds = time.monotonic() - begun
        _move_clock(daemon)
        daemon.start()
        while any(entry.is_dir() for entry in os.scandir(daemon.home.attempts)):
            time.sleep(1)
        # Git's own upkeep may be under way already, and is not done twice at once.
        while count_loose_objects(repository / ".git" / "objects") > _FEW_OBJECTS:
            with closing(Client(daemon.home.socket)) as client:
                client.post("/prune", {})
            time.sleep(1)
    finally:
        daemon.destroy()
    after = _left(daemon, repository)
    kb, inodes = ((after[n] - before[n]) / count for n in (0, 1))
    name = f"{count:,} tasks, half of them merged, and a day of upkeep: each leaves"
    facts = {"before": before, "ended": ended, "after": after, "seconds": seconds}
    at_end = ((ended[n] - before[n]) / count for n in (0, 1))
    beside = "at their end {:.1f} KB, {:.1f} inodes".format(*_in_kb(*at_end))
    return [
        Row(name, kb / 1000, "KB", _MOST_KB, beside=beside, facts=facts),
        Row(name, inodes, "inodes", _MOST_INODES),
        Row(f"{count:,} tasks: refs that they leave", len(_refs(repository) - refs), "", 0),
    ]


def _in_kb(size: float, inodes: float) -> tuple[float, float]:
    return size / 1000, inodes


def _repository(path: Path) -> Path:
    path.mkdir()
    (path / "README").write_text("A repository.\n", encoding="utf-8")
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "First"]):
        author = ["-c", "user.name=Bench", "-c", "user.email=bench@localhost"]
        subprocess.run(["git", *author, *words], cwd=path, check=True)
    return path


def _perform(daemon: BenchDaemon, client: Client, repository: Path, count: int) -> None:
    """So many tasks to their end, and every second one merged."""
    done = daemon.count("completed")
    in_worktrees = []
    for number in range(count):
        if number % 2:
            client.post("/tasks", daemon.spec("work"))
        else:
            spec = {"prompt": "p", "directory": str(repository), "agent": "work"}
            in_worktrees.append(client.post("/tasks", spec)["id"])
    daemon.until("completed", done + count, limit_s=3600)
    client.close()  # the daemon has closed its end meanwhile; the next request connects anew
    for task_id in in_worktrees:
        client.post(f"/tasks/{task_id}/merge", {})


def _move_clock(daemon: BenchDaemon) -> None:
    """Have everything be a day older."""
    with closing(sqlite3.connect(daemon.home.database)) as connection:
        for table in ("tasks", "attempts"):
            shift = f"ended_at = ended_at - {_DAY_S * 1_000_000}"
            connection.execute(f"UPDATE {table} SET {shift}")
        connection.commit()


def _left(daemon: BenchDaemon, repository: Path) -> tuple[int, int]:
    """Bytes and inodes of all that tasks leave but rows; the files of a checkout are work."""
    home = daemon.home
    return disk_use(home.attempts, home.processes, home.worktrees, home.git, repository / ".git")


def _refs(repository: Path) -> set[str]:
    listed = subprocess.run(
        ["git", "for-each-ref", "--format=%(refname)"],
        cwd=repository, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return set(listed.stdout.split())
