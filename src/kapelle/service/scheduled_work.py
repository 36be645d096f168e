"""What schedules start: a task, or a run of the pattern that is named."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kapelle.domain.errors import Conflict, InvalidInput, sentence
from kapelle.domain.ids import is_id
from kapelle.domain.specs import TaskSpec
from kapelle.engine.parts import Stage
from kapelle.engine.runs.start import Starter
from kapelle.engine.submission import Belonging, examine, submit
from kapelle.patterns.spec import PatternSpec
from kapelle.service.runs import Runs
from kapelle.service.tasks import Tasks

TASK = "task"


@dataclass(frozen=True)
class Examined:
    """Work that can be started as things are now."""

    spec: dict[str, Any]
    title: str
    directory: str
    project: str | None


class ScheduledWork:
    def __init__(self, stage: Stage, tasks: Tasks, runs: Runs, patterns: Starter) -> None:
        self._stage = stage
        self._tasks = tasks
        self._runs = runs
        self._patterns = patterns

    async def examine(self, kind: str, spec: dict[str, Any]) -> Examined:
        """Find out now what would otherwise be found out in the night."""
        checked: TaskSpec | PatternSpec
        if kind == TASK:
            checked = _task(spec)
            await examine(self._stage, checked)
        else:
            checked, _ = await self._patterns.examine(kind, spec)
        settings = self._stage.settings(checked.directory)
        return Examined(
            spec=checked.model_dump(mode="json", exclude_unset=True),
            title=checked.display_title or kind,
            directory=checked.directory,
            project=checked.project or settings.project,
        )

    async def start(self, kind: str, spec: dict[str, Any], key: str, schedule_id: str) -> str:
        if kind == TASK:
            belonging = Belonging(schedule_id=schedule_id)
            return (await submit(self._stage, _task(spec), key, belonging)).id
        return (await self._runs.start(kind, spec, key, schedule_id)).id

    async def cancel(self, subject: str, reason: str) -> None:
        try:
            if is_id("run", subject):
                await self._runs.cancel(subject, reason)
            else:
                await self._tasks.cancel(subject, reason)
        except Conflict:
            return  # it has ended meanwhile


def _task(spec: dict[str, Any]) -> TaskSpec:
    try:
        return TaskSpec.model_validate(spec)
    except ValidationError as error:
        raise InvalidInput(f"{TASK}: {sentence(error)}") from None
