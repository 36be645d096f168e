"""Performers: who performs what, what is started again, and when it is given up."""

import asyncio
import logging

import pytest

from kapelle.engine import performers
from kapelle.engine.performers import MAX_PERFORMANCES, Performers


class Parts:
    """Records what is performed; each performance waits, or raises what it is told to."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.begun: list[str] = []
        self.given_up: list[str] = []
        self.error = error
        self.may_end = asyncio.Event()
        self.performers = Performers(self._perform, self._give_up)

    async def _perform(self, subject: str) -> None:
        self.begun.append(subject)
        if self.error is not None:
            raise self.error
        await self.may_end.wait()

    async def _give_up(self, subject: str) -> None:
        self.given_up.append(subject)


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_performed_is_not_started_again() -> None:
    parts = Parts()
    parts.performers.start("attempt_1")
    parts.performers.start("attempt_1")
    await parts.performers.restart(["attempt_1", "attempt_2"])
    await _settle()
    assert parts.begun == ["attempt_1", "attempt_2"]
    await parts.performers.close()


async def test_what_a_crash_left_running_is_started_at_once() -> None:
    parts = Parts()
    await parts.performers.restart(["run_1.3"])
    await _settle()
    assert parts.begun == ["run_1.3"]
    await parts.performers.close()


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
async def test_an_internal_error_is_logged_and_given_up_in_the_end(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(performers, "_PAUSE_S", -1.0)
    parts = Parts(error)
    with caplog.at_level(logging.ERROR, "kapelle.performers"):
        for _ in range(MAX_PERFORMANCES):
            assert not parts.given_up
            await parts.performers.restart(["attempt_1"])
            await _settle()
    assert len(parts.begun) == len(caplog.records) == MAX_PERFORMANCES
    await parts.performers.restart(["attempt_1"])
    assert parts.given_up == ["attempt_1"]


async def test_after_an_internal_error_there_is_a_pause() -> None:
    parts = Parts(ValueError("x"))
    for _ in range(3):
        await parts.performers.restart(["attempt_1"])
        await _settle()
    assert parts.begun == ["attempt_1"]


async def test_what_has_ended_by_its_row_counts_no_more() -> None:
    parts = Parts(ValueError("x"))
    for running in (["attempt_1"], [], ["attempt_1"]):
        await parts.performers.restart(running)
        await _settle()
    assert parts.begun == ["attempt_1", "attempt_1"]


async def test_closing_cancels_and_waits() -> None:
    parts = Parts()
    parts.performers.start("attempt_1")
    await _settle()
    await parts.performers.close()
    assert len(asyncio.all_tasks()) == 1
