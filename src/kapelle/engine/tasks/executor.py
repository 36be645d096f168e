"""An attempt from beginning to end: prepare, launch, watch, verify, settle. After a crash it is
performed again from the top, and every phase finds what was done: a claimed process directory,
finished checks, a settled row."""

import logging

from kapelle.domain.errors import KapelleError, LimitReached, Unavailable
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.task import Exit
from kapelle.engine.parts import Parts
from kapelle.engine.retry import retried
from kapelle.engine.tasks.attempt import Attempt, ClaimLost, Findings, Finish
from kapelle.engine.tasks.launch import Ready, launch, launch_again
from kapelle.engine.tasks.prepare import prepare
from kapelle.engine.tasks.settle import conclude
from kapelle.engine.tasks.verify import verify
from kapelle.engine.tasks.watch import watched
from kapelle.runner.shim.failpoints import failpoint

_log = logging.getLogger("kapelle.attempts")


class AttemptExecutor:
    """Performs attempts from their beginning to their end."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def perform(self, attempt_id: str) -> None:
        """Prepare the workspace, run the agent, verify its work, settle the verdict."""
        with self._parts.performing(attempt_id):
            failpoint("perform_begin")
            try:
                finish, findings = await self._work(attempt_id)
                failpoint("perform_after_verify")
                await retried(conclude)(self._parts, attempt_id, finish, findings)
                failpoint("perform_end")
            except ClaimLost:
                # It was settled just before a crash, or another performer took it over.
                _log.info("%s is left alone: it is not this daemon's any more", attempt_id)

    async def _work(self, attempt_id: str) -> tuple[Finish, Findings]:
        try:
            attempt = await retried(Attempt.load)(self._parts, attempt_id)
            if not attempt.is_started:
                # An agent that was started before a crash has its workspace to itself.
                await retried(prepare)(attempt)
            failpoint("perform_after_prepare")
            finish = await retried(_run)(attempt)
        except Unavailable:
            raise
        except KapelleError as error:
            return _not_possible(error)
        failpoint("perform_after_run")
        return finish, await retried(verify)(attempt, finish)


async def _run(attempt: Attempt) -> Finish:
    """Start the agent, or find the one that was started before a crash, and wait for its end."""
    ready: Ready = await (launch_again if attempt.is_started else launch)(attempt)
    failpoint("run_before_execute")
    try:
        async with watched(attempt, ready.agent, ready.limits):
            ended = await attempt.execute(ready.launch)
    except FileNotFoundError:
        return Finish(Exit(kind="lost"), detail="its process directory was deleted while it ran")
    failpoint("run_after_execute")
    timed_out = ended.ended_by == "timeout"
    return Finish(
        exit=ended.exit,
        timed_out=timed_out,
        detail=f"timed out after {attempt.timeout_s:g} s" if timed_out else ended.detail,
        output_bytes=ended.out_bytes + ended.err_bytes,
    )


def _not_possible(error: KapelleError) -> tuple[Finish, Findings]:
    """The end of an attempt whose agent could not even be started."""
    problem = error.with_hint
    limited = isinstance(error, LimitReached)
    kind = FailureClass.LIMIT if limited else FailureClass.ENVIRONMENT
    finish = Finish(Exit(kind="not_started"), detail=problem)
    return finish, Findings(False, problem, failure=Failure(kind, problem))
