"""Runs of patterns, as a program uses them."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from kapelle.client.answers import Page, Steps
from kapelle.client.asynchronous.connection import AsyncConnection
from kapelle.client.asynchronous.reading import pages, rested
from kapelle.client.flavours import AsyncStream
from kapelle.client.options import BestOfOptions, LoopOptions, PipelineOptions, TeamOptions
from kapelle.client.requests import path_of, read_as
from kapelle.client.wishes import pipeline_steps, wish
from kapelle.domain.errors import Conflict
from kapelle.domain.run import Run
from kapelle.domain.states import RUN_FINAL, RunStatus
from kapelle.domain.views import DiffView, MergeView
from kapelle.patterns.best_of import BestOfSpec
from kapelle.patterns.loop import LoopSpec
from kapelle.patterns.pipeline import PipelineSpec, StepSpec
from kapelle.patterns.spec import PatternSpec
from kapelle.patterns.team import TeamSpec

_RESTING = RUN_FINAL | {RunStatus.WAITING, RunStatus.PAUSED}


class AsyncRuns:
    """Every run of a daemon. An id may be any prefix that only one run has."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def start(
        self,
        pattern: str,
        spec: PatternSpec | Mapping[str, Any] | None = None,
        /,
        *,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Run:
        """Start any pattern by name and return at once, with a spec or its fields as keywords."""
        body = {"pattern": pattern, "spec": wish("", spec, fields)}
        return read_as(Run, await self._connection.create("/runs", body, idempotency_key))

    async def pipeline(
        self, *steps: str | StepSpec | PipelineSpec, **options: Unpack[PipelineOptions]
    ) -> Run:
        """Start steps one after another, each told what those before it did."""
        return await self._start("pipeline", "steps", pipeline_steps(steps), options)

    async def loop(
        self, prompt: str | LoopSpec | None = None, **options: Unpack[LoopOptions]
    ) -> Run:
        """Start a loop: until conditions hold, or to make a number better."""
        return await self._start("loop", "prompt", prompt, options)

    async def team(self, goal: str | TeamSpec, **options: Unpack[TeamOptions]) -> Run:
        """Start a team on a goal: planned, worked on by several, verified and reviewed."""
        return await self._start("team", "goal", goal, options)

    async def best_of(self, prompt: str | BestOfSpec, **options: Unpack[BestOfOptions]) -> Run:
        """Give the same task to several at once; checks, a score or a judge pick one."""
        return await self._start("best-of", "prompt", prompt, options)

    async def get(self, run_id: str) -> Run:
        """The run as it is now."""
        return read_as(Run, await self._connection.get(path_of("runs", run_id)))

    def list(
        self,
        *,
        status: RunStatus | str | Sequence[RunStatus | str] | None = None,
        pattern: str | None = None,
        project: str | None = None,
        parent_id: str | None = None,
        archived: bool = False,
    ) -> AsyncStream[Run]:
        """Runs, newest first; pages are asked for as they are needed."""
        query = {
            "status": status,
            "pattern": pattern,
            "project": project,
            "parent_id": parent_id,
            "archived": archived,
        }
        return pages(self._connection, "/runs", Page[Run], query)

    async def wait(self, run_id: str, timeout_s: float | None = None) -> Run:
        """The run when it has ended, waits or is paused, or as it is when the time is up.

        It goes on waiting when the daemon is restarted.
        """
        path = path_of("runs", run_id, "wait")
        return await rested(self._connection, path, Run, _rests, timeout_s)

    async def result(self, run_id: str) -> Any:
        """What an ended run returned; its shape is the pattern's own."""
        run = await self.get(run_id)
        if run.status not in RUN_FINAL:
            raise Conflict(f"{run.id} is {run.status} and has no result yet.", hint="Wait for it.")
        return run.result

    async def steps(self, run_id: str) -> Steps:
        """What the run did and does, in order."""
        return read_as(Steps, await self._connection.get(path_of("runs", run_id, "steps")))

    async def pause(self, run_id: str, *, now: bool = False) -> Run:
        """Start nothing more; what is at work ends first, or with now goes back to its queue."""
        return await self._turn(run_id, "pause", now=now)

    async def resume(self, run_id: str) -> Run:
        """Let a paused run go on."""
        return await self._turn(run_id, "resume")

    async def cancel(
        self, run_id: str, reason: str | None = None, *, with_tasks: bool = True
    ) -> Run:
        """End a run with all that it started, or leave its tasks to go on."""
        return await self._turn(run_id, "cancel", reason=reason, with_tasks=with_tasks)

    async def answer(self, run_id: str, answer: str, *, token: str | None = None) -> Run:
        """Answer a question of a run that waits; the token says which, if there are several."""
        return await self._turn(run_id, "answer", answer=answer, token=token)

    async def archive(self, run_id: str) -> Run:
        """Put an ended run away with its tasks; worktrees are removed, the work is kept."""
        return await self._turn(run_id, "archive")

    async def diff(self, run_id: str) -> DiffView:
        """What the run has brought together in its worktree since it began."""
        return read_as(DiffView, await self._connection.get(path_of("runs", run_id, "diff")))

    async def patch(self, run_id: str) -> bytes:
        """The diff alone, byte for byte, as `git apply` takes it."""
        return (await self._connection.get(path_of("runs", run_id, "patch"))).content

    async def merge(
        self, run_id: str, into: str | None = None, *, force: bool = False
    ) -> MergeView:
        """Merge the branch of a completed run into its base or another branch."""
        body = {"into": into, "force": force}
        path = path_of("runs", run_id, "merge")
        return read_as(MergeView, await self._connection.post(path, body))

    async def _start(
        self, pattern: str, name: str, subject: object, options: Mapping[str, Any]
    ) -> Run:
        body = {"pattern": pattern, "spec": wish(name, subject, options)}
        key = options.get("idempotency_key")
        return read_as(Run, await self._connection.create("/runs", body, key))

    async def _turn(self, run_id: str, action: str, **body: str | bool | None) -> Run:
        return read_as(Run, await self._connection.post(path_of("runs", run_id, action), body))


def _rests(run: Run) -> bool:
    return run.status in _RESTING
