"""Use cases of agents: list them, check that they work, store and remove their API keys."""

import asyncio
import logging
import shutil
import tempfile
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, SecretStr

from kapelle.agents import registry
from kapelle.agents.base import AgentAdapter
from kapelle.agents.registry import AgentInfo
from kapelle.agents.versions import Comparison, compare_versions, find_version
from kapelle.domain.agent_views import AccountWindow, AgentView, LoginView, PausedModel
from kapelle.domain.errors import AgentMisconfigured, InvalidInput, KapelleError
from kapelle.domain.failures import Failure, FailureClass
from kapelle.domain.specs import Spec, Text
from kapelle.engine.parts import Parts
from kapelle.engine.processes.environment import Origin, agent_environment
from kapelle.engine.processes.launch import ProcessLocation
from kapelle.engine.tasks.accounts import Credential, account_of, find_credential
from kapelle.engine.tasks.consult import Answer, build_question, read_answer
from kapelle.runner.command import read_output
from kapelle.runner.process_dir import Process
from kapelle.settings import Settings
from kapelle.store import accounts, events, tasks
from kapelle.store.database import Connection

OptionalDirectory = Annotated[Text | None, Field(max_length=4000)]
# The PATH of the client's shell; agents are looked up there instead of on the daemon's PATH.
SearchPath = Annotated[Text | None, Field(max_length=100_000)]


class CheckBody(Spec):
    live: bool = False
    directory: OptionalDirectory = None
    path: SearchPath = None


class CredentialBody(Spec):
    api_key: SecretStr


class LiveView(BaseModel):
    """The result of one real call."""

    ok: bool
    answer: str | None
    failure: FailureClass | None
    reason: str | None
    duration_s: float


class CheckView(BaseModel):
    """The result of checking an agent; `live` is None without a real call."""

    agent: AgentView
    usable: bool
    version: str | None
    comparison: Comparison | None
    problem: str | None
    hint: str | None
    live: LiveView | None


class KeyRemovedView(BaseModel):
    removed: bool


def agent_view(
    info: AgentInfo,
    credential: Credential,
    account: Any,
    paused_models: list[PausedModel],
    now: datetime,
) -> AgentView:
    """Return the view of an agent with its credential and its account.

    `account` is the row of the account, or None while the account was never used.
    """
    agent = info.agent
    login = _login_view(agent, credential, account)
    windows: dict[str, Any] = {}
    paused_until = None
    paused_reason = None
    if account is not None:
        windows = account["windows"] or {}
        if account["paused_until"] and account["paused_until"] > now:
            paused_until = account["paused_until"]
            paused_reason = account["reason"]
    return AgentView(
        name=info.name,
        type=info.type,
        installed=info.installed,
        default=info.is_default,
        status=_describe_status(info, login, now),
        problem=info.problem,
        hint=info.hint,
        model=agent.settings.model if agent else None,
        capabilities=asdict(info.capabilities),
        login=login,
        tested=agent.tested if agent else None,
        paused_until=paused_until,
        paused_reason=paused_reason,
        paused_models=paused_models,
        windows=[_window(name, windows[name], now) for name in sorted(windows)],
    )


def _login_view(agent: AgentAdapter | None, credential: Credential, account: Any) -> LoginView:
    return LoginView(
        source=credential.source or "none",
        variable=credential.variable,
        variables=list(agent.access.variables) if agent else [],
        needed=agent.access.needed if agent else False,
        verified_at=account["verified_at"] if account is not None else None,
    )


def _window(name: str, limit: dict[str, Any], now: datetime) -> AccountWindow:
    """Return a rate limit of an account as its agent reported it last."""
    window = AccountWindow(name=name, **limit)
    if window.resets_at is not None and window.resets_at <= now:
        # The agent has not reported any usage since the reset.
        return window.model_copy(update={"used": None})
    return window


def _describe_status(info: AgentInfo, login: LoginView, now: datetime) -> str:
    if info.agent is None:
        return "not usable"
    if info.installed is None:
        return "not installed"
    if info.problem:
        return "not set up"
    if login.verified_at:
        return f"verified {_format_age(now - login.verified_at)}"
    if login.source != "none":
        return "installed, login not verified"
    if login.needed:
        return "installed, no login found"
    return "installed"


