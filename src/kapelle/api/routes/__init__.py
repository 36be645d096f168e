"""The routes that are one use case each: a row says its method, path, who may call it and which.

What a route takes, gives and says of itself is the signature and the docstring of its use case; the
others, which stream or set cookies, stand in the modules beside this one.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response

from kapelle.api.security import (
    AskingAttempt,
    Parent,
    attempt_too,
    below_only,
    own_or_below,
    owner_only,
)
from kapelle.service.agents import Agents
from kapelle.service.batches import Batches
from kapelle.service.daemon import Daemon
from kapelle.service.integrations import Integrations
from kapelle.service.knowledge import Knowledge, Templates
from kapelle.service.locks import LockService
from kapelle.service.notes import Notes
from kapelle.service.notify import Notify
from kapelle.service.projects import Projects
from kapelle.service.questions import Questions
from kapelle.service.report import Reports
from kapelle.service.runs import Runs
from kapelle.service.schedules import Schedules
from kapelle.service.search import Search
from kapelle.service.sessions import Sessions
from kapelle.service.tasks import Tasks
from kapelle.service.trust import Trust
from kapelle.service.usage import Usages
from kapelle.service.work import Work

UseCase = Callable[..., Any]
# What parameters of use cases are to a request, besides what stands in its path, query and body.
_KNOWN = {
    "parent": Parent,
    "attempt_id": AskingAttempt,
    "idempotency_key": Annotated[str | None, Header(min_length=1, max_length=200)],
}


@dataclass(frozen=True)
class Row:
    """A use case as a route; text, where it takes one, is the id in the path."""

    method: str
    path: str
    who: UseCase  # a mark of api/security.py
    use_case: UseCase
    name: str = ""  # by default that of the use case
    status: int = 200
    media: tuple[str, str] | None = None  # of what is no JSON: its type, and what it is
    fixed: dict[str, Any] = field(default_factory=dict)  # what the use case is always given

    def add_to(self, router: APIRouter) -> None:
        given = inspect.signature(self.use_case)
        taken = [one for one in given.parameters.values() if one.name not in {"self", *self.fixed}]
        request = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
        gives = Response if self.media else given.return_annotation
        endpoint = self._endpoint()
        endpoint.__doc__ = self.use_case.__doc__
        endpoint.__name__ = self.name or self.use_case.__name__
        parameters = [request, *map(self._parameter, taken)]
        # Whoever is given the parent has asked this already.
        asks = self.who is attempt_too and any(one.name == "parent" for one in taken)
        endpoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            parameters, return_annotation=gives
        )
        how: dict[str, Any] = {}
        if self.media:
            content = {"content": {self.media[0]: {}}, "description": self.media[1]}
            how = {"response_class": Response, "responses": {200: content}}
        router.add_api_route(
            self.path, endpoint, methods=[self.method], status_code=self.status,
            dependencies=[] if asks else [Depends(self.who)], **how,
        )  # fmt: skip

    def _endpoint(self) -> UseCase:
        noun = self.use_case.__qualname__.partition(".")[0]

        async def endpoint(request: Request, **given: Any) -> Any:
            service = request.app.state.service
            found = self.use_case(service.of_class[noun], **given, **self.fixed)
            answer = await found if inspect.isawaitable(found) else found
            return Response(answer, media_type=self.media[0]) if self.media else answer

        return endpoint

    def _parameter(self, one: inspect.Parameter) -> inspect.Parameter:
        one = one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if one.name in {"parent", "attempt_id"}:
            one = one.replace(default=inspect.Parameter.empty)
        if one.name == "text":
            in_path = self.path.partition("{")[2].partition("}")[0]
            return one.replace(annotation=Annotated[str, Path(alias=in_path)])
        known = _KNOWN.get(one.name)
        if (
            known is None
            and self.method in {"GET", "DELETE"}
            and f"{{{one.name}}}" not in self.path
        ):
            known = Annotated[one.annotation, Query()]
        return one.replace(annotation=known or one.annotation)


def _changes(kind: str) -> tuple[Row, ...]:
    """What a task or a run changed, and merging it."""
    path, fixed = f"/{kind}s/{{{kind}_id}}", {"kind": kind}
    patch = ("text/x-diff", "A patch for git apply")
    return (
        Row("GET", f"{path}/diff", own_or_below, Work.diff, fixed=fixed),
        Row("GET", f"{path}/patch", own_or_below, Work.patch, media=patch, fixed=fixed),
        Row("POST", f"{path}/merge", below_only, Work.merge, fixed=fixed),
        Row("POST", f"{path}/pr", owner_only, Work.open_pull_request, fixed=fixed),
        Row("GET", f"{path}/pr", owner_only, Work.pull_request, fixed=fixed),
        Row("GET", f"{path}/merge", owner_only, Work.preview_merge, fixed=fixed),
        Row("DELETE", f"{path}/merge", owner_only, Work.give_up_merge, fixed=fixed),
    )


# By their tags, which are the beginnings of the operations' ids.
ROUTES: dict[str, tuple[Row, ...]] = {
    "tasks": (
        Row("POST", "/tasks", attempt_too, Tasks.submit, status=201),
        Row("GET", "/tasks", attempt_too, Tasks.page),
        Row("GET", "/tasks/{task_id}", own_or_below, Tasks.get),
        Row("GET", "/tasks/{task_id}/wait", own_or_below, Tasks.wait),
        Row("POST", "/tasks/{task_id}/cancel", below_only, Tasks.cancel),
        Row("POST", "/tasks/{task_id}/retry", below_only, Tasks.retry),
        Row("POST", "/tasks/{task_id}/resume", below_only, Tasks.resume),
        Row("POST", "/tasks/{task_id}/say", below_only, Tasks.say),
        Row("POST", "/tasks/{task_id}/check", owner_only, Tasks.check),
        Row("POST", "/tasks/{task_id}/requeue", owner_only, Tasks.requeue),
        Row("POST", "/tasks/{task_id}/archive", owner_only, Work.archive_task, "archive"),
        Row("PUT", "/tasks/{task_id}/dependencies", owner_only, Tasks.depend),
    ),
    "changes": _changes("task"),
    "runs": (
        Row("POST", "/runs", attempt_too, Runs.start, status=201),
        Row("GET", "/runs", attempt_too, Runs.page),
        Row("GET", "/runs/{run_id}", own_or_below, Runs.get),
        Row("GET", "/runs/{run_id}/steps", own_or_below, Runs.steps),
        Row("GET", "/runs/{run_id}/wait", own_or_below, Runs.wait),
        Row("POST", "/runs/{run_id}/pause", below_only, Runs.pause),
        Row("POST", "/runs/{run_id}/resume", below_only, Runs.resume),
        Row("POST", "/runs/{run_id}/cancel", below_only, Runs.cancel),
        Row("POST", "/runs/{run_id}/archive", owner_only, Work.archive_run, "archive"),
        Row("POST", "/runs/{run_id}/answer", owner_only, Runs.answer),
        *_changes("run"),
    ),
    "work": (
        Row("GET", "/work", owner_only, Work.page),
        Row("GET", "/work/{work_id}", own_or_below, Work.get),
        Row("POST", "/work/{work_id}/mark", owner_only, Work.mark),
        Row("GET", "/wait", attempt_too, Work.wait, "wait_for_several"),
    ),
    "patterns": (Row("GET", "/patterns", attempt_too, Runs.patterns),),
    "schedules": (
        Row("POST", "/schedules", owner_only, Schedules.create, status=201),
        Row("GET", "/schedules", owner_only, Schedules.page),
        Row("GET", "/schedules/{schedule_id}", owner_only, Schedules.get),
        Row("GET", "/schedules/{schedule_id}/firings", owner_only, Schedules.history, "firings"),
        Row("POST", "/schedules/{schedule_id}/pause", owner_only, Schedules.pause),
        Row("POST", "/schedules/{schedule_id}/resume", owner_only, Schedules.resume),
        Row("POST", "/schedules/{schedule_id}/cancel", owner_only, Schedules.cancel),
        Row("POST", "/schedules/{schedule_id}/run", owner_only, Schedules.run_now, "run"),
    ),
    "agents": (
        Row("GET", "/agents", owner_only, Agents.known, "all_agents"),
        Row("GET", "/agents/{name}", owner_only, Agents.get, "agent"),
        Row("POST", "/agents/{name}/check", owner_only, Agents.check),
        Row("PUT", "/agents/{name}/credential", owner_only, Agents.store_key),
        Row("DELETE", "/agents/{name}/credential", owner_only, Agents.forget_key),
    ),
    "daemon": (
        Row("GET", "/daemon", owner_only, Daemon.describe, "daemon"),
        Row("POST", "/daemon/stop", owner_only, Daemon.stop, status=202),
        Row("POST", "/notify/test", owner_only, Notify.test, "notify"),
        Row("POST", "/backup", owner_only, Daemon.back_up),
        Row("POST", "/prune", owner_only, Work.prune),
    ),
    "logins": (Row("POST", "/login-codes", owner_only, Sessions.new_code, "login_code"),),
    "usage": (Row("GET", "/usage", owner_only, Usages.report, "usage"),),
    "trust": (
        Row("GET", "/trust", owner_only, Trust.known),
        Row("POST", "/trust", owner_only, Trust.grant),
        Row("DELETE", "/trust", owner_only, Trust.withdraw),
    ),
    "learnings": (
        Row("POST", "/learnings", attempt_too, Knowledge.add, status=201),
        Row("GET", "/learnings", attempt_too, Knowledge.page),
        Row(
            "GET", "/learnings/markdown", owner_only, Knowledge.export,
            media=("text/markdown", "A page of learnings"),
        ),
        Row("POST", "/learnings/markdown", owner_only, Knowledge.import_),
        Row("GET", "/learnings/{learning_id}", owner_only, Knowledge.get),
        Row("PUT", "/learnings/{learning_id}", owner_only, Knowledge.edit),
        Row("DELETE", "/learnings/{learning_id}", owner_only, Knowledge.delete),
    ),
    "search": (Row("GET", "/search", owner_only, Search.find, "search"),),
    "templates": (
        Row("GET", "/templates", owner_only, Templates.all, "page"),
        Row("POST", "/templates", owner_only, Templates.create, status=201),
        Row("GET", "/templates/{template}", owner_only, Templates.get),
        Row("PUT", "/templates/{template}", owner_only, Templates.edit),
        Row("DELETE", "/templates/{template}", owner_only, Templates.delete),
    ),
    "projects": (
        Row("GET", "/projects", owner_only, Projects.all, "all_"),
        Row("POST", "/projects", owner_only, Projects.create, status=201),
        Row("PUT", "/projects", owner_only, Projects.change),
        Row("PUT", "/projects/current", owner_only, Projects.switch),
    ),
    "notes": (
        Row("POST", "/notes", attempt_too, Notes.put),
        Row("GET", "/notes", attempt_too, Notes.page),
        Row("DELETE", "/notes", attempt_too, Notes.delete),
        Row("GET", "/notes/entry", attempt_too, Notes.get),
        Row("GET", "/notes/watch", attempt_too, Notes.watch),
    ),
    "integrations": (
        Row("GET", "/integrations", attempt_too, Integrations.configured),
        Row("POST", "/integrations/linear", attempt_too, Integrations.linear),
        Row("POST", "/integrations/logs", attempt_too, Integrations.logs),
        Row("POST", "/integrations/database", attempt_too, Integrations.database),
        Row("POST", "/integrations/ci", attempt_too, Integrations.ci),
    ),
    "questions": (
        Row("POST", "/questions", attempt_too, Questions.ask, status=201),
        Row("GET", "/questions", owner_only, Questions.unanswered),
        Row("GET", "/questions/{token}", attempt_too, Questions.wait),
        Row("POST", "/questions/{token}/answer", attempt_too, Questions.answer),
    ),
    "locks": (
        Row("POST", "/locks", attempt_too, LockService.take),
        Row("GET", "/locks", attempt_too, LockService.known),
        Row("POST", "/locks/release", attempt_too, LockService.release),
        Row("POST", "/locks/check", attempt_too, LockService.check),
    ),
    "attempt": (
        Row("POST", "/attempt/report", attempt_too, Tasks.report),
        Row("POST", "/attempt/finish", attempt_too, Tasks.finish),
    ),
    "batches": (
        Row("GET", "/batches", owner_only, Batches.all, "list"),
        Row("GET", "/batches/{name}", owner_only, Batches.get),
        Row("PUT", "/batches/{name}", owner_only, Batches.save),
        Row("DELETE", "/batches/{name}", owner_only, Batches.delete),
    ),
    "report": (Row("GET", "/report", owner_only, Reports.report, "get"),),
}  # fmt: skip


def routers() -> list[APIRouter]:
    """One for each tag."""
    made = []
    for tag, rows in ROUTES.items():
        router = APIRouter(tags=[tag])
        for row in rows:
            row.add_to(router)
        made.append(router)
    return made
