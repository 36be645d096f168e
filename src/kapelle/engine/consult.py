"""Asks an agent a question beside the work: to classify, to judge, to diagnose."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from kapelle.agents.base import AgentRequest, Summary
from kapelle.agents.registry import get as get_agent
from kapelle.agents.summary import summarise
from kapelle.domain.errors import KapelleError
from kapelle.domain.task import Usage
from kapelle.engine import cost
from kapelle.engine.accounts import credential
from kapelle.engine.environment import agent_environment
from kapelle.engine.parts import Stage
from kapelle.engine.run_files import place
from kapelle.engine.work import Work
from kapelle.runner.output import lines_of, tail_text
from kapelle.runner.process_dir import Launch
from kapelle.settings import Settings

_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Answer:
    """What was replied; problem says why there is no text."""

    text: str | None
    problem: str | None = None


async def consult(stage: Stage, work: Work, name: str, agent: str, prompt: str) -> Answer:
    """The answer of an agent, run in an empty directory; one that was got before is not asked
    again."""
    process_dir = work.process_dir / name
    try:
        launch = question(
            stage, process_dir, agent, prompt, work.settings, work.task_env, work.attempt_id
        )
    except KapelleError as error:
        return Answer(None, error.message)
    ended = await stage.execute(work.attempt_id, work.task_id, launch)
    summary, tail = await asyncio.to_thread(read, process_dir, agent, work.settings)
    verdict = get_agent(agent, work.settings).judge(summary, ended.exit, tail)
    if not verdict.success:
        return Answer(None, verdict.reason)
    return Answer(verdict.result or summary.tail)


def usage_of(work: Work, name: str, agent: str) -> Usage | None:
    """What such a question cost, which the attempt pays for; None if it was not asked."""
    process_dir = work.process_dir / name
    if not (process_dir / "out.log").exists():
        return None
    try:
        summary, _ = read(process_dir, agent, work.settings)
    except KapelleError:
        return None  # it is not configured any more
    return cost.of_attempt(summary, {}, None, work.settings)


def question(
    stage: Stage,
    process_dir: Path,
    agent: str,
    prompt: str,
    settings: Settings,
    env: dict[str, str],
    attempt_id: str,
) -> Launch:
    """The command that asks; raises when the agent is not known or not set up."""
    adapter = get_agent(agent, settings)
    empty = process_dir / "empty"
    empty.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = credential(stage, adapter, settings, env)
    request = AgentRequest(
        prompt=prompt,
        workspace=empty,
        prompt_file=process_dir / "prompt",
        settings=adapter.settings,
        credential=found.value if found.source == "stored" else None,
    )
    place(process_dir, {"prompt": prompt})
    command = adapter.command(request)
    variables = agent_environment(stage.environ, settings, adapter, command.env) | env
    place(process_dir, command.files)
    return Launch(
        process_dir=process_dir,
        argv=command.argv,
        cwd=empty,
        env=variables,
        stdin=command.stdin,
        timeout_s=_TIMEOUT_S,
        grace_s=settings.tasks.grace_s,
        redact=stage.redactions(attempt_id, variables),
        label=f"{agent} is asked",
    )


def read(process_dir: Path, agent: str, settings: Settings) -> tuple[Summary, str]:
    """What was said, and the end of it as text."""
    tail = (
        f"{tail_text(process_dir / 'out.log', 10_000)}\n{tail_text(process_dir / 'err.log', 5_000)}"
    )
    return summarise(get_agent(agent, settings), lines_of(process_dir / "out.log")), tail.strip()
