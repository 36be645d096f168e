"""Has what nobody performs performed again: a crash, or an error inside the engine, left it."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from kapelle.engine.durable import Durable, WorkflowState
from kapelle.engine.stage import Stage

_log = logging.getLogger("kapelle.revival")
# How long something may be without anybody performing it before the sweep steps in.
_PATIENCE_S = 5.0
# How often it may end inside the engine without a verdict.
PERFORMANCES = 5

GiveUp = Callable[[str], Awaitable[None]]


class Revival:
    """Watches over the executions of one durable function, each known by what it performs."""

    def __init__(self, stage: Stage, durable: Durable, workflow: str, give_up: GiveUp) -> None:
        self._stage = stage
        self._durable = durable
        self._workflow = workflow
        self._give_up = give_up
        self._neglected: dict[str, float] = {}
        self._performances: dict[str, int] = {}

    async def look(self, running: Sequence[str]) -> None:
        """Revive those of what should be running that nobody performs."""
        now = time.monotonic()
        unattended = [subject for subject in running if _performer(subject) not in self._stage.live]
        self._neglected = {subject: self._neglected.get(subject, now) for subject in unattended}
        for subject, since in self._neglected.items():
            if now - since > _PATIENCE_S or await self._is_new(subject):
                await self._revive(subject)

    async def _is_new(self, subject: str) -> bool:
        """Whether the daemon died between admitting it and starting its workflow."""
        return await self._durable.state(subject) is WorkflowState.ABSENT

    async def _revive(self, subject: str) -> None:
        """Have it performed again: whatever it did is found, so nothing is done twice."""
        number = self._performances.get(subject, 1)
        workflow_id = subject if number == 1 else f"{subject}.{number}"
        match await self._durable.state(workflow_id):
            case WorkflowState.ABSENT:
                await self._durable.start(self._workflow, workflow_id, _performer(subject))
            case WorkflowState.ACTIVE:
                _log.warning("%s is performed by nobody: resuming it", subject)
                await self._durable.resume(workflow_id)
            case WorkflowState.ENDED if number < PERFORMANCES:
                _log.error("%s ended inside the engine without a verdict: again", subject)
                self._performances[subject] = number + 1
                again = f"{subject}.{number + 1}"
                await self._durable.start(self._workflow, again, _performer(subject))
            case WorkflowState.ENDED:
                await self._give_up(_performer(subject))
        self._neglected[subject] = time.monotonic()


def _performer(subject: str) -> str:
    """The attempt or run itself; a run is taken up several times, as run_….1, run_….2 …"""
    return subject.partition(".")[0]
