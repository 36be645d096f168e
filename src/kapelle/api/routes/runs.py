"""Patterns, and runs of them: start, look, wait, pause, resume, cancel, answer."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, Field

from kapelle.api.routes import IdempotencyKey, WaitSeconds
from kapelle.api.security import Parent, UseCases, below_only, own_or_below, owner_only
from kapelle.domain.run import Run, RunFilter, Step, WorkFilter
from kapelle.domain.specs import MAX_PROMPT_BYTES, Name, Spec, Text
from kapelle.domain.task import Task
from kapelle.domain.views import PatternView

router = APIRouter(prefix="/runs", tags=["runs"])
_owner = [Depends(owner_only)]
_own = [Depends(own_or_below)]
_below = [Depends(below_only)]


class RunPage(BaseModel):
    runs: list[Run]
    next_cursor: str | None
    last_event: int  # whoever follows the events behind it misses no change of these


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
async def start(
    body: StartBody, service: UseCases, parent: Parent, idempotency_key: IdempotencyKey = None
) -> Run:
    """Start a run; it is stored when this returns."""
    return await service.runs.start(body.pattern, body.spec, idempotency_key, parent=parent)


@router.get("")
async def page(service: UseCases, parent: Parent, wanted: Annotated[RunFilter, Query()]) -> RunPage:
    """Runs, newest first; next_cursor leads to the next page. Nested ones are inside others."""
    last = await service.events.last_seq()
    found, cursor = await service.runs.page(wanted, parent)
    return RunPage(runs=found, next_cursor=cursor, last_event=last)


@router.get("/{run_id}", dependencies=_own)
async def get(run_id: str, service: UseCases) -> Run:
    """One run, by its id or any unique end or beginning of it."""
    return await service.runs.get(run_id)


@router.get("/{run_id}/steps", dependencies=_own)
async def steps(run_id: str, service: UseCases) -> list[Step]:
    """What the run did and does, in order."""
    return await service.runs.steps(run_id)


@router.get("/{run_id}/wait", dependencies=_own)
async def wait(run_id: str, service: UseCases, timeout_s: WaitSeconds = 25) -> Run:
    """The run once it has ended, waits or is paused; after timeout_s as it is: then call again."""
    return await service.runs.wait(run_id, timeout_s)


@router.post("/{run_id}/pause", dependencies=_below)
async def pause(
    run_id: str, service: UseCases, parent: Parent, body: PauseBody | None = None
) -> Run:
    """Start nothing more; what is at work ends first, or with now goes back to its queue."""
    return await service.runs.pause(run_id, now=body.now if body else False, parent=parent)


@router.post("/{run_id}/resume", dependencies=_below)
async def resume(run_id: str, service: UseCases, parent: Parent) -> Run:
    """Let a paused run go on."""
    return await service.runs.resume(run_id, parent)


@router.post("/{run_id}/cancel", dependencies=_below)
async def cancel(
    run_id: str, service: UseCases, parent: Parent, body: CancelRun | None = None
) -> Run:
    """End a run with all that it started, or leave its tasks to go on."""
    body = body or CancelRun()
    return await service.runs.cancel(run_id, body.reason, with_tasks=body.with_tasks, parent=parent)


@router.post("/{run_id}/archive", dependencies=_owner)
async def archive(run_id: str, service: UseCases) -> Run:
    """Put an ended run away with its tasks; worktrees are removed, the work is kept."""
    return await service.work.archive_run(run_id)


@router.post("/{run_id}/answer", dependencies=_owner)
async def answer(run_id: str, body: AnswerBody, service: UseCases) -> Run:
    """Answer a question of a run that waits; it then goes on."""
    return await service.runs.answer(run_id, body.answer, body.token)


work_router = APIRouter(prefix="/work", tags=["work"])


class WorkPage(BaseModel):
    work: list[Task | Run]
    next_cursor: str | None
    last_event: int


@work_router.get("", name="page", dependencies=_owner)
async def work_page(service: UseCases, wanted: Annotated[WorkFilter, Query()]) -> WorkPage:
    """Tasks and runs in one list, newest first; next_cursor leads to the next page. Nested ones
    are parts of runs."""
    last = await service.events.last_seq()
    found, cursor = await service.work.page(wanted)
    return WorkPage(work=found, next_cursor=cursor, last_event=last)


@work_router.get("/{work_id}", name="get", dependencies=_own)
async def work(work_id: str, service: UseCases) -> Task | Run:
    """The task or the run of an id, or of any part of one that is unique."""
    return await service.work.get(work_id)


class MarkBody(Spec):
    """What a person marks work with; what is not named stays as it is."""

    seen: bool = False
    flagged: bool = False
    snoozed_until: AwareDatetime | None = None

    @property
    def values(self) -> dict[str, datetime | None]:
        now, named = datetime.now(UTC), self.model_dump(exclude_unset=True)
        until = {"snoozed_until": named.pop("snoozed_until")} if "snoozed_until" in named else {}
        return {f"{name}_at": now if is_so else None for name, is_so in named.items()} | until


@work_router.post("/{work_id}/mark", name="mark", dependencies=_owner)
async def mark(work_id: str, body: MarkBody, service: UseCases) -> Task | Run:
    """Mark a task or run: that it was seen, that it is flagged for attention, that it is put off
    until a time."""
    return await service.work.mark(work_id, body.values)


patterns_router = APIRouter(prefix="/patterns", tags=["patterns"])


@patterns_router.get("")
async def patterns(
    service: UseCases,
    parent: Parent,
    directory: Annotated[str | None, Query(max_length=4000, pattern=r"^/[^\x00]*$")] = None,
) -> list[PatternView]:
    """Every pattern; with a directory also those of its repository, and what is wrong there."""
    if parent is not None:
        directory = (await service.tasks.get(parent)).directory
    usable, problems = await service.runs.patterns(directory)
    broken = [
        PatternView(name="(broken)", summary=error.message, origin="", spec_schema={})
        for error in problems
    ]
    return usable + broken
