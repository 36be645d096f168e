"""Each run's history as plain files, for `tail -f` and scripts: events.jsonl, status.json,
result.json in the run's directory."""

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kapelle.domain.errors import NotFound, Unavailable
from kapelle.domain.run import Run
from kapelle.domain.states import RUN_FINAL
from kapelle.domain.task import Event
from kapelle.engine.background import TRANSIENT_ERRORS, repeat, with_retries
from kapelle.engine.parts import Parts
from kapelle.home import read_own
from kapelle.runner.shim import files
from kapelle.store import events, runs

_log = logging.getLogger("kapelle.runs")
_LOOK_S = 5.0
_PAUSE_S = 0.1
_PART = 65_536
# The last line is looked for in so much of the end of a file.
_MOST_READ = 32_000_000
# Not waiting for a reader, should somebody have put a pipe there.
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK


class RunMirror:
    """Writes what the database knows; a crash in the middle leaves no line out and none twice."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._position = parts.home.runs / "position"
        self._seq: int | None = None

    async def run(self) -> None:
        """Mirror until cancelled; a failing pass is logged and made again."""
        await repeat(_log, with_retries(self._pass), self._parts.db.watch(), _LOOK_S)

    async def _pass(self) -> None:
        while True:
            if self._seq is None:
                self._seq = await self._left_off()
            changes, last_seq = await self._parts.db.read(events.list_of_runs, self._seq)
            for run_id in dict.fromkeys(run_id for run_id, _ in changes):
                with _log_failure(self._parts.home.runs / run_id):
                    await self._mirror(run_id)
            if last_seq == self._seq:
                break
            self._seq = last_seq
            if changes:
                with _log_failure(self._position):
                    self._position.parent.mkdir(mode=0o700, exist_ok=True)
                    files.replace(str(self._position), str(self._seq).encode())
        # Under load, lines are written together.
        await asyncio.sleep(_PAUSE_S)

    async def _left_off(self) -> int:
        last = await self._parts.db.read(events.load_last_seq)
        with suppress(OSError, ValueError):
            return min(int(read_own(self._position)), last)
        return 0

    async def _mirror(self, run_id: str) -> None:
        with suppress(NotFound):  # it was forgotten meanwhile
            run = await self._parts.db.read(runs.get, run_id)
            path = self._parts.home.runs / run_id / "events.jsonl"
            # Read after the run: what has ended has all its lines before it has a result.
            new_events = await self._since(run_id, await asyncio.to_thread(_last_seq, path))
            await asyncio.to_thread(self._write, run, new_events)

    async def _since(self, run_id: str, last: int) -> list[Event]:
        """All that a file lacks, also what could not be written to it before."""
        missing: list[Event] = []
        while more := await self._parts.db.read(events.list_after, last, run_id=run_id):
            missing += more
            last = more[-1].seq
        return missing

    def _write(self, run: Run, new_events: list[Event]) -> None:
        directory = self._parts.home.runs / run.id
        for place in (directory.parent, directory):
            place.mkdir(mode=0o700, exist_ok=True)
        path = directory / "events.jsonl"
        if new_events:
            descriptor = os.open(path, _APPENDING, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.writelines(event.model_dump_json() + "\n" for event in new_events)
        status = run.model_dump(mode="json", exclude={"spec", "result"})
        files.replace(f"{directory}/status.json", json.dumps(status, indent=1).encode())
        if run.status in RUN_FINAL:
            result = run.model_dump(mode="json", include={"id", "status", "reason", "result"})
            files.replace(f"{directory}/result.json", json.dumps(result, indent=1).encode())


@contextmanager
def _log_failure(path: Path) -> Iterator[None]:
    """Whatever is wrong with these files is told, and the daemon and the others go on."""
    try:
        yield
    except Unavailable:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in TRANSIENT_ERRORS:
            raise
        _log.warning("%s is not up to date", path, exc_info=error)


def _last_seq(path: Path) -> int:
    """The number of the last whole line; half a line, which a crash left, is cut off."""
    try:
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            # The end of the line before the last one must be in sight.
            tail = b""
            part = _PART
            while tail.count(b"\n") < 2 and len(tail) < min(size, _MOST_READ):
                file.seek(max(0, size - part))
                tail = file.read()
                part = part * 2
            whole, _, half = tail.rpartition(b"\n")
            file.truncate(size - len(half))
            return int(json.loads(whole.rpartition(b"\n")[2])["seq"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0
