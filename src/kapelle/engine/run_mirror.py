"""Each run's history as plain files, for `tail -f` and scripts: events.jsonl, status.json,
result.json in the run's directory."""

import asyncio
import json
import logging
import os
from collections import defaultdict
from pathlib import Path

from kapelle.domain.errors import NotFound, Unavailable
from kapelle.domain.run import Run
from kapelle.domain.states import RUN_FINAL
from kapelle.domain.task import Event
from kapelle.engine.stage import Stage
from kapelle.engine.steadily import steadily
from kapelle.store import events, runs

_log = logging.getLogger("kapelle.runs")
_LOOK_S = 5.0
# Under load, lines are written together.
_PAUSE_S = 0.1
_PART = 65_536


class RunMirror:
    """Writes what the database knows; a crash in the middle leaves no line out and none twice."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._position = stage.home.runs / "position"
        self._last: dict[str, int] = {}

    async def run(self) -> None:
        """Mirror until cancelled."""
        seq = min(self._read_position(), await steadily(self._stage.db.read)(events.last_seq))
        with self._stage.db.watch() as changed:
            while True:
                seq = await steadily(self._pass)(seq)
                await asyncio.sleep(_PAUSE_S)
                await changed.wait(_LOOK_S)

    async def _pass(self, seq: int) -> int:
        while True:
            found, reached = await self._stage.db.read(events.of_runs, seq)
            by_run: dict[str, list[Event]] = defaultdict(list)
            for run_id, event in found:
                by_run[run_id].append(event)
            for run_id, told in by_run.items():
                await self._mirror(run_id, told)
            if reached == seq:
                return seq
            seq = reached
            if found:
                _replace(self._position, str(seq))

    async def _mirror(self, run_id: str, told: list[Event]) -> None:
        """One run's files; whatever is wrong with them, the daemon and the other runs go on."""
        try:
            run = await self._stage.db.read(runs.get, run_id)
            await asyncio.to_thread(self._write, run, told)
        except NotFound:
            return  # it was forgotten meanwhile
        except (OSError, Unavailable):
            raise  # a full disk, which passes
        except Exception:
            _log.exception("the files of %s are not up to date", run_id)

    def _write(self, run: Run, told: list[Event]) -> None:
        directory = self._stage.home.runs / run.id
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / "events.jsonl"
        last = self._last.get(run.id)
        if last is None:
            last = _last_seq(path)
        lines = [event.model_dump_json() + "\n" for event in told if event.seq > last]
        if lines:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write("".join(lines))
        status = run.model_dump(mode="json", exclude={"spec", "result"})
        _replace(directory / "status.json", json.dumps(status, indent=1))
        if run.status in RUN_FINAL:
            result = run.model_dump(mode="json", include={"id", "status", "reason", "result"})
            _replace(directory / "result.json", json.dumps(result, indent=1))
            self._last.pop(run.id, None)
        else:
            self._last[run.id] = told[-1].seq

    def _read_position(self) -> int:
        try:
            return int(self._position.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0


def _last_seq(path: Path) -> int:
    """The number of the last whole line; half a line, which a crash left, is cut off."""
    try:
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            # The end of the line before the last one must be in sight.
            tail, part = b"", _PART
            while tail.count(b"\n") < 2 and len(tail) < size:
                file.seek(max(0, size - part))
                tail, part = file.read(), part * 2
            whole, _, half = tail.rpartition(b"\n")
            file.truncate(size - len(half))
            return int(json.loads(whole.rpartition(b"\n")[2])["seq"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)
