"""Trying an agent out: the version of its program, and one cheap real call."""

import asyncio
import shutil
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kapelle.agents.base import Agent
from kapelle.agents.failures import classify
from kapelle.agents.program import compared, version_in
from kapelle.agents.registry import AgentInfo
from kapelle.domain.errors import KapelleError
from kapelle.domain.failures import Failure, FailureClass
from kapelle.engine.accounts import account_of
from kapelle.engine.consult import question, read
from kapelle.engine.environment import agent_environment
from kapelle.engine.parts import Stage
from kapelle.runner.process_dir import Ended
from kapelle.runner.short_call import printed
from kapelle.service.agent_views import LiveView
from kapelle.settings import Settings
from kapelle.store import accounts, events, tasks
from kapelle.store.database import Connection

PROMPT = "Reply with the single word ok."
_VERSION_S = 20.0
_LIVE_S = 120.0
# Older directories are of a daemon that died amid a trial.
_ABANDONED_S = 600.0
_ANSWER = 200


class Trial:
    """One trial of one agent, in a directory that is removed at its end."""

    def __init__(self, stage: Stage, info: AgentInfo, settings: Settings) -> None:
        self._stage = stage
        self._info = info
        self._settings = settings

    async def hold(self, live: bool) -> dict[str, Any]:
        """The fields of a CheckView, but for the agent itself."""
        info, agent = self._info, self._info.agent
        found: dict[str, Any] = {"version": None, "comparison": None, "live": None, "hint": None}
        problem = info.problem
        if agent is None or info.installed is None or problem:
            problem = problem or f"The agent {info.name} is not installed."
            return {**found, "usable": False, "problem": problem, "hint": info.hint}
        place = await asyncio.to_thread(_make_place, self._stage.home.checks)
        try:
            if agent.tested:
                found["version"], problem = await self._version(agent, info.installed, place)
            if found["version"] and agent.tested:
                found["comparison"] = compared(found["version"], agent.tested)
            if live and problem is None:
                found["live"], found["hint"] = await self._call(agent, place / "call")
                problem = found["live"].reason
        finally:
            await asyncio.to_thread(shutil.rmtree, place, True)
        return {**found, "usable": problem is None, "problem": problem}

    async def _version(
        self, agent: Agent, program: str, place: Path
    ) -> tuple[str | None, str | None]:
        """The version of the program, and what is wrong with it."""
        env = agent_environment(self._stage.environ, self._settings, agent, {})
        try:
            said = await asyncio.to_thread(printed, [program, "--version"], env, place, _VERSION_S)
        except OSError as error:
            return None, f"{program} cannot be run: {error.strerror or error}."
        if said is None:
            return None, f"{program} --version did not end within {_VERSION_S:.0f} s."
        return version_in(said), None

    async def _call(self, agent: Agent, process_dir: Path) -> tuple[LiveView, str | None]:
        """What one call came to, and what to do about it."""
        began = time.monotonic()
        try:
            answer, failure, reason = await self._ask(agent, process_dir)
        except KapelleError as error:
            failure = Failure(FailureClass.ENVIRONMENT, error.message)
            answer, reason = None, error.message
        account = account_of(self._stage, agent, self._settings, {})
        await self._stage.db.write(_note, agent.name, account, failure)
        view = LiveView(
            ok=failure is None,
            answer=answer,
            failure=failure.kind if failure else None,
            reason=reason,
            duration_s=round(time.monotonic() - began, 3),
        )
        return view, _fix(failure, agent.name)

    async def _ask(
        self, agent: Agent, process_dir: Path
    ) -> tuple[str | None, Failure | None, str | None]:
        stage, settings = self._stage, self._settings
        launch = question(
            stage, process_dir, agent.name, PROMPT, settings, {}, process_dir.parent.name
        )
        launch = replace(launch, timeout_s=_LIVE_S, label=f"{agent.name} is tried out")
        try:
            ended = await stage.runner.execute(launch)
        except asyncio.CancelledError:
            stage.runner.stop(process_dir, "nobody waits for the answer any more")
            raise
        summary, tail = await asyncio.to_thread(read, process_dir, agent.name, settings)
        early = _ended_otherwise(ended)
        if early is not None:
            return None, early, early.evidence
        verdict = agent.judge(summary, ended.exit, tail)
        if verdict.success:
            return (verdict.result or summary.tail).strip()[:_ANSWER], None, None
        failure = verdict.failure or classify(
            summary, ended.exit, tail, settings.failures.environment
        )
        return None, failure, verdict.reason or failure.evidence


def _ended_otherwise(ended: Ended) -> Failure | None:
    """The failure of a call that did not come to an end of its own."""
    if ended.ended_by == "timeout":
        return Failure(FailureClass.TIMEOUT, f"There was no answer within {_LIVE_S:.0f} s.")
    if ended.exit.kind == "not_started":
        return Failure(FailureClass.ENVIRONMENT, ended.detail or "It could not be started.")
    return None


def _note(connection: Connection, name: str, account: str, failure: Failure | None) -> None:
    """A success verifies the account and lifts its pause; a refused login is no longer verified."""
    now = datetime.now(UTC)
    if failure is None:
        if account in accounts.paused(connection, now):
            events.append(connection, "account.released", account=account, agent=name)
            tasks.wake_limited(connection, now)
        accounts.release(connection, account)
        accounts.update(connection, account, verified_at=now)
    elif failure.kind is FailureClass.AUTHENTICATION:
        accounts.update(connection, account, verified_at=None)


def _fix(failure: Failure | None, name: str) -> str | None:
    """What a person has to do, as far as it is about the agent and not about a task."""
    fix = failure.policy.fix if failure else None
    if fix is None:
        return None
    about_agent = fix.partition(", then: ")[0]
    return None if "{task}" in about_agent else about_agent.format(agent=name)


def _make_place(checks: Path) -> Path:
    """A private directory; those that a dead daemon left behind are removed."""
    checks.mkdir(mode=0o700, exist_ok=True)
    for path in checks.iterdir():
        if time.time() - path.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix="check_", dir=checks))
