"""The use cases: everything that a front end may call. Front ends decide nothing themselves."""

from kapelle.engine.merge import MergeQueue
from kapelle.engine.parts import Parts
from kapelle.engine.schedules.scheduler import Scheduler
from kapelle.engine.tasks.queue import TaskQueue
from kapelle.service.agents import AgentService
from kapelle.service.batches import BatchService
from kapelle.service.caller import Callers
from kapelle.service.changes import ChangeService
from kapelle.service.daemon import DaemonService, Stopping
from kapelle.service.doctor import DoctorService
from kapelle.service.events import EventService
from kapelle.service.integrations import IntegrationService
from kapelle.service.learnings import LearningService
from kapelle.service.locks import LockService
from kapelle.service.needs import NeedService
from kapelle.service.notes import NoteService
from kapelle.service.notify import NotificationService
from kapelle.service.output import OutputService
from kapelle.service.projects import ProjectService
from kapelle.service.questions import QuestionService
from kapelle.service.relocation import RelocationService
from kapelle.service.report import ReportService
from kapelle.service.review import LearningReview
from kapelle.service.runs import RunService
from kapelle.service.schedules import ScheduledWork, ScheduleService
from kapelle.service.search import SearchService
from kapelle.service.search_index import SearchIndexer
from kapelle.service.sessions import SessionService
from kapelle.service.tasks import TaskService
from kapelle.service.templates import TemplateService
from kapelle.service.terminals import TerminalService
from kapelle.service.transcript import TranscriptService
from kapelle.service.trust import TrustService
from kapelle.service.work import WorkService


class Service:
    """All use cases, by noun."""

    def __init__(
        self, parts: Parts, queue: TaskQueue, merges: MergeQueue, stopping: Stopping
    ) -> None:
        self.callers = Callers(parts.db)
        self.tasks = TaskService(parts, queue)
        self.runs = RunService(parts, lambda: queue.held)
        self.work = WorkService(parts, self.tasks, self.runs)
        self.changes = ChangeService(parts, merges)
        self.questions = QuestionService(parts)
        scheduled_work = ScheduledWork(parts)
        self.scheduler = Scheduler(parts.db, scheduled_work.start, parts.secrets)
        self.schedules = ScheduleService(parts.db, self.scheduler, scheduled_work, parts.secrets)
        self.output = OutputService(parts)
        self.transcripts = TranscriptService(parts)
        self.terminals = TerminalService(parts)
        self.events = EventService(parts.db, parts.activities)
        self.daemon = DaemonService(parts, queue, stopping)
        self.sessions = SessionService(file=parts.home.sessions)
        self.agents = AgentService(parts)
        self.trust = TrustService(parts)
        self.doctor = DoctorService(parts, self.agents, self.daemon)
        self.reports = ReportService(parts, self.work)
        self.needs = NeedService(parts, self.tasks, self.runs, self.reports)
        self.learnings = LearningService(parts)
        self.review = LearningReview(parts)
        self.templates = TemplateService(parts)
        self.search_index = SearchIndexer(parts)
        self.search = SearchService(parts, self.search_index)
        self.notify = NotificationService(parts)
        self.projects = ProjectService(parts, self.search_index)
        self.integrations = IntegrationService(parts)
        self.relocations = RelocationService(parts)
        self.notes = NoteService(parts.db, parts.without_secrets)
        self.batches = BatchService(parts.db)
        self.locks = LockService(parts)
