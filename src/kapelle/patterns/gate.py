"""So many branches at a time, the same ones again when the run is taken up after a crash."""

import asyncio


class Gate:
    """Lets branches in, as many at once as there are places.

    A branch that was in before the crash comes in at once: it goes on with what it did there, or
    only walks through what it has done. Until all of those are back, nobody else comes in.
    """

    def __init__(self, places: int, were_in: int) -> None:
        self._places = places
        self._awaited = were_in
        self._inside = 0
        self._waiting: list[asyncio.Event] = []

    async def enter(self, *, was_in: bool) -> None:
        if was_in:
            self._awaited -= 1
        elif self._is_full or self._waiting:
            turn = asyncio.Event()
            self._waiting.append(turn)
            try:
                await turn.wait()
            except BaseException:
                self._give_up(turn)
                raise
            return  # whoever called this one up has counted it in
        self._inside += 1
        self._call_up()

    def leave(self) -> None:
        self._inside -= 1
        self._call_up()

    @property
    def _is_full(self) -> bool:
        return self._awaited > 0 or self._inside >= self._places

    def _call_up(self) -> None:
        while self._waiting and not self._is_full:
            self._inside += 1
            self._waiting.pop(0).set()

    def _give_up(self, turn: asyncio.Event) -> None:
        if turn in self._waiting:
            self._waiting.remove(turn)
        else:
            self.leave()
