"""Opens the session of an attempt: a new one, an earlier one, or a copy of an earlier one."""

import asyncio
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from kapelle.agents.bridges.acp import Job
from kapelle.agents.bridges.acp.connection import AcpConnection, RpcError
from kapelle.agents.bridges.acp.process import failure_of, needs_login
from kapelle.agents.bridges.base import BridgeFailed, emit
from kapelle.agents.events import JsonObject, mapping_of

_PROTOCOL_VERSION = 1
_OPENING_S = 180.0
_CHOOSING_S = 60.0
# Names of keys that a login by API key takes, where the agent does not say so itself.
_KEYS = {
    "gemini-api-key": "GEMINI_API_KEY",
    "vertex-ai": "GOOGLE_API_KEY",
    "api-key": "OPENAI_API_KEY",
    "openai-api-key": "OPENAI_API_KEY",
    "codex-api-key": "CODEX_API_KEY",
}
# The modes in which the well-known agents ask for nothing, the letters and digits of their names.
# None is Copilot's autopilot: it prompts the model again and again after its answer.
_AUTONOMOUS = ("bypasspermissions", "agentfullaccess", "fullaccess", "yolo", "allowall")


class AcpSession:
    """One session over a fresh connection, from the greeting to the choice of its model."""

    def __init__(self, connection: AcpConnection, job: Job) -> None:
        self._connection = connection
        self._job = job
        self._agent = JsonObject()
        self.system_prompt_taken = False

    async def initialize(self) -> None:
        """Raises BridgeFailed when the agent does not answer as one would."""
        capabilities = {
            "fs": dict.fromkeys(("readTextFile", "writeTextFile"), self._job.daemon is not None),
            "terminal": False,
            # Without it codex-acp tells failures as if they were the model's answer.
            "_meta": {"jetbrains": {"air": {"version": 1, "capabilities": ["sessionFailure"]}}},
        }
        self._agent = await self._ask(
            "initialize",
            self._job.initialize_s,
            protocolVersion=_PROTOCOL_VERSION,
            clientCapabilities=capabilities,
            clientInfo={"name": "kapelle", "title": "Kapelle", "version": version("kapelle")},
        )
        if self._job.daemon and "codex" in self.name:
            await self._trust_hook()

    async def _trust_hook(self) -> None:
        """Let codex run the hook that its adapter gave it, which asks who holds a file."""
        params: dict[str, Any] = {"cwd": str(Path.cwd())}
        try:
            listed = await self._ask("_codex/hooks/list", _CHOOSING_S, **params)
            keys = ("key", "currentHash")
            hooks = [{key: hook.text(key) for key in keys} for hook in listed.mappings("hooks")]
            await self._ask("_codex/hooks/trust", _CHOOSING_S, hooks=hooks, **params)
        except RpcError as error:
            emit("notice", f"Nothing keeps this codex from locked files: {failure_of(error)}")

    @property
    def name(self) -> str:
        return self._agent.text("agentInfo", "name")

    async def open(self) -> str:
        """The session's id; its mode and model are chosen."""
        try:
            session = await self._session()
        except RpcError as error:
            if not needs_login(error) or not await self._log_in():
                raise
            session = await self._session()
        session_id = session.text("sessionId") or self._job.session_id or ""
        emit("session", session_id)
        await self._choose_mode(session_id, session)
        await self._choose_model(session_id, session)
        return session_id

    async def _session(self) -> JsonObject:
        params = self._params()
        wanted = self._job.session_id
        if not wanted:
            return await self._ask("session/new", _OPENING_S, **params)
        if self.name == "gemini-cli":
            await _wait_for_next_minute(wanted)
        try:
            return await self._ask(self._resume_method(), _OPENING_S, sessionId=wanted, **params)
        except RpcError as error:
            if needs_login(error):
                raise
            raise BridgeFailed(str(failure_of(error)), "session_lost") from None

    def _resume_method(self) -> str:
        """The method that goes on with an earlier session; resume replays nothing, load does."""
        offered = self._offers("sessionCapabilities")
        if self._job.fork:
            if offered.get("fork") is None:
                raise BridgeFailed("This agent cannot fork a session.", "session_lost")
            return "session/fork"
        if offered.get("resume") is not None:
            return "session/resume"
        if self._agent.mapping("agentCapabilities").get("loadSession") is True:
            return "session/load"
        raise BridgeFailed("This agent cannot go on with an earlier session.", "session_lost")

    def _params(self) -> dict[str, Any]:
        known = _mcp_servers(self._job.mcp_servers, self._offers("mcpCapabilities"))
        params: dict[str, Any] = {"cwd": str(Path.cwd()), "mcpServers": known}
        text = self._job.system_prompt
        meta = dict[str, Any]()
        if self._job.claude_settings:
            meta["claudeCode"] = {"options": {"settings": self._job.claude_settings}}
        self.system_prompt_taken = bool(text)
        if text and self._offers("sessionCapabilities").get("systemPrompt") is not None:
            blocks = [{"type": "text", "text": text}]
            params["systemPrompt"] = {"mode": "append", "content": blocks}
        elif text and "claude" in self.name:
            meta["systemPrompt"] = {"append": text}
        else:
            self.system_prompt_taken = False
        if meta:
            return {**params, "_meta": meta}
        return params

    def _offers(self, what: str) -> JsonObject:
        return self._agent.mapping("agentCapabilities", what)

    async def _log_in(self) -> bool:
        """Use the first login that needs nothing but a key in the environment."""
        for method in self._agent.mappings("authMethods"):
            login = method.text("id")
            names = [variable.text("name") for variable in method.mappings("vars")]
            names = names or [_KEYS.get(login, "")]
            if all(os.environ.get(name) for name in names):
                await self._ask("authenticate", _CHOOSING_S, methodId=login)
                return True
        return False

    async def _choose_mode(self, session_id: str, session: JsonObject) -> None:
        modes = choice(session, "mode")
        wanted = self._job.mode
        if wanted is None:
            free = self._job.decision == "allow" and not self._job.read_only
            if modes and free:
                picked = modes.most_autonomous()
            else:
                picked = None
        else:
            picked = modes.pick(wanted) if modes else None
            if picked is None:
                if modes:
                    known = ", ".join(modes.options)
                else:
                    known = "none"
                raise BridgeFailed(
                    f"The agent has no mode {wanted!r}; it has: {known}.", "capability"
                )
        if modes and picked and picked != modes.current:
            await self._set(modes, session_id, picked)

    async def _choose_model(self, session_id: str, session: JsonObject) -> None:
        models = choice(session, "model")
        wanted = self._job.model
        if models is None:
            if wanted:
                emit("notice", f"This agent offers no choice of models, so {wanted} is not used.")
            return
        current = models.current
        if wanted:
            # One that is not listed may be an alias, or too new for the list.
            current = models.pick(wanted) or wanted
            try:
                await self._set(models, session_id, current)
            except RpcError as error:
                known = ", ".join(dict.fromkeys(map(_without_variant, models.options)))
                text = f"The agent refuses the model {wanted}. It offers: {known}."
                raise BridgeFailed(f"{text} {failure_of(error)}", "capability") from None
        if current not in {"", "default", "auto"}:
            # Qwen's ids are its own: $runtime|openai|m1(openai).
            if "|" in current:
                name = models.options.get(current, "")
            else:
                name = ""
            emit("model", name or _without_variant(current))

    async def _set(self, choice: "SessionChoice", session_id: str, value: str) -> None:
        params = {"sessionId": session_id, **choice.params, choice.key: value}
        await self._ask(choice.method, _CHOOSING_S, **params)

    async def _ask(self, method: str, within_s: float, **params: Any) -> JsonObject:
        try:
            answer = await asyncio.wait_for(self._connection.request(method, params), within_s)
        except TimeoutError:
            text = f"The agent did not answer {method} within {within_s:.0f} s."
            raise BridgeFailed(text, "environment") from None
        return mapping_of(answer)


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """One thing to choose: how to, what from, and what it is now."""

    method: str
    key: str  # of the parameter that takes the value
    params: dict[str, Any]
    options: dict[str, str]  # ids to names
    current: str

    def pick(self, wanted: str) -> str | None:
        """The id that a person means by its id, its name, or its id without a [variant]."""
        for option, name in self.options.items():
            if wanted == option or wanted.lower() == name.lower():
                return option
        variants = [option for option in self.options if option.partition("[")[0] == wanted]
        same = wanted + self.current[len(self.current.partition("[")[0]) :]
        if same in variants:
            return same
        return next(iter(variants), None)

    def most_autonomous(self) -> str | None:
        plain = {_letters(option): option for option in self.options}
        return next((plain[name] for name in _AUTONOMOUS if name in plain), None)


