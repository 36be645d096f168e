"""Kills the daemon at random moments while runs of every pattern are under way."""

import http.client
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.failpoint_run import answer_if_asked, start_once
from tests.chaos.pieces import PIECES, Place, hand_out_parts, make_place, request_body
from tests.chaos.record import differences, is_clean, record, strangers
from tests.e2e.support.instance import ApiError, Instance

_ENDED = {"completed", "failed", "cancelled"}


@dataclass(frozen=True)
class RunStormSize:
    """How much is started at first, and how often what is killed."""

    copies: int
    kills: int
    seed: int = 1
    # How likely it is, whenever one looks, that somebody pauses a run or has it go on.
    fickleness: float = 0.2


@dataclass
class RunReport:
    """What became of it all; every list must be empty."""

    seconds: float = 0.0
    runs: int = 0
    kills: int = 0
    wishes: int = 0
    unfinished: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    left_running: list[str] = field(default_factory=list)

    @property
    def problems(self) -> dict[str, list[str]]:
        names = ("unfinished", "different", "damaged", "left_running")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


class RunStorm:
    """All pieces at once, each several times or as often as it takes, under one unlucky daemon."""

    def __init__(self, directory: Path, size: RunStormSize, **settings: str) -> None:
        self._size = size
        self._random = random.Random(size.seed)
        settings = {"KAPELLE_LIMITS__MAX_ATTEMPTS": "6", **settings}
        self._kapelle = Instance(directory / "home", **settings)
        hand_out_parts(self._kapelle)
        self._directory = directory
        self._places: dict[tuple[str, int], Place] = {}
        self._ids: dict[tuple[str, int], str] = {}
        self._open: set[tuple[str, int]] = set()
        self._report = RunReport()
        for _ in range(size.copies):
            self._add_copy()

    def _add_copy(self) -> None:
        """One more of each piece, to be started."""
        number = len(self._places) // len(PIECES)
        fresh = {
            (name, number): make_place(self._directory / f"{name}-{number}") for name in PIECES
        }
        self._places |= fresh
        self._open |= fresh.keys()

    def run(self, expected: dict[str, Any]) -> RunReport:
        began = time.monotonic()
        try:
            self._rage()
            self._kapelle.start()
            self._await_ends()
            self._examine(expected)
        finally:
            self._kapelle.destroy()
        self._report.seconds = round(time.monotonic() - began, 1)
        return self._report

    def _rage(self) -> None:
        """Kill as often as it was said; before little is left to be disturbed, more is started."""
        while self._report.kills < self._size.kills:
            if len(self._open) < len(PIECES):
                self._add_copy()
            self._kapelle.spawn()
            # Some die before they are ready, and some when they have done a lot.
            last = time.monotonic() + self._random.choice((0.5, 1.0, 2.0)) * self._random.random()
            while time.monotonic() < last:
                self._look()
                time.sleep(0.02)
            self._kapelle.kill()
            self._report.kills += 1

    def _look(self) -> None:
        """Start what was not started yet, answer what is asked, and see what has ended."""
        try:
            for key in [key for key in self._places if key in self._open]:
                if key not in self._ids:
                    body = request_body(PIECES[key[0]], self._places[key])
                    self._ids[key] = start_once(self._kapelle, body, f"{key}")
                elif answer_if_asked(self._kapelle, self._ids[key]) in _ENDED:
                    self._open.remove(key)
                else:
                    self._disturb(self._ids[key])
        except (OSError, http.client.HTTPException):
            return  # nobody is there yet, or any more

    def _disturb(self, run_id: str) -> None:
        """Pause a run or resume it; when the storm is over, none is left paused."""
        over = self._report.kills >= self._size.kills
        if not over and self._random.random() > self._size.fickleness:
            return
        # One that is still to pause may be resumed as well.
        wish = "resume" if over else self._random.choice(("pause", "resume"))
        try:
            self._kapelle.post(f"/runs/{run_id}/{wish}")
            self._report.wishes += 1
        except ApiError as error:
            if error.status != 409:
                raise

    def _await_ends(self) -> None:
        deadline = time.monotonic() + 60 + 10 * len(self._places)
        while self._open and time.monotonic() < deadline:
            self._look()
            time.sleep(0.05)

    def _examine(self, expected: dict[str, Any]) -> None:
        self._report.unfinished = [f"{name} {number}" for name, number in sorted(self._open)]
        for key, place in self._places.items():
            if key not in self._open:
                self._report.runs += 1
                self._compare(key, place, expected[key[0]])
        self._report.left_running = strangers(self._kapelle)

    def _compare(self, key: tuple[str, int], place: Place, expected: Any) -> None:
        found = record(self._kapelle, place, self._ids[key])
        self._report.different += [f"{key} {line}" for line in differences(found, expected)]
        if not is_clean(place.repository):
            self._report.damaged.append(f"{key}: {place.repository}")
