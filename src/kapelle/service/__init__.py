"""Every use case, once: what the front ends call and nothing else decides."""

from kapelle.engine.merge import Merges
from kapelle.engine.parts import Parts
from kapelle.engine.schedules.scheduler import Scheduler
from kapelle.engine.tasks.queue import TaskQueue
from kapelle.service.agents import Agents
from kapelle.service.batches import Batches
from kapelle.service.caller import Callers
from kapelle.service.daemon import Daemon, Stopping
from kapelle.service.doctor import Doctor
from kapelle.service.events import Events
from kapelle.service.integrations import Integrations
from kapelle.service.knowledge import Knowledge, Templates
from kapelle.service.locks import LockService
from kapelle.service.needs import Needs
from kapelle.service.notes import Notes
from kapelle.service.notify import Notify
from kapelle.service.output import Output
from kapelle.service.projects import Projects
from kapelle.service.questions import Questions
from kapelle.service.relocation import Relocations
from kapelle.service.report import Reports
from kapelle.service.runs import Runs
from kapelle.service.schedules import ScheduledWork, Schedules
from kapelle.service.search import Search
from kapelle.service.sessions import Sessions
from kapelle.service.tasks import Tasks
from kapelle.service.terminals import Terminals
from kapelle.service.trust import Trust
from kapelle.service.work import Work


class Service:
    """All use cases, by noun."""

    def __init__(self, parts: Parts, queue: TaskQueue, merges: Merges, stopping: Stopping) -> None:
        self.callers = Callers(parts.db)
        self.tasks = Tasks(parts, queue)
        self.runs = Runs(parts, lambda: queue.held)
        self.work = Work(parts, merges, self.tasks, self.runs)
        self.questions = Questions(parts)
        scheduled = ScheduledWork(parts)
        self.scheduler = Scheduler(parts.db, scheduled.start, parts.secrets)
        self.schedules = Schedules(parts.db, self.scheduler, scheduled, parts.secrets)
        self.output = Output(parts)
        self.terminals = Terminals(parts)
        self.events = Events(parts.db, parts.activities)
        self.daemon = Daemon(parts, queue, stopping)
        self.sessions = Sessions(file=parts.home.sessions)
        self.agents = Agents(parts)
        self.trust = Trust(parts)
        self.doctor = Doctor(parts, self.agents, self.daemon)
        self.reports = Reports(parts, self.work)
        self.needs = Needs(parts, self.tasks, self.runs, self.reports)
        self.knowledge = Knowledge(parts)
        self.templates = Templates(parts)
        self.search = Search(parts)
        self.notify = Notify(parts)
        self.projects = Projects(parts, self.search)
        self.integrations = Integrations(parts)
        self.relocations = Relocations(parts)
        self.notes = Notes(parts.db, parts.without_secrets)
        self.batches = Batches(parts.db)
        self.locks = LockService(parts)
