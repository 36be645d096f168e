"""The routes, most of them a use case each: a row says its method, path, who may call it and which,
and under which name it is a tool of MCP.

What a route takes, gives and says of itself is the signature and the docstring of its use case; the
others, which stream or set cookies, stand in the modules beside this one.
"""

from typing import Any

from kapelle.api.router import Route
from kapelle.api.routes import daemon
from kapelle.api.routes.terminals import terminal
from kapelle.api.security import anybody, attempt_too, below_only, own_or_below, owner_only
from kapelle.api.sse import STREAM
from kapelle.service.agents import AgentService
from kapelle.service.batches import BatchService
from kapelle.service.daemon import DaemonService
from kapelle.service.doctor import DoctorService
from kapelle.service.integrations import IntegrationService
from kapelle.service.knowledge import KnowledgeService, TemplateService
from kapelle.service.locks import LockService
from kapelle.service.needs import NeedService
from kapelle.service.notes import NoteService
from kapelle.service.notify import NotificationService
from kapelle.service.output import OutputService
from kapelle.service.projects import ProjectService
from kapelle.service.questions import QuestionService
from kapelle.service.relocation import RelocationService
from kapelle.service.report import ReportService
from kapelle.service.runs import RunService
from kapelle.service.schedules import ScheduleService
from kapelle.service.search import SearchService
from kapelle.service.sessions import SessionService
from kapelle.service.tasks import TaskService
from kapelle.service.trust import TrustService
from kapelle.service.work import WorkService

_NOTHING = {"description": "Successful Response"}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BYTES: dict[str, Any] = {
    "description": "The bytes from offset on, at most limit of them; none at the end",
    "content": {"application/octet-stream": _BINARY},
    "headers": {
        "X-Next-Offset": {
            "description": "Where the next bytes begin",
            "required": True,
            "schema": {"type": "integer", "minimum": 0},
        },
        "X-Complete": {
            "description": "Whether these were the last bytes that there will ever be",
            "required": True,
            "schema": {"type": "string", "enum": ["true", "false"]},
        },
    },
}
_PICTURE = {"description": "The picture as the agent saved it", "content": {"image/*": _BINARY}}
_SCHEDULE = "/schedules/{schedule_id}"


def _changes(kind: str) -> tuple[Route, ...]:
    """What a task or a run changed, and merging it."""
    path = f"/{kind}s/{{{kind}_id}}"
    fixed = {"kind": kind}
    patch = {"description": "A patch for git apply", "content": {"text/x-diff": {}}}
    return (
        Route(
            "GET", f"{path}/diff", own_or_below, WorkService.diff, fixed=fixed, tool=f"{kind}_diff"
        ),
        Route("GET", f"{path}/patch", own_or_below, WorkService.patch, told=patch, fixed=fixed),
        Route(
            "POST",
            f"{path}/merge",
            below_only,
            WorkService.merge,
            fixed=fixed,
            tool=f"{kind}_merge",
        ),
        Route(
            "POST",
            f"{path}/pr",
            owner_only,
            WorkService.open_pull_request,
            tool=f"{kind}_pr",
            fixed=fixed,
        ),
        Route(
            "GET",
            f"{path}/pr",
            owner_only,
            WorkService.pull_request,
            fixed=fixed,
            tool=f"{kind}_pr_get",
        ),
        Route("GET", f"{path}/merge", owner_only, WorkService.preview_merge, fixed=fixed),
        Route(
            "POST",
            f"{path}/merge/undo",
            owner_only,
            WorkService.undo_merge,
            tool=f"{kind}_merge_undo",
            fixed=fixed,
        ),
        Route("DELETE", f"{path}/merge", owner_only, WorkService.give_up_merge, fixed=fixed),
    )


