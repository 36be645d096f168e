"""Runs against a simple model: whatever is done to them in whatever order, and however often the
daemon dies, they are what a person may expect."""

import itertools
import time
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.chaos.record import is_clean, strangers
from tests.chaos.run_model import ANSWER, FINAL, Modelled, begin
from tests.e2e.support.instance import ApiError, Instance

_numbers = itertools.count()
_some = st.integers(0, 3)


class RunMachine(RuleBasedStateMachine):
    """Up to three runs at a time, and a person who cannot leave them alone."""

    def __init__(self, kapelle: Instance, directory: Path) -> None:
        super().__init__()
        self.kapelle = kapelle
        self.directory = directory
        self.runs: list[Modelled] = []

    def _one(self, index: int) -> Modelled:
        """Mostly one that has not ended, for more can be done to it."""
        among = [run for run in self.runs if not run.ended] if index < 3 else []
        among = among or self.runs
        return among[index % len(among)]

    def _try(self, run: Modelled, action: str, body: dict[str, Any] | None = None) -> bool:
        """Whether a wish was accepted."""
        try:
            self.kapelle.post(f"/runs/{run.run_id}/{action}", body or {})
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        return True

    @initialize(pattern=st.sampled_from(["loop", "rounds"]))
    def start_first(self, pattern: str) -> None:
        self.start(pattern, 2)

    @precondition(lambda self: len(self.runs) < 3)
    @rule(pattern=st.sampled_from(["loop", "rounds"]), rounds=st.integers(2, 4))
    def start(self, pattern: str, rounds: int) -> None:
        place = self.directory / str(next(_numbers))
        self.runs.append(begin(self.kapelle, place, pattern, rounds))

    @rule(index=_some, now=st.booleans())
    def pause(self, index: int, now: bool) -> None:
        run = self._one(index)
        could = not (run.paused or run.cancelled or run.ended)
        # What still ends before the pause can be told to end now.
        hurried = now and run.paused and not (run.cancelled or run.ended)
        if self._try(run, "pause", {"now": now}):
            assert could or hurried
            run.paused = True
            run.requeued += now
        elif could:
            assert run.look(self.kapelle)["status"] in FINAL

    @rule(index=_some)
    def resume(self, index: int) -> None:
        self._resume(self._one(index))

    def _resume(self, run: Modelled) -> None:
        could = run.paused and not (run.cancelled or run.ended)
        if self._try(run, "resume"):
            assert could
            run.paused, run.still = False, None
        elif could:
            assert run.look(self.kapelle)["status"] in FINAL

    @rule(index=_some, with_tasks=st.booleans())
    def cancel(self, index: int, with_tasks: bool) -> None:
        run = self._one(index)
        could = not run.ended
        if self._try(run, "cancel", {"with_tasks": with_tasks}):
            assert could
            # Those of a run that is being cancelled with its tasks are being ended already.
            run.keeps_tasks = not with_tasks and (run.keeps_tasks or not run.cancelled)
            run.cancelled = True
        elif could:
            assert run.look(self.kapelle)["status"] in FINAL

    @rule(index=_some)
    def answer(self, index: int) -> None:
        self._answer(self._one(index))

    def _answer(self, run: Modelled) -> None:
        for question in self.kapelle.get(f"/runs/{run.run_id}")["questions"]:
            self._try(run, "answer", {"answer": ANSWER, "token": question["token"]})

    @rule()
    def crash(self) -> None:
        self.kapelle.kill()
        self.kapelle.start()

    @rule(seconds=st.floats(0.05, 0.8))
    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    @rule(index=_some)
    def await_pause(self, index: int) -> None:
        """What is to pause comes to rest, and stays there."""
        run = self._one(index)
        if run.paused and not run.cancelled:
            self._await(run, {"paused", *FINAL})
            time.sleep(0.3)
            run.look(self.kapelle)

    @invariant()
    def nothing_contradicts_the_model(self) -> None:
        for run in self.runs:
            run.look(self.kapelle)

    def _await(self, run: Modelled, statuses: set[str]) -> str:
        deadline = time.monotonic() + 30
        while (status := run.look(self.kapelle)["status"]) not in statuses:
            assert time.monotonic() < deadline, f"still {status}: {run}\n{self.kapelle.log_tail()}"
            time.sleep(0.05)
        return str(status)

    def teardown(self) -> None:
        """Let all of them end, and see what they came to."""
        for run in self.runs:
            while self._await(run, {"waiting", "paused", *FINAL}) not in FINAL:
                self._resume(run)
                self._answer(run)
            run.require_expected(self.kapelle)
            assert is_clean(run.place.repository)
        deadline = time.monotonic() + 10
        while self.kapelle.get("/daemon")["running"] and time.monotonic() < deadline:
            time.sleep(0.05)  # those that were to be left alone
        assert strangers(self.kapelle) == []


@pytest.mark.timeout(2400)
def test_runs_are_what_a_simple_model_says(
    kapelle: Instance, tmp_path: Path, exhaustive: bool
) -> None:
    class Here(RunMachine):
        def __init__(self) -> None:
            super().__init__(kapelle, tmp_path)

    kapelle.start()
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=50 if exhaustive else 3,
            stateful_step_count=20 if exhaustive else 10,
            deadline=None,
            derandomize=True,
            database=None,
            # To make an example shorter would take minutes, and time is part of it.
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
