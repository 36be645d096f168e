"""The table of all operations: method, path, who may call it, and the use case.

In the lambdas, `s` is the Service with all use cases. The signature of a use case says what the
operation takes and returns, its docstring is the documentation. `tool` is the name of the operation
as a tool of MCP: a new tool is one more operation with a `tool`.
"""

from typing import Any

from kapelle.api.operation import Operation
from kapelle.api.routes.logins import Logins
from kapelle.api.routes.streams import Streams
from kapelle.api.routes.terminals import TerminalSockets
from kapelle.api.security import anybody, attempt_too, below_only, own_or_below, owner_only
from kapelle.api.sse import STREAM

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


def _changes(kind: str) -> tuple[Operation, ...]:
    """Return the operations on what a task or a run changed."""
    path = f"/{kind}s/{{{kind}_id}}"
    constants = {"kind": kind}
    names = {"work_id": f"{kind}_id"}
    patch = {"description": "A patch for git apply", "content": {"text/x-diff": {}}}
    return (
        Operation(
            "GET", f"{path}/diff", own_or_below, lambda s: s.changes.diff, constants=constants,
            path_names=names, tool=f"{kind}_diff",
        ),
        Operation(
            "GET", f"{path}/patch", own_or_below, lambda s: s.changes.patch, response=patch,
            constants=constants, path_names=names,
        ),
        Operation(
            "POST", f"{path}/merge", below_only, lambda s: s.changes.merge, constants=constants,
            path_names=names, tool=f"{kind}_merge",
        ),
        Operation(
            "POST", f"{path}/pr", owner_only, lambda s: s.changes.open_pull_request,
            constants=constants, path_names=names, tool=f"{kind}_pr",
        ),
        Operation(
            "GET", f"{path}/pr", owner_only, lambda s: s.changes.pull_request, constants=constants,
            path_names=names, tool=f"{kind}_pr_get",
        ),
        Operation(
            "GET", f"{path}/merge", owner_only, lambda s: s.changes.preview_merge,
            constants=constants, path_names=names,
        ),
        Operation(
            "POST", f"{path}/merge/undo", owner_only, lambda s: s.changes.undo_merge,
            tool=f"{kind}_merge_undo", constants=constants, path_names=names,
        ),
        Operation(
            "DELETE", f"{path}/merge", owner_only, lambda s: s.changes.give_up_merge,
            constants=constants, path_names=names,
        ),
    )  # fmt: skip


