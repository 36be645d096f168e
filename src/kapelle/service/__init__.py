"""Every use case, once: what the front ends call and nothing else decides."""

from dataclasses import dataclass

from kapelle.service.agents import Agents
from kapelle.service.changes import Changes
from kapelle.service.history import History
from kapelle.service.instance import Instance
from kapelle.service.logins import Logins
from kapelle.service.output import Output
from kapelle.service.run_changes import RunChanges
from kapelle.service.runs import Runs
from kapelle.service.schedules import Schedules
from kapelle.service.tasks import Tasks
from kapelle.service.transcript import Transcripts
from kapelle.service.usage import Usages


@dataclass(frozen=True)
class Service:
    """All use cases, by noun."""

    tasks: Tasks
    output: Output
    transcripts: Transcripts
    changes: Changes
    history: History
    instance: Instance
    logins: Logins
    agents: Agents
    usage: Usages
    runs: Runs
    run_changes: RunChanges
    schedules: Schedules
