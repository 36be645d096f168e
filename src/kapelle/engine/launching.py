"""The command that an attempt runs, put together from task, agent and settings."""

from pathlib import Path

from kapelle.agents.base import AgentRequest
from kapelle.agents.registry import get as get_agent
from kapelle.domain.tokens import attempt_token
from kapelle.engine.context import full_prompt
from kapelle.engine.environment import passed
from kapelle.engine.stage import Stage
from kapelle.engine.work import Work
from kapelle.runner.launch import Launch
from kapelle.settings import AgentSettings


async def launch_agent(stage: Stage, work: Work) -> Launch:
    """What to run for an attempt; raises when the agent is not known or not set up."""
    task = work.task
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
    env |= {"KAPELLE_URL": stage.url, "KAPELLE_TOKEN": attempt_token(stage.secret, work.attempt_id)}
    return Launch(
        run_dir=work.run_dir,
        argv=command.argv,
        cwd=work.directory,
        env=env,
        stdin=command.stdin,
        timeout_s=work.timeout_s,
        grace_s=work.settings.tasks.grace_s,
        redact=stage.redactions(work.attempt_id, env),
        label=f"{task['agent']} for {work.task_id}",
    )


def launch_again(work: Work) -> Launch:
    """Enough to find a run that was started before: what runs there was decided then."""
    return Launch(
        run_dir=work.run_dir,
        argv=[],
        cwd=work.directory,
        env={},
        stdin=None,
        timeout_s=work.timeout_s,
        grace_s=work.settings.tasks.grace_s,
        redact=(),
        label=work.task_id,
    )


def launch_command(stage: Stage, work: Work, name: str, command: str, timeout_s: float) -> Launch:
    """A shell command beside the agent: a check or the workspace's set-up."""
    env = passed(stage.environ, work.settings.environment.pass_)
    env |= work.settings.environment.set | work.task_env | work.marks
    return Launch(
        run_dir=work.run_dir / name,
        argv=["/bin/sh", "-c", command],
        cwd=work.directory,
        env=env,
        stdin=None,
        timeout_s=timeout_s,
        grace_s=work.settings.tasks.grace_s,
        redact=stage.redactions(work.attempt_id, env),
        label=f"{name} of {work.task_id}",
    )


def _write_prompt(run_dir: Path, prompt: str) -> Path:
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = run_dir / "prompt"
    path.touch(mode=0o600)
    path.write_text(prompt, encoding="utf-8", errors="replace")
    return path
