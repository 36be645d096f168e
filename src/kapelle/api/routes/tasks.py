"""Tasks: submit, list, look, wait, change their course; what one changed, and merging it."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BaseModel, Field

from kapelle.api.routes import PATCH, IdempotencyKey, WaitSeconds
from kapelle.api.security import (
    AskingAttempt,
    Parent,
    UseCases,
    below_only,
    own_or_below,
    owner_only,
)
from kapelle.domain.errors import Forbidden
from kapelle.domain.specs import MAX_PROMPT_BYTES, MergeSpec, PullRequestSpec, Spec, TaskSpec, Text
from kapelle.domain.task import Task, TaskFilter
from kapelle.domain.views import (
    DiffView,
    MergePreview,
    MergeView,
    PullRequestView,
    SayView,
    WaitView,
)
from kapelle.engine.tasks.actions import NewLimits

router = APIRouter(prefix="/tasks", tags=["tasks"])
_owner = [Depends(owner_only)]
_own = [Depends(own_or_below)]
_below = [Depends(below_only)]
Against = Annotated[str | None, Query(max_length=100)]
Into = Annotated[str | None, Query(min_length=1, max_length=200)]


class TaskPage(BaseModel):
    tasks: list[Task]
    next_cursor: str | None
    last_event: int  # whoever follows the events behind it misses no change of these


class CancelTask(Spec):
    reason: Annotated[Text | None, Field(max_length=10_000)] = None


class RetryBody(NewLimits):
    """Limits that are to hold from now on."""


class ResumeBody(NewLimits):
    """A message for the agent, limits that are to hold from now on, whether the base is to be
    merged into its branch first, so that it resolves what conflicts, and whether it is told the
    comments on its pull request that are new."""

    merge: bool = False
    comments: bool = False
    message: Annotated[Text | None, Field(max_length=MAX_PROMPT_BYTES)] = None


class DependenciesBody(Spec):
    depends_on: Annotated[list[Text], Field(max_length=1000)]


@router.post("", status_code=201)
async def submit(
    spec: TaskSpec, service: UseCases, parent: Parent, idempotency_key: IdempotencyKey = None
) -> Task:
    """Submit a task; it is stored when this returns."""
    return await service.tasks.submit(spec, idempotency_key, parent)


@router.get("")
async def page(
    service: UseCases, parent: Parent, wanted: Annotated[TaskFilter, Query()]
) -> TaskPage:
    """Tasks, newest first; next_cursor leads to the next page."""
    last = await service.events.last_seq()
    found, cursor = await service.tasks.page(wanted, parent)
    return TaskPage(tasks=found, next_cursor=cursor, last_event=last)


@router.get("/{task_id}", dependencies=_own)
async def get(task_id: str, service: UseCases) -> Task:
    """One task, by its id or any unique end or beginning of it."""
    return await service.tasks.get(task_id)


@router.get("/{task_id}/wait", dependencies=_own)
async def wait(task_id: str, service: UseCases, timeout_s: WaitSeconds = 25) -> Task:
    """The task once it has ended or waits for input; after timeout_s as it is: then call again."""
    return await service.tasks.wait(task_id, timeout_s)


@router.post("/{task_id}/cancel", dependencies=_below)
async def cancel(
    task_id: str, service: UseCases, parent: Parent, body: CancelTask | None = None
) -> Task:
    """End a task; a running one settles within seconds."""
    return await service.tasks.cancel(task_id, body.reason if body else None, parent)


@router.post("/{task_id}/retry", dependencies=_below)
async def retry(
    task_id: str, service: UseCases, parent: Parent, body: RetryBody | None = None
) -> Task:
    """A new attempt from a fresh workspace."""
    return await service.tasks.retry(task_id, body, parent)


@router.post("/{task_id}/resume", dependencies=_below)
async def resume(
    task_id: str, service: UseCases, parent: Parent, body: ResumeBody | None = None
) -> Task:
    """A new attempt that carries what the last one left, with a message for it."""
    body = body or ResumeBody()
    more = {"merge": body.merge, "comments": body.comments}
    return await service.tasks.resume(task_id, body.message, body, parent, **more)


class SayBody(Spec):
    message: Annotated[Text, Field(min_length=1, max_length=MAX_PROMPT_BYTES, pattern=r"\S")]


@router.post("/{task_id}/say", dependencies=_below)
async def say(task_id: str, body: SayBody, service: UseCases) -> SayView:
    """Tell the agent of a task something: at once (told: now) where its protocol allows that, else
    when its present attempt has ended (told: next_attempt)."""
    return await service.tasks.say(task_id, body.message)


attempt_router = APIRouter(prefix="/attempt", tags=["attempt"])


class Noted(BaseModel):
    noted: bool = True


class ReportBody(Spec):
    text: Annotated[Text, Field(min_length=1, max_length=500, description="one line")]


class FinishBody(Spec):
    result: Annotated[Any, Field(description="a text, or an object if one was asked for")]
    success: Annotated[bool, Field(description="false if you could not do it")] = True


@attempt_router.post("/report")
async def report(
    body: ReportBody, service: UseCases, task_id: Parent, attempt: AskingAttempt
) -> Noted:
    """Say in one line how far you are, as the agent of a task; people see it beside the task."""
    await service.tasks.report(*_both(task_id, attempt), body.text)
    return Noted()


@attempt_router.post("/finish")
async def finish(
    body: FinishBody, service: UseCases, task_id: Parent, attempt: AskingAttempt
) -> Noted:
    """Hand in the result of your task, then end your turn. Its checks are made all the same."""
    await service.tasks.hand_in(*_both(task_id, attempt), body.result, body.success)
    return Noted()


def _both(task_id: str | None, attempt: str | None) -> tuple[str, str]:
    if task_id is None or attempt is None:
        raise Forbidden("Only an agent at work on a task can do this, with its attempt's token.")
    return task_id, attempt


@router.post("/{task_id}/check", dependencies=_owner)
async def check(task_id: str, service: UseCases) -> Task:
    """Make the checks of an ended task once more, on what it committed; answers when they are
    made, with what they said in checked_again."""
    return await service.tasks.check(task_id)


@router.post("/{task_id}/requeue", dependencies=_owner)
async def requeue(task_id: str, service: UseCases) -> Task:
    """From the start, as if newly submitted."""
    return await service.tasks.requeue(task_id)


@router.post("/{task_id}/archive", dependencies=_owner)
async def archive(task_id: str, service: UseCases) -> Task:
    """Put an ended task away; its worktree is removed, its work kept."""
    return await service.work.archive_task(task_id)


@router.put("/{task_id}/dependencies", dependencies=_owner)
async def depend(task_id: str, body: DependenciesBody, service: UseCases) -> Task:
    """Replace what a task waits for, as long as it has not started; circles are refused."""
    return await service.tasks.depend(task_id, body.depends_on)


def changes(kind: Literal["task", "run"], tag: str) -> APIRouter:
    """What a task or a run changed, and merging it."""
    router = APIRouter(prefix=f"/{kind}s/{{{kind}_id}}", tags=[tag])
    named = Path(alias=f"{kind}_id")

    @router.get("/diff", dependencies=_own)
    async def diff(
        service: UseCases, parent: Parent, id_: str = named, against: Against = None
    ) -> DiffView:
        """Everything that changed in its worktree since it began; or, against another task of the
        same repository, how their work differs."""
        return await service.work.diff(kind, id_, against, parent)

    @router.get("/patch", dependencies=_own, **PATCH)
    async def patch(service: UseCases, id_: str = named) -> Response:
        """The diff alone, byte for byte but for secrets."""
        return Response(await service.work.patch(kind, id_), media_type="text/x-diff")

    @router.post("/merge", dependencies=_below)
    async def merge(
        service: UseCases,
        parent: Parent,
        id_: str = named,
        body: MergeSpec | None = None,
        timeout_s: WaitSeconds = 25,
    ) -> MergeView:
        """Merge its branch into its base, or another branch; where that takes longer than timeout_s
        it is under way: ask again to wait for it."""
        return await service.work.merge(kind, id_, body or MergeSpec(), timeout_s, parent)

    @router.post("/pr", dependencies=_owner)
    async def open_pull_request(
        service: UseCases,
        id_: str = named,
        body: PullRequestSpec | None = None,
        timeout_s: WaitSeconds = 25,
    ) -> PullRequestView:
        """Push its branch and open a pull request of it, or update the one that it has; while that
        is pending, ask again to wait for it."""
        wanted = body or PullRequestSpec()
        return await service.work.open_pull_request(kind, id_, wanted, timeout_s)

    @router.get("/pr", dependencies=_owner)
    async def pull_request(service: UseCases, id_: str = named) -> PullRequestView:
        """Its pull request as the forge tells it now, with what people said to it."""
        return await service.work.pull_request(kind, id_)

    @router.get("/merge", dependencies=_owner)
    async def preview_merge(service: UseCases, id_: str = named, into: Into = None) -> MergePreview:
        """How a merge of its branch would go, without merging."""
        return await service.work.preview_merge(kind, id_, into)

    @router.delete("/merge", dependencies=_owner)
    async def give_up_merge(service: UseCases, id_: str = named) -> None:
        """End a merge that is under way."""
        await service.work.give_up_merge(kind, id_)

    return router


changes_router = changes("task", "changes")
run_changes_router = changes("run", "runs")

work_router = APIRouter(prefix="/wait", tags=["work"])

Ids = Annotated[list[str], Query(min_length=1, max_length=200, description="of tasks and runs")]
Until = Annotated[
    Literal["any", "all"], Query(description="whether one of them is enough, or all must rest")
]


@work_router.get("")
async def wait_for_several(
    ids: Ids, service: UseCases, parent: Parent, until: Until = "any", timeout_s: WaitSeconds = 25
) -> WaitView:
    """Those of several tasks and runs that have ended or wait for a person, as soon as there are;
    after timeout_s, those that there are: then call again for what is pending."""
    await service.work.require_own(parent, *ids, itself=False)
    return await service.wait(ids, until == "all", timeout_s)