# By their tags, which are the beginnings of the operations' ids.
ROUTES: dict[str, tuple[Route, ...]] = {
    "tasks": (
        Route(
            "POST",
            "/tasks",
            attempt_too,
            TaskService.submit,
            status=201,
            tool="task_create",
            inherit=TaskService.inherit_directory,
        ),
        Route("GET", "/tasks", attempt_too, TaskService.page, tool="task_list"),
        Route("GET", "/tasks/{task_id}", own_or_below, TaskService.get, tool="task_get"),
        Route("GET", "/tasks/{task_id}/wait", own_or_below, TaskService.wait),
        Route(
            "POST", "/tasks/{task_id}/cancel", below_only, TaskService.cancel, tool="task_cancel"
        ),
        Route("POST", "/tasks/{task_id}/retry", below_only, TaskService.retry, tool="task_retry"),
        Route(
            "POST", "/tasks/{task_id}/resume", below_only, TaskService.resume, tool="task_resume"
        ),
        Route("POST", "/tasks/{task_id}/say", below_only, TaskService.say, tool="task_say"),
        Route("POST", "/tasks/{task_id}/check", owner_only, TaskService.check),
        Route("POST", "/tasks/{task_id}/requeue", owner_only, TaskService.requeue),
        Route("POST", "/tasks/{task_id}/archive", owner_only, WorkService.archive_task, "archive"),
        Route("PUT", "/tasks/{task_id}/dependencies", owner_only, TaskService.depend),
    ),
    "changes": _changes("task"),
    "runs": (
        Route("POST", "/runs", attempt_too, RunService.start, status=201, tool="run_start"),
        Route("GET", "/runs", attempt_too, RunService.page, tool="run_list"),
        Route("GET", "/runs/{run_id}", own_or_below, RunService.get, tool="run_get"),
        Route("GET", "/runs/{run_id}/steps", own_or_below, RunService.steps, tool="run_steps"),
        Route("GET", "/runs/{run_id}/wait", own_or_below, RunService.wait),
        Route("POST", "/runs/{run_id}/pause", below_only, RunService.pause, tool="run_pause"),
        Route("POST", "/runs/{run_id}/resume", below_only, RunService.resume, tool="run_resume"),
        Route("POST", "/runs/{run_id}/cancel", below_only, RunService.cancel, tool="run_cancel"),
        Route("POST", "/runs/{run_id}/archive", owner_only, WorkService.archive_run, "archive"),
        Route("POST", "/runs/{run_id}/answer", owner_only, RunService.answer),
        Route("POST", "/runs/{run_id}/follow_up", owner_only, RunService.follow_up, status=201),
        *_changes("run"),
    ),
    "work": (
        Route("GET", "/work", owner_only, WorkService.page),
        Route("GET", "/work/{work_id}", own_or_below, WorkService.get),
        Route("POST", "/work/{work_id}/mark", owner_only, WorkService.mark),
        Route("GET", "/wait", attempt_too, WorkService.wait, "wait_for_several", tool="wait"),
    ),
    "needs": (
        Route("GET", "/needs", owner_only, NeedService.page),
        Route("GET", "/sums", owner_only, NeedService.sums, "sums"),
    ),
    "patterns": (
        Route("GET", "/patterns", attempt_too, RunService.patterns, tool="pattern_list"),
        Route("GET", "/patterns/{name}", attempt_too, RunService.get_pattern, tool="pattern_get"),
    ),
    "schedules": (
        Route(
            "POST",
            "/schedules",
            owner_only,
            ScheduleService.create,
            status=201,
            tool="schedule_create",
        ),
        Route("GET", "/schedules", owner_only, ScheduleService.page, tool="schedule_list"),
        Route("GET", _SCHEDULE, owner_only, ScheduleService.get, tool="schedule_get"),
        Route("GET", f"{_SCHEDULE}/firings", owner_only, ScheduleService.history, "firings"),
        Route(
            "POST", f"{_SCHEDULE}/pause", owner_only, ScheduleService.pause, tool="schedule_pause"
        ),
        Route(
            "POST",
            f"{_SCHEDULE}/resume",
            owner_only,
            ScheduleService.resume,
            tool="schedule_resume",
        ),
        Route(
            "POST",
            f"{_SCHEDULE}/cancel",
            owner_only,
            ScheduleService.cancel,
            tool="schedule_cancel",
        ),
        Route(
            "POST",
            f"{_SCHEDULE}/run",
            owner_only,
            ScheduleService.run_now,
            "run",
            tool="schedule_run",
        ),
    ),
    "agents": (
        Route("GET", "/agents", owner_only, AgentService.known, "all_agents", tool="agent_list"),
        Route("GET", "/agents/{name}", owner_only, AgentService.get, "agent"),
        Route("POST", "/agents/{name}/check", owner_only, AgentService.check, tool="agent_check"),
        Route("PUT", "/agents/{name}/credential", owner_only, AgentService.store_key),
        Route("DELETE", "/agents/{name}/credential", owner_only, AgentService.forget_key),
    ),
    "daemon": (
        Route("GET", "/daemon", owner_only, DaemonService.describe, "daemon", tool="daemon_get"),
        Route("POST", "/daemon/stop", owner_only, DaemonService.stop, status=202),
        Route("POST", "/notify/test", owner_only, NotificationService.test, "notify"),
        Route("POST", "/backup", owner_only, DaemonService.back_up),
        Route("POST", "/prune", owner_only, WorkService.prune),
        Route("GET", "/doctor", owner_only, DoctorService.examine, "doctor", tool="doctor"),
        Route("GET", "/healthz", anybody, DaemonService.healthz),
    ),
    "logins": (
        Route("POST", "/login-codes", owner_only, SessionService.new_code, "login_code"),
        Route("POST", "/login", anybody, daemon.log_in, status=204, told=_NOTHING),
        Route("POST", "/logout", owner_only, daemon.log_out, status=204, told=_NOTHING),
    ),
    "usage": (Route("GET", "/usage", owner_only, ReportService.used, "usage", tool="usage_get"),),
    "trust": (
        Route("GET", "/trust", owner_only, TrustService.known),
        Route("POST", "/trust", owner_only, TrustService.grant),
        Route("DELETE", "/trust", owner_only, TrustService.withdraw),
    ),
    "learnings": (
        Route(
            "POST",
            "/learnings",
            attempt_too,
            KnowledgeService.add,
            status=201,
            tool="learning_report",
        ),
        Route("GET", "/learnings", attempt_too, KnowledgeService.page, tool="learning_search"),
        Route(
            "GET",
            "/learnings/markdown",
            owner_only,
            KnowledgeService.export,
            told={"description": "A page of learnings", "content": {"text/markdown": {}}},
        ),
        Route("POST", "/learnings/markdown", owner_only, KnowledgeService.import_),
        Route("GET", "/learnings/{learning_id}", owner_only, KnowledgeService.get),
        Route("PUT", "/learnings/{learning_id}", owner_only, KnowledgeService.edit),
        Route("DELETE", "/learnings/{learning_id}", owner_only, KnowledgeService.delete),
    ),
    "search": (Route("GET", "/search", owner_only, SearchService.find, "search", tool="search"),),
    "templates": (
        Route("GET", "/templates", owner_only, TemplateService.all, "page", tool="template_list"),
        Route("POST", "/templates", owner_only, TemplateService.create, status=201),
        Route("GET", "/templates/{template}", owner_only, TemplateService.get),
        Route("PUT", "/templates/{template}", owner_only, TemplateService.edit),
        Route("DELETE", "/templates/{template}", owner_only, TemplateService.delete),
    ),
    "projects": (
        Route("GET", "/projects", owner_only, ProjectService.all, "all_"),
        Route("POST", "/projects", owner_only, ProjectService.create, status=201),
        Route("PUT", "/projects", owner_only, ProjectService.change),
        Route("DELETE", "/projects", owner_only, ProjectService.delete),
        Route("PUT", "/projects/current", owner_only, ProjectService.switch),
    ),
    "relocations": (
        Route("GET", "/relocations", owner_only, RelocationService.candidates),
        Route("POST", "/relocations", owner_only, RelocationService.relocate),
    ),
    "notes": (
        Route("POST", "/notes", attempt_too, NoteService.put, tool="note_set"),
        Route("GET", "/notes", attempt_too, NoteService.page, tool="note_list"),
        Route("DELETE", "/notes", attempt_too, NoteService.delete, tool="note_delete"),
        Route("GET", "/notes/entry", attempt_too, NoteService.get, tool="note_get"),
        Route("GET", "/notes/watch", attempt_too, NoteService.watch, tool="note_watch"),
    ),
    "integrations": (
        Route("GET", "/integrations", attempt_too, IntegrationService.configured),
        Route(
            "POST",
            "/integrations/linear",
            attempt_too,
            IntegrationService.linear,
            tool="linear_query",
        ),
        Route(
            "POST", "/integrations/logs", attempt_too, IntegrationService.logs, tool="logs_query"
        ),
        Route(
            "POST",
            "/integrations/database",
            attempt_too,
            IntegrationService.database,
            tool="database_query",
        ),
        Route("POST", "/integrations/ci", attempt_too, IntegrationService.ci, tool="ci_logs"),
    ),
    "questions": (
        Route(
            "POST", "/questions", attempt_too, QuestionService.ask, status=201, tool="question_ask"
        ),
        Route("GET", "/questions", owner_only, QuestionService.unanswered, tool="question_list"),
        Route("GET", "/questions/{token}", attempt_too, QuestionService.wait, tool="question_wait"),
        Route(
            "POST",
            "/questions/{token}/answer",
            attempt_too,
            QuestionService.answer,
            tool="question_answer",
        ),
    ),
    "locks": (
        Route("POST", "/locks", attempt_too, LockService.take, tool="lock_take"),
        Route("GET", "/locks", attempt_too, LockService.known, tool="lock_list"),
        Route("POST", "/locks/release", attempt_too, LockService.release, tool="lock_release"),
        Route("POST", "/locks/check", attempt_too, LockService.check),
    ),
    "attempt": (
        Route("POST", "/attempt/report", attempt_too, TaskService.report, tool="task_report"),
        Route("POST", "/attempt/finish", attempt_too, TaskService.finish, tool="task_finish"),
    ),
    "batches": (
        Route("GET", "/batches", owner_only, BatchService.all, "list"),
        Route("GET", "/batches/{name}", owner_only, BatchService.get),
        Route("PUT", "/batches/{name}", owner_only, BatchService.save),
        Route("DELETE", "/batches/{name}", owner_only, BatchService.delete),
    ),
    "report": (Route("GET", "/report", owner_only, ReportService.report, "get"),),
    "output": (
        Route("GET", "/tasks/{task_id}/output", own_or_below, OutputService.output, told=_BYTES),
        Route("GET", "/tasks/{task_id}/output/find", own_or_below, OutputService.find),
        Route("GET", "/tasks/{task_id}/messages", own_or_below, OutputService.messages),
        Route("GET", "/tasks/{task_id}/files", own_or_below, OutputService.files),
        Route(
            "GET",
            "/tasks/{task_id}/files/{name}",
            own_or_below,
            OutputService.picture,
            told=_PICTURE,
        ),
        Route(
            "GET",
            "/tasks/{task_id}/transcript",
            own_or_below,
            daemon.transcript,
            told=STREAM,
            tool="task_logs",
        ),
        Route("WEBSOCKET", "/tasks/{task_id}/terminal", owner_only, terminal),
    ),
    "events": (Route("GET", "/events", attempt_too, daemon.events, told=STREAM, tool="run_tail"),),
}
