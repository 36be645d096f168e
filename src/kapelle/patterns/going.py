"""Whether a run may go on: what people want of it, and what its branches wait for."""

from kapelle.engine.stage import Stage
from kapelle.patterns.interruption import Cancelled, Paused, Suspended
from kapelle.store import runs, steps
from kapelle.store.database import Connection


class Going:
    """What one run's branches ask before they do anything, and again whenever they wake up."""

    def __init__(self, stage: Stage, run_id: str) -> None:
        self._stage = stage
        self._run_id = run_id
        # Why branches have left off; the others go on beside them.
        self._paused = False
        self._asked: set[str] = set()

    async def require(self, *, still: bool = False) -> None:
        """Raise unless the run may go on; a pause lets what is still at work end first."""
        await self._stage.db.glance(self.check, still=still)

    def check(self, connection: Connection, *, still: bool = False) -> None:
        """The same inside a transaction, so that no wish comes between it and what is stored."""
        stop = runs.row(connection, self._run_id)["stop"]
        if stop in {"cancel", "abandon"}:
            raise Cancelled
        if stop == "pause":
            if not still:
                self._paused = True
                raise Paused
        elif self._paused:
            raise Paused  # it was resumed: the branch that left off is played again, with the rest
        elif self._asked and self._asked - steps.unanswered(connection, self._run_id):
            raise Suspended(self._asked)  # it was answered: likewise

    async def suspend(self, position: str) -> None:
        """Leave off until the question at this place is answered."""
        await self.require()
        self._asked.add(position)
        raise Suspended(self._asked)