# By their tags, with which the ids of the operations begin.
OPERATIONS: dict[str, tuple[Operation, ...]] = {
    "tasks": (
        Operation(
            "POST", "/tasks", attempt_too, lambda s: s.tasks.submit, status=201, tool="task_create",
            inherit=lambda s: s.tasks.inherit_directory,
        ),
        Operation("GET", "/tasks", attempt_too, lambda s: s.tasks.page, tool="task_list"),
        Operation("GET", "/tasks/{task_id}", own_or_below, lambda s: s.tasks.get, tool="task_get"),
        Operation("GET", "/tasks/{task_id}/wait", own_or_below, lambda s: s.tasks.wait),
        Operation(
            "POST", "/tasks/{task_id}/cancel", below_only, lambda s: s.tasks.cancel,
            tool="task_cancel",
        ),
        Operation(
            "POST", "/tasks/{task_id}/retry", below_only, lambda s: s.tasks.retry,
            tool="task_retry",
        ),
        Operation(
            "POST", "/tasks/{task_id}/resume", below_only, lambda s: s.tasks.resume,
            tool="task_resume",
        ),
        Operation(
            "POST", "/tasks/{task_id}/say", below_only, lambda s: s.tasks.say, tool="task_say",
        ),
        Operation("POST", "/tasks/{task_id}/check", owner_only, lambda s: s.tasks.check),
        Operation("POST", "/tasks/{task_id}/requeue", owner_only, lambda s: s.tasks.requeue),
        Operation(
            "POST", "/tasks/{task_id}/archive", owner_only, lambda s: s.work.archive_task,
            "archive",
        ),
        Operation("PUT", "/tasks/{task_id}/dependencies", owner_only, lambda s: s.tasks.depend),
    ),
    "changes": _changes("task"),
    "runs": (
        Operation(
            "POST", "/runs", attempt_too, lambda s: s.runs.start, status=201, tool="run_start",
        ),
        Operation("GET", "/runs", attempt_too, lambda s: s.runs.page, tool="run_list"),
        Operation("GET", "/runs/{run_id}", own_or_below, lambda s: s.runs.get, tool="run_get"),
        Operation(
            "GET", "/runs/{run_id}/steps", own_or_below, lambda s: s.runs.steps, tool="run_steps",
        ),
        Operation("GET", "/runs/{run_id}/wait", own_or_below, lambda s: s.runs.wait),
        Operation(
            "POST", "/runs/{run_id}/pause", below_only, lambda s: s.runs.pause, tool="run_pause",
        ),
        Operation(
            "POST", "/runs/{run_id}/resume", below_only, lambda s: s.runs.resume, tool="run_resume",
        ),
        Operation(
            "POST", "/runs/{run_id}/cancel", below_only, lambda s: s.runs.cancel, tool="run_cancel",
        ),
        Operation(
            "POST", "/runs/{run_id}/archive", owner_only, lambda s: s.work.archive_run, "archive",
        ),
        Operation("POST", "/runs/{run_id}/answer", owner_only, lambda s: s.runs.answer),
        Operation(
            "POST", "/runs/{run_id}/follow_up", owner_only, lambda s: s.runs.follow_up, status=201,
        ),
        *_changes("run"),
    ),
    "work": (
        Operation("GET", "/work", owner_only, lambda s: s.work.page),
        Operation("GET", "/work/{work_id}", own_or_below, lambda s: s.work.get),
        Operation("POST", "/work/{work_id}/mark", owner_only, lambda s: s.work.mark),
        Operation(
            "GET", "/wait", attempt_too, lambda s: s.work.wait, "wait_for_several", tool="wait",
        ),
    ),
    "needs": (
        Operation("GET", "/needs", owner_only, lambda s: s.needs.page),
        Operation("GET", "/sums", owner_only, lambda s: s.needs.sums, "sums"),
    ),
    "patterns": (
        Operation("GET", "/patterns", attempt_too, lambda s: s.runs.patterns, tool="pattern_list"),
        Operation(
            "GET", "/patterns/{name}", attempt_too, lambda s: s.runs.get_pattern,
            tool="pattern_get",
        ),
    ),
    "schedules": (
        Operation(
            "POST", "/schedules", owner_only, lambda s: s.schedules.create, status=201,
            tool="schedule_create",
        ),
        Operation(
            "GET", "/schedules", owner_only, lambda s: s.schedules.page, tool="schedule_list",
        ),
        Operation("GET", _SCHEDULE, owner_only, lambda s: s.schedules.get, tool="schedule_get"),
        Operation(
            "GET", f"{_SCHEDULE}/firings", owner_only, lambda s: s.schedules.history, "firings",
        ),
        Operation(
            "POST", f"{_SCHEDULE}/pause", owner_only, lambda s: s.schedules.pause,
            tool="schedule_pause",
        ),
        Operation(
            "POST", f"{_SCHEDULE}/resume", owner_only, lambda s: s.schedules.resume,
            tool="schedule_resume",
        ),
        Operation(
            "POST", f"{_SCHEDULE}/cancel", owner_only, lambda s: s.schedules.cancel,
            tool="schedule_cancel",
        ),
        Operation(
            "POST", f"{_SCHEDULE}/run", owner_only, lambda s: s.schedules.run_now, "run",
            tool="schedule_run",
        ),
    ),
    "agents": (
        Operation(
            "GET", "/agents", owner_only, lambda s: s.agents.list_agents, "all_agents",
            tool="agent_list",
        ),
        Operation("GET", "/agents/{name}", owner_only, lambda s: s.agents.get, "agent"),
        Operation(
            "POST", "/agents/{name}/check", owner_only, lambda s: s.agents.check,
            tool="agent_check",
        ),
        Operation("PUT", "/agents/{name}/credential", owner_only, lambda s: s.agents.store_key),
        Operation("DELETE", "/agents/{name}/credential", owner_only, lambda s: s.agents.forget_key),
    ),
    "daemon": (
        Operation(
            "GET", "/daemon", owner_only, lambda s: s.daemon.describe, "daemon", tool="daemon_get",
        ),
        Operation("POST", "/daemon/stop", owner_only, lambda s: s.daemon.stop, status=202),
        Operation("POST", "/notify/test", owner_only, lambda s: s.notify.test, "notify"),
        Operation("POST", "/backup", owner_only, lambda s: s.daemon.back_up),
        Operation("POST", "/prune", owner_only, lambda s: s.work.prune),
        Operation(
            "GET", "/doctor", owner_only, lambda s: s.doctor.examine, "doctor", tool="doctor",
        ),
        Operation("GET", "/healthz", anybody, lambda s: s.daemon.healthz),
    ),
    "logins": (
        Operation("POST", "/login-codes", owner_only, lambda s: s.sessions.new_code, "login_code"),
        Operation(
            "POST", "/login", anybody, lambda s: Logins(s).log_in, status=204, response=_NOTHING,
        ),
        Operation(
            "POST", "/logout", owner_only, lambda s: Logins(s).log_out, status=204,
            response=_NOTHING,
        ),
    ),
    "usage": (
        Operation(
            "GET", "/usage", owner_only, lambda s: s.reports.usage, "usage", tool="usage_get"
        ),
    ),
    "trust": (
        Operation("GET", "/trust", owner_only, lambda s: s.trust.list_repositories, "known"),
        Operation("POST", "/trust", owner_only, lambda s: s.trust.grant),
        Operation("DELETE", "/trust", owner_only, lambda s: s.trust.withdraw),
    ),
    "learnings": (
        Operation(
            "POST", "/learnings", attempt_too, lambda s: s.learnings.add, status=201,
            tool="learning_report",
        ),
        Operation(
            "GET", "/learnings", attempt_too, lambda s: s.learnings.page, tool="learning_search",
        ),
        Operation(
            "GET", "/learnings/markdown", owner_only, lambda s: s.learnings.export,
            response={"description": "A page of learnings", "content": {"text/markdown": {}}},
        ),
        Operation("POST", "/learnings/markdown", owner_only, lambda s: s.learnings.import_),
        Operation("GET", "/learnings/{learning_id}", owner_only, lambda s: s.learnings.get),
        Operation("PUT", "/learnings/{learning_id}", owner_only, lambda s: s.learnings.edit),
        Operation("DELETE", "/learnings/{learning_id}", owner_only, lambda s: s.learnings.delete),
    ),
    "search": (
        Operation("GET", "/search", owner_only, lambda s: s.search.find, "search", tool="search"),
    ),
    "templates": (
        Operation(
            "GET", "/templates", owner_only, lambda s: s.templates.all, "page",
            tool="template_list",
        ),
        Operation("POST", "/templates", owner_only, lambda s: s.templates.create, status=201),
        Operation("GET", "/templates/{template}", owner_only, lambda s: s.templates.get),
        Operation("PUT", "/templates/{template}", owner_only, lambda s: s.templates.edit),
        Operation("DELETE", "/templates/{template}", owner_only, lambda s: s.templates.delete),
    ),
    "projects": (
        Operation("GET", "/projects", owner_only, lambda s: s.projects.all, "all_"),
        Operation("POST", "/projects", owner_only, lambda s: s.projects.create, status=201),
        Operation("PUT", "/projects", owner_only, lambda s: s.projects.change),
        Operation("DELETE", "/projects", owner_only, lambda s: s.projects.delete),
        Operation("PUT", "/projects/current", owner_only, lambda s: s.projects.switch),
    ),
    "relocations": (
        Operation("GET", "/relocations", owner_only, lambda s: s.relocations.candidates),
        Operation("POST", "/relocations", owner_only, lambda s: s.relocations.relocate),
    ),
    "notes": (
        Operation("POST", "/notes", attempt_too, lambda s: s.notes.put, tool="note_set"),
        Operation("GET", "/notes", attempt_too, lambda s: s.notes.page, tool="note_list"),
        Operation("DELETE", "/notes", attempt_too, lambda s: s.notes.delete, tool="note_delete"),
        Operation("GET", "/notes/entry", attempt_too, lambda s: s.notes.get, tool="note_get"),
        Operation("GET", "/notes/watch", attempt_too, lambda s: s.notes.watch, tool="note_watch"),
    ),
    "integrations": (
        Operation(
            "GET", "/integrations", attempt_too, lambda s: s.integrations.list_configured,
            "configured",
        ),
        Operation(
            "POST", "/integrations/linear", attempt_too, lambda s: s.integrations.linear,
            tool="linear_query",
        ),
        Operation(
            "POST", "/integrations/logs", attempt_too, lambda s: s.integrations.logs,
            tool="logs_query",
        ),
        Operation(
            "POST", "/integrations/database", attempt_too, lambda s: s.integrations.database,
            tool="database_query",
        ),
        Operation(
            "POST", "/integrations/ci", attempt_too, lambda s: s.integrations.ci, tool="ci_logs",
        ),
    ),
    "questions": (
        Operation(
            "POST", "/questions", attempt_too, lambda s: s.questions.ask, status=201,
            tool="question_ask",
        ),
        Operation(
            "GET", "/questions", owner_only, lambda s: s.questions.list_unanswered,
            "unanswered", tool="question_list",
        ),
        Operation(
            "GET", "/questions/{token}", attempt_too, lambda s: s.questions.wait,
            tool="question_wait",
        ),
        Operation(
            "POST", "/questions/{token}/answer", attempt_too, lambda s: s.questions.answer,
            tool="question_answer",
        ),
    ),
    "locks": (
        Operation("POST", "/locks", attempt_too, lambda s: s.locks.take, tool="lock_take"),
        Operation(
            "GET", "/locks", attempt_too, lambda s: s.locks.list_locks, "known", tool="lock_list",
        ),
        Operation(
            "POST", "/locks/release", attempt_too, lambda s: s.locks.release, tool="lock_release",
        ),
        Operation("POST", "/locks/check", attempt_too, lambda s: s.locks.check),
    ),
    "attempt": (
        Operation(
            "POST", "/attempt/report", attempt_too, lambda s: s.tasks.report, tool="task_report",
        ),
        Operation(
            "POST", "/attempt/finish", attempt_too, lambda s: s.tasks.finish, tool="task_finish",
        ),
    ),
    "batches": (
        Operation("GET", "/batches", owner_only, lambda s: s.batches.all, "list"),
        Operation("GET", "/batches/{name}", owner_only, lambda s: s.batches.get),
        Operation("PUT", "/batches/{name}", owner_only, lambda s: s.batches.save),
        Operation("DELETE", "/batches/{name}", owner_only, lambda s: s.batches.delete),
    ),
    "report": (Operation("GET", "/report", owner_only, lambda s: s.reports.report, "get"),),
    "output": (
        Operation(
            "GET", "/tasks/{task_id}/output", own_or_below, lambda s: s.output.output,
            response=_BYTES,
        ),
        Operation("GET", "/tasks/{task_id}/output/find", own_or_below, lambda s: s.output.find),
        Operation("GET", "/tasks/{task_id}/messages", own_or_below, lambda s: s.output.messages),
        Operation("GET", "/tasks/{task_id}/files", own_or_below, lambda s: s.output.files),
        Operation(
            "GET", "/tasks/{task_id}/files/{name}", own_or_below, lambda s: s.output.picture,
            response=_PICTURE,
        ),
        Operation(
            "GET", "/tasks/{task_id}/transcript", own_or_below, lambda s: Streams(s).transcript,
            response=STREAM, tool="task_logs",
        ),
        Operation(
            "WEBSOCKET", "/tasks/{task_id}/terminal", owner_only,
            lambda s: TerminalSockets(s).attach, "terminal",
        ),
    ),
    "events": (
        Operation(
            "GET", "/events", attempt_too, lambda s: Streams(s).events, response=STREAM,
            tool="run_tail",
        ),
    ),
}  # fmt: skip
