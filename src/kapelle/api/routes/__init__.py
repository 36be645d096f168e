"""The routes, most of them a use case each: a row says its method, path, who may call it and which,
and under which name it is a tool of MCP.

What a route takes, gives and says of itself is the signature and the docstring of its use case; the
others, which stream or set cookies, stand in the modules beside this one.
"""

from typing import Any

from kapelle.api.router import Row
from kapelle.api.routes import daemon
from kapelle.api.routes.terminals import terminal
from kapelle.api.security import anybody, attempt_too, below_only, own_or_below, owner_only
from kapelle.api.sse import STREAM
from kapelle.service.agents import Agents
from kapelle.service.batches import Batches
from kapelle.service.daemon import Daemon
from kapelle.service.doctor import Doctor
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
from kapelle.service.schedules import Schedules
from kapelle.service.search import Search
from kapelle.service.sessions import Sessions
from kapelle.service.tasks import Tasks
from kapelle.service.trust import Trust
from kapelle.service.work import Work

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


def _changes(kind: str) -> tuple[Row, ...]:
    """What a task or a run changed, and merging it."""
    path = f"/{kind}s/{{{kind}_id}}"
    fixed = {"kind": kind}
    patch = {"description": "A patch for git apply", "content": {"text/x-diff": {}}}
    return (
        Row("GET", f"{path}/diff", own_or_below, Work.diff, fixed=fixed, tool=f"{kind}_diff"),
        Row("GET", f"{path}/patch", own_or_below, Work.patch, told=patch, fixed=fixed),
        Row("POST", f"{path}/merge", below_only, Work.merge, fixed=fixed, tool=f"{kind}_merge"),
        Row(
            "POST", f"{path}/pr", owner_only, Work.open_pull_request, tool=f"{kind}_pr", fixed=fixed
        ),
        Row("GET", f"{path}/pr", owner_only, Work.pull_request, fixed=fixed, tool=f"{kind}_pr_get"),
        Row("GET", f"{path}/merge", owner_only, Work.preview_merge, fixed=fixed),
        Row(
            "POST", f"{path}/merge/undo", owner_only, Work.undo_merge,
            tool=f"{kind}_merge_undo", fixed=fixed,
        ),
        Row("DELETE", f"{path}/merge", owner_only, Work.give_up_merge, fixed=fixed),
    )  # fmt: skip


