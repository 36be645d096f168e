"""Use cases of agents: which there are, whether they work, and the keys stored for them."""

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
# The PATH of a shell, on which programs are looked for instead of on the daemon's.
SearchPath = Annotated[Text | None, Field(max_length=100_000)]


class CheckBody(Spec):
    live: bool = False
    directory: OptionalDirectory = None
    path: SearchPath = None


class CredentialBody(Spec):
    api_key: SecretStr


class LiveView(BaseModel):
    """What came of one real call."""

    ok: bool
    answer: str | None
    failure: FailureClass | None
    reason: str | None
    duration_s: float


class CheckView(BaseModel):
    """What was found when an agent was tried; live is None when no call was made."""

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
    info: AgentInfo, found: Credential, account: Any, models: list[PausedModel], now: datetime
) -> AgentView:
    """An agent with its credential and the row of its account, None if there is none yet."""
    if info.agent:
        access = info.agent.access
    else:
        access = None
    login = LoginView(
        source=found.source or "none",
        variable=found.variable,
        variables=list(access.variables) if access else [],
        needed=access.needed if access else False,
        verified_at=account["verified_at"] if account else None,
    )
    paused = bool(account and account["paused_until"] and account["paused_until"] > now)
    windows: dict[str, Any] = (account and account["windows"]) or {}
    return AgentView(
        name=info.name,
        type=info.type,
        installed=info.installed,
        default=info.is_default,
        status=_status(info, login, now),
        problem=info.problem,
        hint=info.hint,
        model=info.agent.settings.model if info.agent else None,
        capabilities=asdict(info.capabilities),
        login=login,
        tested=info.agent.tested if info.agent else None,
        paused_until=account["paused_until"] if paused else None,
        paused_reason=account["reason"] if paused else None,
        paused_models=models,
        windows=[_window(*told, now) for told in sorted(windows.items())],
    )


def _window(name: str, told: dict[str, Any], now: datetime) -> AccountWindow:
    """What was told of a limit of an account; nobody knows what was used since a reset."""
    window = AccountWindow(name=name, **told)
    is_over = window.resets_at is not None and window.resets_at <= now
    if is_over:
        return window.model_copy(update={"used": None})
    return window


def _status(info: AgentInfo, login: LoginView, now: datetime) -> str:
    if info.agent is None:
        return "not usable"
    if info.installed is None:
        return "not installed"
    if info.problem:
        return "not set up"
    if login.verified_at:
        return f"verified {_ago(now - login.verified_at)}"
    if login.source != "none":
        return "installed, login not verified"
    if login.needed:
        return "installed, no login found"
    return "installed"


def _ago(passed: timedelta) -> str:
    seconds = max(passed.total_seconds(), 0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"


PROMPT = "Reply with the single word ok."
_VERSION_S = 20.0
_LIVE_S = 120.0
# Older directories are of a daemon that died amid a trial.
_ABANDONED_S = 600.0
_ANSWER = 200


async def _trial(parts: Parts, info: AgentInfo, settings: Settings, live: bool) -> dict[str, Any]:
    """The fields of a CheckView but for the agent itself."""
    agent = info.agent
    problem = info.problem
    found: dict[str, Any] = {"version": None, "comparison": None, "live": None, "hint": None}
    if agent is None or info.installed is None or problem:
        problem = problem or f"The agent {info.name} is not installed."
        return {**found, "usable": False, "problem": problem, "hint": info.hint}
    if agent.tested:
        env = agent_environment(parts.environ, settings, agent)
        found["version"], problem = await _version(info.installed, env)
    if found["version"] and agent.tested:
        found["comparison"] = compare_versions(found["version"], agent.tested)
    if live and problem is None:
        found["live"], found["hint"] = await _call(parts, agent, settings)
        problem = found["live"].reason
    return {**found, "usable": problem is None, "problem": problem}


async def _version(program: str, env: dict[str, str]) -> tuple[str | None, str | None]:
    """The version of the program, and what is wrong with it."""
    try:
        said = await asyncio.to_thread(
            read_output, [program, "--version"], env, Path("/"), _VERSION_S
        )
    except OSError as error:
        return None, f"{program} cannot be run: {error.strerror or error}."
    if said is None:
        return None, f"{program} --version did not end within {_VERSION_S:.0f} s."
    return find_version(said), None


async def _call(
    parts: Parts, agent: AgentAdapter, settings: Settings
) -> tuple[LiveView, str | None]:
    """What one call came to, and what to do about it."""
    began = time.monotonic()
    answer, failure, reason = await ask(parts, agent, settings, PROMPT)
    account = account_of(parts, agent, settings, {})
    await parts.db.write(_note, agent.name, account, failure)
    view = LiveView(
        ok=failure is None,
        answer=answer and answer[:_ANSWER],
        failure=failure.kind if failure else None,
        reason=reason,
        duration_s=round(time.monotonic() - began, 3),
    )
    return view, failure.policy.fix_for_agent(agent.name) if failure else None


async def ask(parts: Parts, agent: AgentAdapter, settings: Settings, prompt: str) -> Answer:
    """The answer of an agent, asked in a directory that is removed, or why there is none."""
    directory = await asyncio.to_thread(_make_directory, parts.home.checks)
    process_dir = directory / "call"
    place = ProcessLocation(parts, settings, directory.name, process_dir, {}, Origin())
    try:
        launch, side_log = build_question(place, agent, prompt, Process(process_dir))
        ended = await parts.runner.execute(replace(launch, timeout_s=_LIVE_S))
        return await read_answer(agent, settings, process_dir, ended, side_log, _LIVE_S)
    except KapelleError as error:
        return None, Failure(FailureClass.ENVIRONMENT, error.message), error.message
    except asyncio.CancelledError:
        parts.runner.stop(process_dir, "nobody waits for the answer any more")
        raise
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, True)


