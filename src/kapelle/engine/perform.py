"""An attempt from beginning to end. After a crash it is performed again from the top, and every
part finds what was done: a claimed run directory, finished checks, a settled row."""

from kapelle.domain.errors import (
    AgentMisconfigured,
    AgentNotFound,
    Conflict,
    InvalidInput,
    KapelleError,
    WorkspaceError,
)
from kapelle.engine.durable import Durable
from kapelle.engine.failpoints import failpoint
from kapelle.engine.findings import Finish, never_ran
from kapelle.engine.launching import launch_again, launch_agent
from kapelle.engine.prepare import prepare
from kapelle.engine.settle import settle
from kapelle.engine.stage import Stage
from kapelle.engine.steadily import steadily
from kapelle.engine.verify import verify
from kapelle.engine.work import Work, load_work


class Performance:
    """The durable function behind every attempt."""

    def __init__(self, stage: Stage, durable: Durable) -> None:
        self._stage = stage
        durable.workflow("attempt", self.perform)

    async def perform(self, attempt_id: str) -> None:
        """Prepare the workspace, run the agent, verify its work, settle the verdict."""
        stage = self._stage
        with stage.performing(attempt_id):
            failpoint("perform_begin")
            work, problem = await steadily(self._prepare)(attempt_id)
            failpoint("perform_after_prepare")
            finish = never_ran(problem) if problem else await steadily(self._run)(work)
            failpoint("perform_after_run")
            findings = await steadily(verify)(stage, work, finish)
            failpoint("perform_after_verify")
            await steadily(stage.db.write)(settle, attempt_id, finish, findings)
            failpoint("perform_end")

    async def _prepare(self, attempt_id: str) -> tuple[Work, str | None]:
        work = await load_work(self._stage, attempt_id)
        if work.is_claimed:
            return work, None  # the agent was started before a crash: its workspace is its own now
        try:
            return await prepare(self._stage, work), None
        except (WorkspaceError, InvalidInput, Conflict) as error:
            return work, _sentence(error)

    async def _run(self, work: Work) -> Finish:
        try:
            launch = (
                launch_again(work) if work.is_claimed else await launch_agent(self._stage, work)
            )
        except (AgentNotFound, AgentMisconfigured, InvalidInput) as error:
            return never_ran(_sentence(error))
        failpoint("run_before_execute")
        ended = await self._stage.execute(work.attempt_id, work.task_id, launch)
        failpoint("run_after_execute")
        timed_out = ended.ended_by == "timeout"
        return Finish(
            exit=ended.exit,
            timed_out=timed_out,
            detail=f"timed out after {launch.timeout_s:g} s" if timed_out else ended.detail,
            output_bytes=ended.out_bytes + ended.err_bytes,
        )


def _sentence(error: KapelleError) -> str:
    return f"{error.message} {error.hint or ''}".strip()