def _format_age(age: timedelta) -> str:
    seconds = max(age.total_seconds(), 0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"


PROMPT = "Reply with the single word ok."
_VERSION_S = 20.0
_LIVE_S = 120.0
# A directory older than this was left behind by a daemon that crashed during a check.
_ABANDONED_S = 600.0
_MAX_ANSWER = 200


async def _check_agent(
    parts: Parts, info: AgentInfo, settings: Settings, live: bool
) -> dict[str, Any]:
    """Check an agent and return the fields of a CheckView, except the agent itself."""
    agent = info.agent
    problem = info.problem
    fields: dict[str, Any] = {"version": None, "comparison": None, "live": None, "hint": None}
    if agent is None or info.installed is None or problem:
        problem = problem or f"The agent {info.name} is not installed."
        return {**fields, "usable": False, "problem": problem, "hint": info.hint}
    if agent.tested:
        env = agent_environment(parts.environ, settings, agent)
        fields["version"], problem = await _read_version(info.installed, env)
    if fields["version"] and agent.tested:
        fields["comparison"] = compare_versions(fields["version"], agent.tested)
    if live and problem is None:
        fields["live"], fields["hint"] = await _call_agent(parts, agent, settings)
        problem = fields["live"].reason
    return {**fields, "usable": problem is None, "problem": problem}


async def _read_version(program: str, env: dict[str, str]) -> tuple[str | None, str | None]:
    """Return the version of a program and the problem with it; either may be None."""
    try:
        output = await asyncio.to_thread(
            read_output, [program, "--version"], env, Path("/"), _VERSION_S
        )
    except OSError as error:
        return None, f"{program} cannot be run: {error.strerror or error}."
    if output is None:
        return None, f"{program} --version did not end within {_VERSION_S:.0f} s."
    return find_version(output), None


async def _call_agent(
    parts: Parts, agent: AgentAdapter, settings: Settings
) -> tuple[LiveView, str | None]:
    """Ask an agent for one word; return the result and a hint about its failure."""
    started = time.monotonic()
    answer, failure, reason = await ask(parts, agent, settings, PROMPT)
    account = account_of(parts, agent, settings, {})
    await parts.db.write(_record_call, agent.name, account, failure)
    view = LiveView(
        ok=failure is None,
        answer=answer and answer[:_MAX_ANSWER],
        failure=failure.kind if failure else None,
        reason=reason,
        duration_s=round(time.monotonic() - started, 3),
    )
    if failure is None:
        return view, None
    return view, failure.policy.fix_for_agent(agent.name)


async def ask(parts: Parts, agent: AgentAdapter, settings: Settings, prompt: str) -> Answer:
    """Ask an agent outside any task; return its answer, or the failure and its reason.

    The agent runs in an empty directory, which is removed afterwards.
    """
    directory = await asyncio.to_thread(_make_directory, parts.home.checks)
    process_dir = directory / "call"
    location = ProcessLocation(parts, settings, directory.name, process_dir, {}, Origin())
    try:
        launch, side_log = build_question(location, agent, prompt, Process(process_dir))
        exit = await parts.runner.execute(replace(launch, timeout_s=_LIVE_S))
        return await read_answer(agent, settings, process_dir, exit, side_log, _LIVE_S)
    except KapelleError as error:
        return None, Failure(FailureClass.ENVIRONMENT, error.message), error.message
    except asyncio.CancelledError:
        parts.runner.stop(process_dir, "the caller stopped waiting for the answer")
        raise
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, True)


def _record_call(connection: Connection, name: str, account: str, failure: Failure | None) -> None:
    """Verify the account after a success and end its pause; unverify it after a refused login."""
    now = datetime.now(UTC)
    if failure is None:
        if account in accounts.load_pauses(connection, now):
            events.append(connection, "account.released", account=account, agent=name)
            tasks.wake_waiting(connection, "rate_limit", now)
        accounts.release(connection, account)
        accounts.update(connection, account, verified_at=now)
    elif failure.kind is FailureClass.AUTHENTICATION:
        accounts.update(connection, account, verified_at=None)


def _make_directory(checks: Path) -> Path:
    """Make a private directory; remove those that a crashed daemon left behind."""
    checks.mkdir(mode=0o700, exist_ok=True)
    for path in checks.iterdir():
        if time.time() - path.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix="check_", dir=checks))


_log = logging.getLogger("kapelle.agents")
# Redaction would mask a shorter key everywhere in the output of agents.
_SHORTEST_KEY = 8
_LONGEST_KEY = 10_000