def _note(connection: Connection, name: str, account: str, failure: Failure | None) -> None:
    """A success verifies the account and lifts its pause; a refused login is no longer verified."""
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
    """A private directory; those that a dead daemon left behind are removed."""
    checks.mkdir(mode=0o700, exist_ok=True)
    for path in checks.iterdir():
        if time.time() - path.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix="check_", dir=checks))


_log = logging.getLogger("kapelle.agents")
# Shorter ones would be found, and masked, everywhere in the output of agents.
_SHORTEST_KEY = 8
_LONGEST_KEY = 10_000


class AgentService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._writing = asyncio.Lock()  # two keys stored at once must not lose one another

    async def known(
        self, directory: OptionalDirectory = None, path: SearchPath = None
    ) -> list[AgentView]:
        """The agents that a task in a directory may use."""
        settings = self._parts.settings(directory).on_path(path)
        found = await asyncio.to_thread(registry.available, settings)
        return await self._views(found, settings)

    async def get(
        self, name: str, directory: OptionalDirectory = None, path: SearchPath = None
    ) -> AgentView:
        """One agent."""
        settings = self._parts.settings(directory).on_path(path)
        info = await asyncio.to_thread(registry.describe, name, settings)
        return (await self._views([info], settings))[0]

    async def check(self, name: str, body: CheckBody | None = None) -> CheckView:
        """Ask its program for its version and, if live, the agent for one word, which costs a
        little.

        A live answer verifies its login and lifts a pause of its account.
        """
        body = body or CheckBody()
        settings = self._parts.settings(body.directory).on_path(body.path)
        info = await asyncio.to_thread(registry.describe, name, settings)
        found = await _trial(self._parts, info, settings, body.live)
        return CheckView(agent=await self.get(name, body.directory, body.path), **found)

    async def store_key(
        self, name: str, body: CredentialBody, directory: OptionalDirectory = None
    ) -> AgentView:
        """Store an API key, which no answer ever shows."""
        key = body.api_key.get_secret_value()
        agent = registry.get(name, self._parts.settings(directory))
        if not agent.access.variables:
            raise AgentMisconfigured(
                f"The agent {name} takes no key from Kapelle.",
                hint=f"Give it one as a variable: kapelle agents config set {name} env.NAME VALUE",
            )
        _require_key(key)
        try:
            async with self._writing:
                await asyncio.to_thread(self._parts.vault.store_key, name, key)
        except (KapelleError, OSError):
            raise
        except Exception as error:
            # A keyring's own errors are of any class, and may quote what they were given.
            raise KapelleError(
                f"The system's keyring did not take the key: {type(error).__name__}.",
                hint="Unlock the keyring and try again.",
            ) from None
        _log.info("a key was stored for %s in the %s", name, self._parts.vault.place)
        return await self.get(name, directory)

    async def forget_key(self, name: str, directory: OptionalDirectory = None) -> KeyRemovedView:
        """Remove the stored API key."""
        # Even of an agent that is no longer known.
        async with self._writing:
            removed = await asyncio.to_thread(self._parts.vault.forget, name)
        if removed:
            _log.info("the stored key of %s was removed", name)
        else:
            registry.type_of(name, self._parts.settings(directory))
        return KeyRemovedView(removed=removed)

    async def _views(self, infos: list[AgentInfo], settings: Settings) -> list[AgentView]:
        def credentials() -> list[tuple[Credential, str]]:
            """Each agent's credential, and the account whose limits it works under."""
            return [
                (
                    find_credential(parts, agent, settings, {}),
                    account_of(parts, agent, settings, {}),
                )
                if (agent := info.agent)
                else (Credential(None), info.name)
                for info in infos
            ]

        parts = self._parts
        now = datetime.now(UTC)
        # In a thread, for a keyring may take its time to answer.
        found = await asyncio.to_thread(credentials)
        rows = await parts.db.read(accounts.load_rows, [account for _, account in found])
        paused = await parts.db.read(accounts.load_pauses, now)
        return [
            agent_view(info, credential, rows.get(account), _models(paused, account), now)
            for info, (credential, account) in zip(infos, found, strict=True)
        ]


def _models(paused: dict[str, tuple[datetime, str]], account: str) -> list[PausedModel]:
    """Those of an account's models that are paused by themselves."""
    return [
        PausedModel(model=id.removeprefix(f"{account}#"), until=until, reason=reason)
        for id, (until, reason) in sorted(paused.items())
        if id.startswith(f"{account}#")
    ]


def _require_key(key: str) -> None:
    """Refuse what cannot be a key, without showing it."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidInput("A key is one word of printable ASCII characters, and this is not.")
    if not _SHORTEST_KEY <= len(key) <= _LONGEST_KEY:
        raise InvalidInput(
            f"A key has {_SHORTEST_KEY} to {_LONGEST_KEY:,} characters, and this has {len(key):,}.",
            hint="What a server of your own takes instead of a key can be given as a variable:"
            " kapelle agents config set NAME env.VARIABLE VALUE",
        )
