"""Patterns, and runs of them: start, look, wait, pause, resume, cancel, answer."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field

from kapelle.api.routes import PATCH, IdempotencyKey, Into, WaitSeconds
from kapelle.api.security import UseCases, owner_only
from kapelle.domain.run import Run, RunFilter, Step
from kapelle.domain.specs import MAX_PROMPT_BYTES, MergeSpec, Name, Spec, Text
from kapelle.domain.views import DiffView, MergePreview, MergeView, PatternView

router = APIRouter(prefix="/runs", tags=["runs"], dependencies=[Depends(owner_only)])


class RunPage(BaseModel):
    runs: list[Run]
    next_cursor: str | None


class StartBody(Spec):
    """A pattern by name, and what it is asked to do: see GET /patterns for the schema."""

    pattern: Name
    spec: dict[str, Any]


class PauseBody(Spec):
    now: bool = False


class CancelRun(Spec):
    reason: Annotated[Text | None, Field(max_length=10_000)] = None
    with_tasks: bool = True


class AnswerBody(Spec):
    answer: Annotated[Text, Field(max_length=MAX_PROMPT_BYTES)]
    token: Annotated[Text | None, Field(max_length=300)] = None


@router.post("", status_code=201)
async def start(body: StartBody, service: UseCases, idempotency_key: IdempotencyKey = None) -> Run:
    """Start a run; it is stored when this returns."""
    return await service.runs.start(body.pattern, body.spec, idempotency_key)


@router.get("")
async def page(service: UseCases, wanted: Annotated[RunFilter, Query()]) -> RunPage:
    """Runs, newest first; next_cursor leads to the next page. Nested ones are inside others."""
    found, cursor = await service.runs.page(wanted)
    return RunPage(runs=found, next_cursor=cursor)


@router.get("/{run_id}")
async def get(run_id: str, service: UseCases) -> Run:
    """One run, by its id or any unique prefix of it."""
    return await service.runs.get(run_id)


@router.get("/{run_id}/steps")
async def steps(run_id: str, service: UseCases) -> list[Step]:
    """What the run did and does, in order."""
    return await service.runs.steps(run_id)


@router.get("/{run_id}/wait")
async def wait(run_id: str, service: UseCases, timeout_s: WaitSeconds = 25) -> Run:
    """The run once it has ended, waits or is paused; after timeout_s as it is: then call again."""
    return await service.runs.wait(run_id, timeout_s)


@router.post("/{run_id}/pause")
async def pause(run_id: str, service: UseCases, body: PauseBody | None = None) -> Run:
    """Start nothing more; what is at work ends first, or with now goes back to its queue."""
    return await service.runs.pause(run_id, now=body.now if body else False)


@router.post("/{run_id}/resume")
async def resume(run_id: str, service: UseCases) -> Run:
    """Let a paused run go on."""
    return await service.runs.resume(run_id)


@router.post("/{run_id}/cancel")
async def cancel(run_id: str, service: UseCases, body: CancelRun | None = None) -> Run:
    """End a run with all that it started, or leave its tasks to go on."""
    body = body or CancelRun()
    return await service.runs.cancel(run_id, body.reason, with_tasks=body.with_tasks)


@router.get("/{run_id}/diff")
async def diff(run_id: str, service: UseCases) -> DiffView:
    """Everything that the run has brought together in its worktree since it began."""
    return await service.work.diff("run", run_id)


@router.get("/{run_id}/patch", **PATCH)
async def patch(run_id: str, service: UseCases) -> Response:
    """The diff alone, byte for byte but for secrets."""
    return Response(await service.work.patch("run", run_id), media_type="text/x-diff")


@router.post("/{run_id}/merge")
async def merge(
    run_id: str, service: UseCases, body: MergeSpec | None = None, timeout_s: WaitSeconds = 25
) -> MergeView:
    """Merge a completed run's branch into its base, or another branch; where that takes longer
    than timeout_s it is under way: ask again to wait for it."""
    return await service.work.merge("run", run_id, body or MergeSpec(), timeout_s)


@router.get("/{run_id}/merge")
async def preview_merge(run_id: str, service: UseCases, into: Into = None) -> MergePreview:
    """How a merge of the run's branch would go, without merging."""
    return await service.work.preview_merge("run", run_id, into)


@router.delete("/{run_id}/merge")
async def give_up_merge(run_id: str, service: UseCases) -> None:
    """End a merge that is under way."""
    await service.work.give_up_merge("run", run_id)


@router.post("/{run_id}/archive")
async def archive(run_id: str, service: UseCases) -> Run:
    """Put an ended run away with its tasks; worktrees are removed, the work is kept."""
    return await service.work.archive_run(run_id)


@router.post("/{run_id}/answer")
async def answer(run_id: str, body: AnswerBody, service: UseCases) -> Run:
    """Answer a question of a run that waits; it then goes on."""
    return await service.runs.answer(run_id, body.answer, body.token)


patterns_router = APIRouter(
    prefix="/patterns", tags=["patterns"], dependencies=[Depends(owner_only)]
)


@patterns_router.get("")
async def patterns(
    service: UseCases,
    directory: Annotated[str | None, Query(max_length=4000, pattern=r"^/[^\x00]*$")] = None,
) -> list[PatternView]:
    """Every pattern; with a directory also those of its repository, and what is wrong there."""
    usable, problems = await service.runs.patterns(directory)
    broken = [
        PatternView(name="(broken)", summary=error.message, origin="", spec_schema={})
        for error in problems
    ]
    return usable + broken