def choice(session: JsonObject, what: Literal["mode", "model"]) -> SessionChoice | None:
    """How a session's mode or model is chosen; None when the agent offers no choice."""
    listed = session.mapping(f"{what}s")
    title = what.title()
    if available := listed.mappings(f"available{title}s"):
        id_key = "id" if what == "mode" else "modelId"
        options = {item.text(id_key): item.text("name") for item in available}
        current = listed.text(f"current{title}Id")
        return SessionChoice(f"session/set_{what}", f"{what}Id", {}, options, current)
    for option in session.mappings("configOptions"):
        if what in {option.get("category"), option.get("id")} and option.get("type") == "select":
            params = {"configId": option.get("id")}
            current = option.text("currentValue")
            return SessionChoice(
                "session/set_config_option", "value", params, _values(option), current
            )
    return None


def _values(select: JsonObject) -> dict[str, str]:
    """The options of a select, which may be in groups."""
    values: dict[str, str] = {}
    for option in select.mappings("options"):
        values |= _values(option)
        if value := option.text("value"):
            values[value] = option.text("name")
    return values


def _letters(option: str) -> str:
    """An id reduced to its letters; some are addresses that end in #name."""
    return re.sub(r"[^a-z]", "", option.rpartition("#")[2].lower())


def _mcp_servers(
    known: Mapping[str, Mapping[str, Any]], capabilities: JsonObject
) -> list[dict[str, Any]]:
    """Those that the agent can use; there is a notice about every other one."""
    entries: list[dict[str, Any]] = []
    for name, server in known.items():
        if server["command"]:
            program, *arguments = server["command"]
            env = _pairs(server["env"])
            entries.append({"name": name, "command": program, "args": arguments, "env": env})
        elif capabilities.get("http") is True:
            headers = _pairs(server["headers"])
            entries.append({"type": "http", "name": name, "url": server["url"], "headers": headers})
        else:
            emit("notice", f"This agent cannot use the MCP server {name}: it takes commands only.")
    return entries


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


async def _wait_for_next_minute(session_id: str) -> None:
    """Wait until the minute in which a session began is over.

    Gemini names a chat's file by minute and session, and begins it anew when it loads a session.
    """
    home = Path(os.environ.get("GEMINI_CLI_HOME") or Path.home())
    minute = time.strftime("%Y-%m-%dT%H-%M", time.gmtime())
    name = f"session-{minute}-{session_id[:8]}.jsonl"
    if any(home.glob(f".gemini/tmp/*/chats/{name}")):
        await asyncio.sleep(60.5 - time.time() % 60)


def _without_variant(model: str) -> str:
    return model.partition("[")[0]