class AgentService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # Two requests that store a key at the same time must not overwrite each other's key.
        self._vault_lock = asyncio.Lock()

    async def list_agents(
        self, directory: OptionalDirectory = None, path: SearchPath = None
    ) -> list[AgentView]:
        """List the agents that a task in a directory may use."""
        settings = self._parts.settings(directory).on_path(path)
        infos = await asyncio.to_thread(registry.available, settings)
        return await self._views(infos, settings)

    async def get(
        self, name: str, directory: OptionalDirectory = None, path: SearchPath = None
    ) -> AgentView:
        """Get one agent."""
        settings = self._parts.settings(directory).on_path(path)
        info = await asyncio.to_thread(registry.describe, name, settings)
        return (await self._views([info], settings))[0]

    async def check(self, name: str, body: CheckBody | None = None) -> CheckView:
        """Check an agent: read the version of its program and, with live, ask it for one word.

        The live call costs a little. Its answer verifies the login and ends a pause of the account.
        """
        body = body or CheckBody()
        settings = self._parts.settings(body.directory).on_path(body.path)
        info = await asyncio.to_thread(registry.describe, name, settings)
        fields = await _check_agent(self._parts, info, settings, body.live)
        return CheckView(agent=await self.get(name, body.directory, body.path), **fields)

    async def store_key(
        self, name: str, body: CredentialBody, directory: OptionalDirectory = None
    ) -> AgentView:
        """Store an API key for an agent; no response ever contains the key."""
        key = body.api_key.get_secret_value()
        agent = registry.get(name, self._parts.settings(directory))
        if not agent.access.variables:
            raise AgentMisconfigured(
                f"The agent {name} takes no key from Kapelle.",
                hint=f"Give it one as a variable: kapelle agents config set {name} env.NAME VALUE",
            )
        _require_key(key)
        try:
            async with self._vault_lock:
                await asyncio.to_thread(self._parts.vault.store_key, name, key)
        except (KapelleError, OSError):
            raise
        except Exception as error:
            # Keyrings raise errors of any class, and their messages may quote the key.
            raise KapelleError(
                f"The system's keyring did not store the key: {type(error).__name__}.",
                hint="Unlock the keyring and try again.",
            ) from None
        _log.info("a key was stored for %s in the %s", name, self._parts.vault.place)
        return await self.get(name, directory)

    async def forget_key(self, name: str, directory: OptionalDirectory = None) -> KeyRemovedView:
        """Remove the stored API key of an agent."""
        async with self._vault_lock:
            is_removed = await asyncio.to_thread(self._parts.vault.forget, name)
        if is_removed:
            _log.info("the stored key of %s was removed", name)
        else:
            # Only now: the key of an agent that is no longer configured can be removed, too.
            registry.type_of(name, self._parts.settings(directory))
        return KeyRemovedView(removed=is_removed)

    async def _views(self, infos: list[AgentInfo], settings: Settings) -> list[AgentView]:
        parts = self._parts
        now = datetime.now(UTC)

        def read_logins() -> list[tuple[Credential, str]]:
            return [_read_login(parts, info, settings) for info in infos]

        # In a thread, because a keyring may be slow.
        logins = await asyncio.to_thread(read_logins)
        rows = await parts.db.read(accounts.load_rows, [account for _, account in logins])
        pauses = await parts.db.read(accounts.load_pauses, now)
        views = []
        for info, (credential, account) in zip(infos, logins, strict=True):
            models = _list_paused_models(pauses, account)
            views.append(agent_view(info, credential, rows.get(account), models, now))
        return views


def _read_login(parts: Parts, info: AgentInfo, settings: Settings) -> tuple[Credential, str]:
    """Return the credential of an agent and the account whose rate limits apply to it."""
    agent = info.agent
    if agent is None:
        return Credential(None), info.name
    credential = find_credential(parts, agent, settings, {})
    return credential, account_of(parts, agent, settings, {})


def _list_paused_models(pauses: dict[str, tuple[datetime, str]], account: str) -> list[PausedModel]:
    """Return the models of an account that have a pause of their own."""
    models = []
    prefix = f"{account}#"
    for id, (until, reason) in sorted(pauses.items()):
        if id.startswith(prefix):
            models.append(PausedModel(model=id.removeprefix(prefix), until=until, reason=reason))
    return models


def _require_key(key: str) -> None:
    """Raise InvalidInput, without quoting the key, for text that cannot be an API key."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidInput("The key must be one word of printable ASCII characters.")
    if not _SHORTEST_KEY <= len(key) <= _LONGEST_KEY:
        raise InvalidInput(
            f"The key must have {_SHORTEST_KEY} to {_LONGEST_KEY:,} characters,"
            f" but it has {len(key):,}.",
            hint="A server that needs no API key may need a variable:"
            " kapelle agents config set NAME env.VARIABLE VALUE",
        )
