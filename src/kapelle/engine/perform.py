"""An attempt from beginning to end: four steps, each safe to repeat after a crash."""

from pathlib import Path

from kapelle.agents.base import AgentRequest
from kapelle.agents.registry import get as get_agent
from kapelle.domain.errors import (
    AgentMisconfigured,
    AgentNotFound,
    Conflict,
    InvalidInput,
    KapelleError,
    WorkspaceError,
)
from kapelle.domain.task import Exit
from kapelle.domain.tokens import attempt_token
from kapelle.engine.context import full_prompt
from kapelle.engine.durable import Durable, Json
from kapelle.engine.environment import passed
from kapelle.engine.failpoints import failpoint
from kapelle.engine.prepare import prepare
from kapelle.engine.settle import settle
from kapelle.engine.stage import Stage
from kapelle.engine.steadily import steadily
from kapelle.engine.verify import verify
from kapelle.engine.work import Work, load_work
from kapelle.runner.launch import Launch
from kapelle.settings import AgentSettings


class Performance:
    """The durable function behind every attempt, and its steps."""

    def __init__(self, stage: Stage, durable: Durable) -> None:
        self._stage = stage
        self._durable = durable
        durable.workflow("attempt", self.perform)

    async def perform(self, attempt_id: str) -> None:
        step = self._durable.step
        with self._stage.performing(attempt_id):
            failpoint("perform_begin")
            problem = (await step("prepare", steadily(self._prepare), attempt_id)).get("problem")
            failpoint("perform_after_prepare")
            if problem is None:
                ended = await step("run", steadily(self._run), attempt_id)
            else:
                ended = _never_ran(problem)
            failpoint("perform_after_run")
            verdict = await step("verify", steadily(self._verify), attempt_id, ended)
            failpoint("perform_after_verify")
            await step("settle", steadily(self._settle), attempt_id, ended, verdict)
            failpoint("perform_end")

    async def _prepare(self, attempt_id: str) -> Json:
        work = await load_work(self._stage, attempt_id)
        try:
            await prepare(self._stage, work)
        except (WorkspaceError, InvalidInput, Conflict) as error:
            return {"problem": _sentence(error)}
        return {}

    async def _run(self, attempt_id: str) -> Json:
        work = await load_work(self._stage, attempt_id)
        try:
            launch = await self._launch(work)
        except (AgentNotFound, AgentMisconfigured, InvalidInput) as error:
            return _never_ran(_sentence(error))
        failpoint("run_before_execute")
        ended = await self._stage.execute(attempt_id, work.task_id, launch)
        failpoint("run_after_execute")
        detail = ended.detail
        if ended.ended_by == "timeout":
            detail = f"timed out after {launch.timeout_s:g} s"
        return {
            "exit": ended.exit.model_dump(),
            "timed_out": ended.ended_by == "timeout",
            "detail": detail,
            "output_bytes": ended.out_bytes + ended.err_bytes,
        }

    async def _launch(self, work: Work) -> Launch:
        stage, task = self._stage, work.task
        agent = get_agent(task["agent"], work.settings)
        prompt, session_id = await full_prompt(stage, work, agent)
        own = work.settings.agents.get(task["agent"]) or AgentSettings()
        request = AgentRequest(
            prompt=prompt,
            workspace=work.directory,
            prompt_file=_write_prompt(work.run_dir, prompt),
            settings=own,
            system_prompt=task["system_prompt"],
            model=task["model"],
            session_id=session_id,
            attempt_number=work.number,
        )
        command = agent.command(request)
        env = passed(stage.environ, [*work.settings.environment.pass_, *agent.passes])
        env |= work.settings.environment.set | own.env | command.env
        env |= work.task_env | work.marks
        env |= {
            "KAPELLE_URL": stage.url,
            "KAPELLE_TOKEN": attempt_token(stage.secret, work.attempt_id),
        }
        return Launch(
            run_dir=work.run_dir,
            argv=command.argv,
            cwd=work.directory,
            env=env,
            stdin=command.stdin,
            timeout_s=task["timeout_s"] or work.settings.tasks.timeout_s,
            grace_s=work.settings.tasks.grace_s,
            redact=stage.redactions(work.attempt_id, env),
            label=f"{task['agent']} for {work.task_id}",
        )

    async def _verify(self, attempt_id: str, ended: Json) -> Json:
        return await verify(self._stage, await load_work(self._stage, attempt_id), ended)

    async def _settle(self, attempt_id: str, ended: Json, verdict: Json) -> Json:
        failpoint("settle_begin")
        status = await self._stage.db.write(settle, attempt_id, ended, verdict)
        failpoint("settle_end")
        return {"task": status}


def _sentence(error: KapelleError) -> str:
    return f"{error.message} {error.hint or ''}".strip()


def _never_ran(problem: str) -> Json:
    exit = Exit(kind="not_started").model_dump()
    return {"exit": exit, "timed_out": False, "detail": problem, "output_bytes": 0}


def _write_prompt(run_dir: Path, prompt: str) -> Path:
    run_dir.mkdir(mode=0o700, exist_ok=True)
    path = run_dir / "prompt"
    path.touch(mode=0o600)
    path.write_text(prompt, encoding="utf-8", errors="replace")
    return path