# By their tags, which are the beginnings of the operations' ids.
ROUTES: dict[str, tuple[Row, ...]] = {
    "tasks": (
        Row(
            "POST", "/tasks", attempt_too, Tasks.submit, status=201, tool="task_create",
            inherit=Tasks.inherit_directory,
        ),
        Row("GET", "/tasks", attempt_too, Tasks.page, tool="task_list"),
        Row("GET", "/tasks/{task_id}", own_or_below, Tasks.get, tool="task_get"),
        Row("GET", "/tasks/{task_id}/wait", own_or_below, Tasks.wait),
        Row("POST", "/tasks/{task_id}/cancel", below_only, Tasks.cancel, tool="task_cancel"),
        Row("POST", "/tasks/{task_id}/retry", below_only, Tasks.retry, tool="task_retry"),
        Row("POST", "/tasks/{task_id}/resume", below_only, Tasks.resume, tool="task_resume"),
        Row("POST", "/tasks/{task_id}/say", below_only, Tasks.say, tool="task_say"),
        Row("POST", "/tasks/{task_id}/check", owner_only, Tasks.check),
        Row("POST", "/tasks/{task_id}/requeue", owner_only, Tasks.requeue),
        Row("POST", "/tasks/{task_id}/archive", owner_only, Work.archive_task, "archive"),
        Row("PUT", "/tasks/{task_id}/dependencies", owner_only, Tasks.depend),
    ),
    "changes": _changes("task"),
    "runs": (
        Row("POST", "/runs", attempt_too, Runs.start, status=201, tool="run_start"),
        Row("GET", "/runs", attempt_too, Runs.page, tool="run_list"),
        Row("GET", "/runs/{run_id}", own_or_below, Runs.get, tool="run_get"),
        Row("GET", "/runs/{run_id}/steps", own_or_below, Runs.steps, tool="run_steps"),
        Row("GET", "/runs/{run_id}/wait", own_or_below, Runs.wait),
        Row("POST", "/runs/{run_id}/pause", below_only, Runs.pause, tool="run_pause"),
        Row("POST", "/runs/{run_id}/resume", below_only, Runs.resume, tool="run_resume"),
        Row("POST", "/runs/{run_id}/cancel", below_only, Runs.cancel, tool="run_cancel"),
        Row("POST", "/runs/{run_id}/archive", owner_only, Work.archive_run, "archive"),
        Row("POST", "/runs/{run_id}/answer", owner_only, Runs.answer),
        Row("POST", "/runs/{run_id}/follow_up", owner_only, Runs.follow_up, status=201),
        *_changes("run"),
    ),
    "work": (
        Row("GET", "/work", owner_only, Work.page),
        Row("GET", "/work/{work_id}", own_or_below, Work.get),
        Row("POST", "/work/{work_id}/mark", owner_only, Work.mark),
        Row("GET", "/wait", attempt_too, Work.wait, "wait_for_several", tool="wait"),
    ),
    "needs": (
        Row("GET", "/needs", owner_only, Needs.page),
        Row("GET", "/sums", owner_only, Needs.sums, "sums"),
    ),
    "patterns": (
        Row("GET", "/patterns", attempt_too, Runs.patterns, tool="pattern_list"),
        Row("GET", "/patterns/{name}", attempt_too, Runs.get_pattern, tool="pattern_get"),
    ),
    "schedules": (
        Row("POST", "/schedules", owner_only, Schedules.create, status=201, tool="schedule_create"),
        Row("GET", "/schedules", owner_only, Schedules.page, tool="schedule_list"),
        Row("GET", _SCHEDULE, owner_only, Schedules.get, tool="schedule_get"),
        Row("GET", f"{_SCHEDULE}/firings", owner_only, Schedules.history, "firings"),
        Row("POST", f"{_SCHEDULE}/pause", owner_only, Schedules.pause, tool="schedule_pause"),
        Row("POST", f"{_SCHEDULE}/resume", owner_only, Schedules.resume, tool="schedule_resume"),
        Row("POST", f"{_SCHEDULE}/cancel", owner_only, Schedules.cancel, tool="schedule_cancel"),
        Row("POST", f"{_SCHEDULE}/run", owner_only, Schedules.run_now, "run", tool="schedule_run"),
    ),
    "agents": (
        Row("GET", "/agents", owner_only, Agents.known, "all_agents", tool="agent_list"),
        Row("GET", "/agents/{name}", owner_only, Agents.get, "agent"),
        Row("POST", "/agents/{name}/check", owner_only, Agents.check, tool="agent_check"),
        Row("PUT", "/agents/{name}/credential", owner_only, Agents.store_key),
        Row("DELETE", "/agents/{name}/credential", owner_only, Agents.forget_key),
    ),
    "daemon": (
        Row("GET", "/daemon", owner_only, Daemon.describe, "daemon", tool="daemon_get"),
        Row("POST", "/daemon/stop", owner_only, Daemon.stop, status=202),
        Row("POST", "/notify/test", owner_only, Notify.test, "notify"),
        Row("POST", "/backup", owner_only, Daemon.back_up),
        Row("POST", "/prune", owner_only, Work.prune),
        Row("GET", "/doctor", owner_only, Doctor.examine, "doctor", tool="doctor"),
        Row("GET", "/healthz", anybody, Daemon.healthz),
    ),
    "logins": (
        Row("POST", "/login-codes", owner_only, Sessions.new_code, "login_code"),
        Row("POST", "/login", anybody, daemon.log_in, status=204, told=_NOTHING),
        Row("POST", "/logout", owner_only, daemon.log_out, status=204, told=_NOTHING),
    ),
    "usage": (Row("GET", "/usage", owner_only, Reports.used, "usage", tool="usage_get"),),
    "trust": (
        Row("GET", "/trust", owner_only, Trust.known),
        Row("POST", "/trust", owner_only, Trust.grant),
        Row("DELETE", "/trust", owner_only, Trust.withdraw),
    ),
    "learnings": (
        Row("POST", "/learnings", attempt_too, Knowledge.add, status=201, tool="learning_report"),
        Row("GET", "/learnings", attempt_too, Knowledge.page, tool="learning_search"),
        Row(
            "GET", "/learnings/markdown", owner_only, Knowledge.export,
            told={"description": "A page of learnings", "content": {"text/markdown": {}}},
        ),
        Row("POST", "/learnings/markdown", owner_only, Knowledge.import_),
        Row("GET", "/learnings/{learning_id}", owner_only, Knowledge.get),
        Row("PUT", "/learnings/{learning_id}", owner_only, Knowledge.edit),
        Row("DELETE", "/learnings/{learning_id}", owner_only, Knowledge.delete),
    ),
    "search": (Row("GET", "/search", owner_only, Search.find, "search", tool="search"),),
    "templates": (
        Row("GET", "/templates", owner_only, Templates.all, "page", tool="template_list"),
        Row("POST", "/templates", owner_only, Templates.create, status=201),
        Row("GET", "/templates/{template}", owner_only, Templates.get),
        Row("PUT", "/templates/{template}", owner_only, Templates.edit),
        Row("DELETE", "/templates/{template}", owner_only, Templates.delete),
    ),
    "projects": (
        Row("GET", "/projects", owner_only, Projects.all, "all_"),
        Row("POST", "/projects", owner_only, Projects.create, status=201),
        Row("PUT", "/projects", owner_only, Projects.change),
        Row("DELETE", "/projects", owner_only, Projects.delete),
        Row("PUT", "/projects/current", owner_only, Projects.switch),
    ),
    "relocations": (
        Row("GET", "/relocations", owner_only, Relocations.candidates),
        Row("POST", "/relocations", owner_only, Relocations.relocate),
    ),
    "notes": (
        Row("POST", "/notes", attempt_too, Notes.put, tool="note_set"),
        Row("GET", "/notes", attempt_too, Notes.page, tool="note_list"),
        Row("DELETE", "/notes", attempt_too, Notes.delete, tool="note_delete"),
        Row("GET", "/notes/entry", attempt_too, Notes.get, tool="note_get"),
        Row("GET", "/notes/watch", attempt_too, Notes.watch, tool="note_watch"),
    ),
    "integrations": (
        Row("GET", "/integrations", attempt_too, Integrations.configured),
        Row("POST", "/integrations/linear", attempt_too, Integrations.linear, tool="linear_query"),
        Row("POST", "/integrations/logs", attempt_too, Integrations.logs, tool="logs_query"),
        Row(
            "POST", "/integrations/database", attempt_too, Integrations.database,
            tool="database_query",
        ),
        Row("POST", "/integrations/ci", attempt_too, Integrations.ci, tool="ci_logs"),
    ),
    "questions": (
        Row("POST", "/questions", attempt_too, Questions.ask, status=201, tool="question_ask"),
        Row("GET", "/questions", owner_only, Questions.unanswered, tool="question_list"),
        Row("GET", "/questions/{token}", attempt_too, Questions.wait, tool="question_wait"),
        Row(
            "POST", "/questions/{token}/answer", attempt_too, Questions.answer,
            tool="question_answer",
        ),
    ),
    "locks": (
        Row("POST", "/locks", attempt_too, LockService.take, tool="lock_take"),
        Row("GET", "/locks", attempt_too, LockService.known, tool="lock_list"),
        Row("POST", "/locks/release", attempt_too, LockService.release, tool="lock_release"),
        Row("POST", "/locks/check", attempt_too, LockService.check),
    ),
    "attempt": (
        Row("POST", "/attempt/report", attempt_too, Tasks.report, tool="task_report"),
        Row("POST", "/attempt/finish", attempt_too, Tasks.finish, tool="task_finish"),
    ),
    "batches": (
        Row("GET", "/batches", owner_only, Batches.all, "list"),
        Row("GET", "/batches/{name}", owner_only, Batches.get),
        Row("PUT", "/batches/{name}", owner_only, Batches.save),
        Row("DELETE", "/batches/{name}", owner_only, Batches.delete),
    ),
    "report": (Row("GET", "/report", owner_only, Reports.report, "get"),),
    "output": (
        Row("GET", "/tasks/{task_id}/output", own_or_below, Output.output, told=_BYTES),
        Row("GET", "/tasks/{task_id}/output/find", own_or_below, Output.find),
        Row("GET", "/tasks/{task_id}/messages", own_or_below, Output.messages),
        Row("GET", "/tasks/{task_id}/files", own_or_below, Output.files),
        Row("GET", "/tasks/{task_id}/files/{name}", own_or_below, Output.picture, told=_PICTURE),
        Row(
            "GET", "/tasks/{task_id}/transcript", own_or_below, daemon.transcript, told=STREAM,
            tool="task_logs",
        ),
        Row("WEBSOCKET", "/tasks/{task_id}/terminal", owner_only, terminal),
    ),
    "events": (Row("GET", "/events", attempt_too, daemon.events, told=STREAM, tool="run_tail"),),
}  # fmt: skip
