"""An attempt from beginning to end. After a crash it is performed again from the top, and every
part finds what was done: a claimed process directory, finished checks, a settled row."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from kapelle.domain.errors import KapelleError, Unavailable
from kapelle.domain.task import Exit
from kapelle.engine.failpoints import failpoint
from kapelle.engine.parts import Parts
from kapelle.engine.retry import retried
from kapelle.engine.tasks.launch import Ready, launch_again, launch_agent
from kapelle.engine.tasks.prepare import prepare
from kapelle.engine.tasks.settle import conclude
from kapelle.engine.tasks.verify import usage_before, verify
from kapelle.engine.tasks.watch import Watch
from kapelle.engine.tasks.work import (
    Findings,
    Finish,
    Work,
    is_running,
    load_work,
    never_ran,
    not_possible,
)
from kapelle.store import attempts


class AttemptExecutor:
    """Performs attempts from their beginning to their end."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def perform(self, attempt_id: str) -> None:
        """Prepare the workspace, run the agent, verify its work, settle the verdict."""
        with self._parts.performing(attempt_id):
            failpoint("perform_begin")
            if not await retried(is_running)(self._parts, attempt_id):
                return  # it was settled just before a crash
            finish, findings = await self._play(attempt_id)
            failpoint("perform_after_verify")
            await retried(conclude)(self._parts, attempt_id, finish, findings)
            failpoint("perform_end")

    async def _play(self, attempt_id: str) -> tuple[Finish, Findings]:
        try:
            work = await retried(self._prepare)(attempt_id)
            failpoint("perform_after_prepare")
            finish = await retried(self._run)(work)
        except Unavailable:
            raise
        except KapelleError as error:
            findings = not_possible(error)
            return never_ran(findings.reason or ""), findings
        failpoint("perform_after_run")
        return finish, await retried(verify)(self._parts, work, finish)

    async def _prepare(self, attempt_id: str) -> Work:
        work = await load_work(self._parts, attempt_id)
        # An agent that was started before a crash has its workspace to itself.
        return work if work.is_claimed else await prepare(self._parts, work)

    async def _run(self, work: Work) -> Finish:
        again = work.is_claimed
        ready = await (launch_again if again else launch_agent)(self._parts, work)
        launch = ready.launch
        failpoint("run_before_execute")
        try:
            async with watched(self._parts, work, ready):
                ended = await self._parts.execute(work.attempt_id, work.task_id, launch)
        except FileNotFoundError:
            return Finish(
                Exit(kind="lost"), detail="its process directory was deleted while it ran"
            )
        failpoint("run_after_execute")
        timed_out = ended.ended_by == "timeout"
        return Finish(
            exit=ended.exit,
            timed_out=timed_out,
            detail=f"timed out after {launch.timeout_s:g} s" if timed_out else ended.detail,
            output_bytes=ended.out_bytes + ended.err_bytes,
        )


@asynccontextmanager
async def watched(parts: Parts, work: Work, ready: Ready) -> AsyncIterator[None]:
    """Somebody watches over the agent as long as this lasts."""
    if ready.agent is None:
        yield
        return
    attempt = work.attempt
    if ready.chose:
        attempt = await parts.db.glance(attempts.row, work.attempt_id)
    before = await usage_before(parts, attempt["started_from"])
    watch = Watch(parts, replace(work, attempt=attempt), ready.agent, ready.limits, before)
    keeping = asyncio.create_task(watch.keep())
    try:
        yield
        watch.end()
        await keeping
        await watch.look_back()
    finally:
        keeping.cancel()
