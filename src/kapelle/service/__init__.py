"""Every use case, once: what the front ends call and nothing else decides."""

from dataclasses import dataclass

from kapelle.service.agents import Agents
from kapelle.service.daemon import Daemon
from kapelle.service.events import Events
from kapelle.service.output import Output
from kapelle.service.runs import Runs
from kapelle.service.schedules import Schedules
from kapelle.service.sessions import Sessions
from kapelle.service.tasks import Tasks
from kapelle.service.trust import Trust
from kapelle.service.usage import Usages
from kapelle.service.work import Work


@dataclass(frozen=True)
class Service:
    """All use cases, by noun."""

    tasks: Tasks
    runs: Runs
    work: Work
    schedules: Schedules
    output: Output
    events: Events
    daemon: Daemon
    sessions: Sessions
    agents: Agents
    usage: Usages
    trust: Trust
