"""Turns at a lock, pauses between passes that fail, and files that an agent can write."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kapelle.agents.events import AgentEvent
from kapelle.engine import background
from kapelle.engine.runs.journal import Gate
from kapelle.service.transcript import TranscriptPosition, list_unsent_events
from kapelle.store.database import DatabaseWatch


async def test_whoever_leaves_a_lock_and_comes_again_waits_for_those_before() -> None:
    gate, entered = Gate(1, 0), list[str]()

    async def branch(name: str) -> None:
        for _ in range(3):
            await gate.enter(was_in=False)
            entered.append(name)
            await asyncio.sleep(0)
            gate.leave()

    await asyncio.gather(*map(branch, "ABC"))
    assert "".join(entered) == "ABCABCABC"


async def test_a_pass_that_fails_is_not_made_again_at_once_by_its_own_writing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "_PAUSE_S", 0.05)
    passes = 0

    class Written(DatabaseWatch):
        async def wait(self, timeout_s: float) -> None:
            """Something was written already."""

    @contextmanager
    def watch() -> Iterator[DatabaseWatch]:
        yield Written()

    async def duty() -> None:
        nonlocal passes
        passes += 1
        raise ZeroDivisionError

    log = logging.getLogger("kapelle.test")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(background.repeat(log, duty, watch(), 1.0), 0.5)
    assert 2 <= passes <= 11


@pytest.mark.parametrize("turns", range(5))
async def test_who_waits_for_a_write_can_be_cancelled_at_any_moment(turns: int) -> None:
    """A duty that swallows its cancellation keeps the daemon from its end."""
    watch = DatabaseWatch()
    waiting = asyncio.create_task(watch.wait(5))
    await asyncio.sleep(0.01)
    watch.wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    over = waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert over or waiting.cancelled()


def test_lines_that_say_less_than_was_told_before_keep_nothing_back() -> None:
    """The agent's events were read, and are not any more: each line is one text then."""
    place = TranscriptPosition(1, 0, 0, 3)
    assert [*list_unsent_events([AgentEvent("text", "one")], place, 10)] == []
    [line] = list_unsent_events([AgentEvent("text", "two")], place, 20)
    assert line.body["text"] == "two"
