"""Every use case, once: what the front ends call and nothing else decides."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from kapelle.domain.errors import NotFound
from kapelle.domain.run import Run, rests
from kapelle.domain.task import Task
from kapelle.domain.views import RestingView, WaitView
from kapelle.service.agents import Agents
from kapelle.service.batches import Batches
from kapelle.service.daemon import Daemon
from kapelle.service.events import Events
from kapelle.service.integrations import Integrations
from kapelle.service.knowledge import Knowledge, Templates
from kapelle.service.locks import LockService
from kapelle.service.notes import Notes
from kapelle.service.notify import Notify
from kapelle.service.output import Output
from kapelle.service.projects import Projects
from kapelle.service.questions import Questions
from kapelle.service.report import Reports
from kapelle.service.runs import Runs
from kapelle.service.schedules import Schedules
from kapelle.service.search import Search
from kapelle.service.sessions import Sessions
from kapelle.service.tasks import Tasks
from kapelle.service.terminals import Terminals
from kapelle.service.trust import Trust
from kapelle.service.usage import Usages
from kapelle.service.work import Work


@dataclass(frozen=True)
class Service:
    """All use cases, by noun."""

    tasks: Tasks
    runs: Runs
    questions: Questions
    work: Work
    schedules: Schedules
    output: Output
    events: Events
    daemon: Daemon
    sessions: Sessions
    agents: Agents
    usage: Usages
    trust: Trust
    knowledge: Knowledge
    templates: Templates
    search: Search
    notify: Notify
    projects: Projects
    integrations: Integrations
    notes: Notes
    locks: LockService
    terminals: Terminals
    batches: Batches
    reports: Reports

    async def wait(self, ids: Sequence[str], for_all: bool, timeout_s: float) -> WaitView:
        """Those of several tasks and runs that have ended or wait for a person, once one or all
        of them do, or when time is up."""
        waits = {text: asyncio.create_task(self._wait(text, timeout_s)) for text in ids}
        when = asyncio.FIRST_EXCEPTION if for_all else asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait(waits.values(), return_when=when)
            found = {text: wait.result() for text, wait in waits.items() if wait.done()}
        finally:
            for wait in waits.values():
                wait.cancel()
        resting = {t: work for t, work in found.items() if rests(work)}
        one_each = {work.id: work for work in resting.values()}.values()
        shown = [RestingView.model_validate(work, from_attributes=True) for work in one_each]
        return WaitView(resting=shown, pending=[text for text in waits if text not in resting])

    async def _wait(self, text: str, timeout_s: float) -> Task | Run:
        try:
            return await self.tasks.wait(text, timeout_s)
        except NotFound:
            with suppress(NotFound):
                return await self.runs.wait(text, timeout_s)
        raise NotFound(f"There is no task or run {text!r}.", hint="`kapelle list` shows the ids.")
