"""A pattern at work, watched from outside: its code may wait for ever, or end the daemon."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kapelle.domain.errors import Conflict
from kapelle.patterns.budget import RunBudget
from kapelle.patterns.going import Going
from kapelle.patterns.journal import Journal

_log = logging.getLogger("kapelle.runs")
_LOOK_S = 2.0
# How long a pattern may be outside its steps before it is called off, and go on after that.
_GRACE_S = 10.0
# How often the daemon may die in the same place of a pattern; more often while a step is under
# way, for then it is rarely the pattern's fault.
_DEATHS, _DEATHS_IN_STEPS = 10, 30


class Playing:
    """Plays one pattern, and calls it off if it heeds neither a wish nor a limit by itself."""

    def __init__(self, journal: Journal, going: Going, budget: RunBudget) -> None:
        self._journal = journal
        self._going = going
        self._budget = budget

    async def play(self, pattern: Coroutine[Any, Any, Any]) -> Any:
        """The result of the pattern; raises what ends it, from within or from outside."""
        playing = asyncio.create_task(self._journal.main(pattern))
        try:
            while not (await asyncio.wait({playing}, timeout=_LOOK_S))[0]:
                # In a step it sees wishes and limits itself, and ends what it has begun.
                if self._journal.idle_s > _GRACE_S:
                    await self._require()
        except BaseException as error:
            await self._call_off(playing, error)
            raise
        if playing.cancelled():
            raise Conflict("The pattern's own code has cancelled it.")
        return playing.result()

    async def _require(self) -> None:
        await self._going.require()
        await self._budget.require_time_and_money()

    async def _call_off(self, playing: "asyncio.Task[Any]", error: BaseException) -> None:
        self._journal.close(error)
        playing.cancel()
        await asyncio.wait({playing}, timeout=_GRACE_S)
        if not playing.done():
            _log.error("a pattern goes on though it was called off: %s", playing)


@contextmanager
def noted_deaths(path: Path, place: str, *, in_step: bool) -> Iterator[bool]:
    """Whether the daemon may be trusted to survive what follows, as far as a file tells.

    The file is there only while the pattern plays: whoever finds it comes after a daemon that
    died meanwhile. The place is how far the pattern was.
    """
    deaths = 0
    with suppress(OSError, ValueError):
        count, _, where = path.read_text(encoding="utf-8").partition(" ")
        deaths = int(count) + 1 if where == place else 0
    with suppress(OSError):
        path.write_text(f"{deaths} {place}", encoding="utf-8")
    try:
        yield deaths < (_DEATHS_IN_STEPS if in_step else _DEATHS)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
