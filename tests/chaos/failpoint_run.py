"""A run whose daemon dies again and again, at named places, and is started as often."""

import contextlib
import http.client
import sqlite3
import subprocess
import time
from typing import Any

from tests.chaos.pieces import ANSWER, Piece, Place, request_body
from tests.e2e.support.instance import ApiError, Instance

_ENDED = {"completed", "failed", "cancelled"}


class FailpointRun:
    """One performance of a piece, life by life."""

    def __init__(self, kapelle: Instance, piece: Piece, place: Place) -> None:
        self._kapelle = kapelle
        self._body = request_body(piece, place)
        self.run_id: str | None = None
        self.crashes = 0

    def crash_at(self, failpoint: str) -> None:
        """Have the daemon live until it dies there; the run must not end before."""
        self.crashes += 1
        daemon = self._kapelle.spawn(KAPELLE_FAILPOINT=failpoint)
        deadline = time.monotonic() + 60
        status = "unknown"
        while daemon.poll() is None:
            assert time.monotonic() < deadline, f"{failpoint} was not reached: {status}"
            if status in _ENDED:
                # The end is to be read a moment before the place behind its transaction.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    daemon.wait(5)
                assert daemon.poll() is not None, f"{failpoint} was not reached before the end"
                return
            status = self._look()
            time.sleep(0.03)

    def finish(self) -> None:
        """Let the run come to its end."""
        self._kapelle.start()
        deadline = time.monotonic() + 60
        while (status := self._look()) not in _ENDED:
            assert time.monotonic() < deadline, f"it is {status}:\n{self._kapelle.log_tail()}"
            time.sleep(0.03)

    def _look(self) -> str:
        """The status of the run, which is started if need be, and whose question is answered."""
        try:
            if self.run_id is None:
                self.run_id = start_once(self._kapelle, self._body, "the run")
            return answer_if_asked(self._kapelle, self.run_id)
        except (OSError, http.client.HTTPException):
            return "unknown"

    def steps(self) -> tuple[int, int]:
        """How many steps were begun and how many have ended, while no daemon lives."""
        path = f"file:{self._kapelle.home.database}?mode=ro"
        with sqlite3.connect(path, uri=True) as connection:
            begun, ended = connection.execute(
                "SELECT count(*), count(ended_at) FROM steps"
            ).fetchone()
        connection.close()
        return begun, ended


def start_once(kapelle: Instance, body: Any, key: str) -> str:
    """Start a run; asked again with the same key, it is the same one."""
    return str(kapelle.call("POST", "/runs", body, {"Idempotency-Key": key})["id"])


def answer_if_asked(kapelle: Instance, run_id: str) -> str:
    """The status of a run; a question of it is answered."""
    status: str = kapelle.get(f"/runs/{run_id}")["status"]
    if status == "waiting":
        try:
            kapelle.post(f"/runs/{run_id}/answer", {"answer": ANSWER})
        except ApiError as error:
            if error.status != 409:
                raise
    return status
