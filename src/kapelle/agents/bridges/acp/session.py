"""Open the session of an attempt: a new one, an earlier one, or a copy of an earlier one."""

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
from kapelle.agents.bridges.acp.process import describe_error, needs_login
from kapelle.agents.bridges.base import BridgeFailed, emit
from kapelle.agents.events import JsonObject, mapping_of

_PROTOCOL_VERSION = 1
_OPEN_S = 180.0
_CHOOSE_S = 60.0
# The variable that a login method needs, if the agent does not name it.
_KEYS = {
    "gemini-api-key": "GEMINI_API_KEY",
    "vertex-ai": "GOOGLE_API_KEY",
    "api-key": "OPENAI_API_KEY",
    "openai-api-key": "OPENAI_API_KEY",
    "codex-api-key": "CODEX_API_KEY",
}
# The modes in which the known agents ask for no permission, by the letters of their names.
# Copilot's autopilot is not among them: it prompts the model again after each answer.
_AUTONOMOUS = ("bypasspermissions", "agentfullaccess", "fullaccess", "yolo", "allowall")


class AcpSession:
    """One session over a new connection, from `initialize` to the choice of its model."""

    def __init__(self, connection: AcpConnection, job: Job) -> None:
        self._connection = connection
        self._job = job
        self._agent = JsonObject()
        self.takes_system_prompt = False

    async def initialize(self) -> None:
        """Exchange capabilities with the agent; raise BridgeFailed if it does not answer."""
        capabilities = {
            "fs": dict.fromkeys(("readTextFile", "writeTextFile"), self._job.daemon is not None),
            "terminal": False,
            # Without this, codex-acp reports failures as the model's answer.
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
        """Let codex run Kapelle's hook, which asks the daemon who holds a file."""
        params: dict[str, Any] = {"cwd": str(Path.cwd())}
        try:
            answer = await self._ask("_codex/hooks/list", _CHOOSE_S, **params)
            hooks = [
                {"key": hook.text("key"), "currentHash": hook.text("currentHash")}
                for hook in answer.mappings("hooks")
            ]
            await self._ask("_codex/hooks/trust", _CHOOSE_S, hooks=hooks, **params)
        except RpcError as error:
            reason = describe_error(error)
            emit("notice", f"Locked files are not protected from this codex: {reason}")

    @property
    def name(self) -> str:
        """The agent's name for itself."""
        return self._agent.text("agentInfo", "name")

    async def open(self) -> str:
        """Open the session, choose its mode and model, and return its id."""
        try:
            session = await self._open_session()
        except RpcError as error:
            if not needs_login(error) or not await self._log_in():
                raise
            session = await self._open_session()
        session_id = session.text("sessionId") or self._job.session_id or ""
        emit("session", session_id)
        await self._choose_mode(session_id, session)
        await self._choose_model(session_id, session)
        return session_id

    async def _open_session(self) -> JsonObject:
        params = self._params()
        session_id = self._job.session_id
        if not session_id:
            return await self._ask("session/new", _OPEN_S, **params)
        if self.name == "gemini-cli":
            await _wait_for_next_minute(session_id)
        method = self._resume_method()
        try:
            return await self._ask(method, _OPEN_S, sessionId=session_id, **params)
        except RpcError as error:
            if needs_login(error):
                raise
            raise BridgeFailed(str(describe_error(error)), "session_lost") from None

    def _resume_method(self) -> str:
        """Return the method that continues an earlier session.

        session/resume is preferred, because session/load replays the whole session.
        """
        capabilities = self._capabilities("sessionCapabilities")
        if self._job.fork:
            if capabilities.get("fork") is None:
                raise BridgeFailed("This agent cannot fork a session.", "session_lost")
            return "session/fork"
        if capabilities.get("resume") is not None:
            return "session/resume"
        if self._agent.mapping("agentCapabilities").get("loadSession") is True:
            return "session/load"
        raise BridgeFailed("This agent cannot continue an earlier session.", "session_lost")

    def _params(self) -> dict[str, Any]:
        """Return the parameters of a session: directory, MCP servers and system prompt."""
        servers = _mcp_servers(self._job.mcp_servers, self._capabilities("mcpCapabilities"))
        params: dict[str, Any] = {"cwd": str(Path.cwd()), "mcpServers": servers}
        text = self._job.system_prompt
        meta = dict[str, Any]()
        if self._job.claude_settings:
            meta["claudeCode"] = {"options": {"settings": self._job.claude_settings}}
        self.takes_system_prompt = bool(text)
        if text and self._capabilities("sessionCapabilities").get("systemPrompt") is not None:
            blocks = [{"type": "text", "text": text}]
            params["systemPrompt"] = {"mode": "append", "content": blocks}
        elif text and "claude" in self.name:
            meta["systemPrompt"] = {"append": text}
        else:
            self.takes_system_prompt = False
        if meta:
            params["_meta"] = meta
        return params

    def _capabilities(self, field: str) -> JsonObject:
        return self._agent.mapping("agentCapabilities", field)

    async def _log_in(self) -> bool:
        """Use a login method that needs only keys in the environment; tell whether there is one."""
        for method in self._agent.mappings("authMethods"):
            login = method.text("id")
            names = [variable.text("name") for variable in method.mappings("vars")]
            names = names or [_KEYS.get(login, "")]
            if all(os.environ.get(name) for name in names):
                await self._ask("authenticate", _CHOOSE_S, methodId=login)
                return True
        return False

    async def _choose_mode(self, session_id: str, session: JsonObject) -> None:
        """Set the mode of the job, or else the most autonomous one if all is permitted."""
        modes = choice(session, "mode")
        mode = None
        if self._job.mode is not None:
            mode = _require_mode(modes, self._job.mode)
        elif modes and self._job.decision == "allow" and not self._job.read_only:
            mode = modes.most_autonomous()
        if modes and mode and mode != modes.current:
            await self._set(modes, session_id, mode)

    async def _choose_model(self, session_id: str, session: JsonObject) -> None:
        """Set the model of the job, if there is one, and print the session's model."""
        models = choice(session, "model")
        model = self._job.model
        if models is None:
            if model:
                emit("notice", f"This agent offers no choice of models, so {model} is not used.")
            return
        current = models.current
        if model:
            # A model that is not listed may be an alias, or newer than the list.
            current = models.pick(model) or model
            try:
                await self._set(models, session_id, current)
            except RpcError as error:
                offer = ", ".join(dict.fromkeys(map(_without_variant, models.options)))
                text = f"The agent refuses the model {model}. It offers: {offer}."
                raise BridgeFailed(f"{text} {describe_error(error)}", "capability") from None
        if current not in {"", "default", "auto"}:
            # Qwen's ids are not the names of models: $runtime|openai|m1(openai).
            name = models.options.get(current, "") if "|" in current else ""
            emit("model", name or _without_variant(current))

    async def _set(self, choice: "SessionChoice", session_id: str, value: str) -> None:
        params = {"sessionId": session_id, **choice.params, choice.key: value}
        await self._ask(choice.method, _CHOOSE_S, **params)

    async def _ask(self, method: str, within_s: float, **params: Any) -> JsonObject:
        try:
            answer = await asyncio.wait_for(self._connection.request(method, params), within_s)
        except TimeoutError:
            text = f"The agent did not answer {method} within {within_s:.0f} s."
            raise BridgeFailed(text, "environment") from None
        return mapping_of(answer)


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """One setting of a session: how it is set, its options, and its current value."""

    method: str
    key: str  # the parameter that takes the value
    params: dict[str, Any]
    options: dict[str, str]  # ids to names
    current: str

    def pick(self, value: str) -> str | None:
        """Return the id of an option by its id, its name, or its id without a [variant]."""
        for option, name in self.options.items():
            if value == option or value.lower() == name.lower():
                return option
        variants = [option for option in self.options if _without_variant(option) == value]
        current_variant = self.current.removeprefix(_without_variant(self.current))
        if value + current_variant in variants:
            return value + current_variant
        return next(iter(variants), None)

    def most_autonomous(self) -> str | None:
        """Return the mode in which the agent asks for no permission, if it is known."""
        plain = {_letters(option): option for option in self.options}
        return next((plain[name] for name in _AUTONOMOUS if name in plain), None)


def choice(session: JsonObject, what: Literal["mode", "model"]) -> SessionChoice | None:
    """Return how a session's mode or model is set; None if the agent offers no choice."""
    offer = session.mapping(f"{what}s")
    title = what.title()
    available = offer.mappings(f"available{title}s")
    if available:
        id_key = "id" if what == "mode" else "modelId"
        options = {item.text(id_key): item.text("name") for item in available}
        current = offer.text(f"current{title}Id")
        return SessionChoice(f"session/set_{what}", f"{what}Id", {}, options, current)
    for option in session.mappings("configOptions"):
        if what in {option.get("category"), option.get("id")} and option.get("type") == "select":
            return SessionChoice(
                method="session/set_config_option",
                key="value",
                params={"configId": option.get("id")},
                options=_values(option),
                current=option.text("currentValue"),
            )
    return None


def _require_mode(modes: SessionChoice | None, mode: str) -> str:
    """Return the id of a mode; raise BridgeFailed if the agent does not have it."""
    option = modes.pick(mode) if modes else None
    if option is None:
        offer = ", ".join(modes.options) if modes else "none"
        raise BridgeFailed(f"The agent has no mode {mode!r}; it has: {offer}.", "capability")
    return option


def _values(select: JsonObject) -> dict[str, str]:
    """Return the options of a select, which may be in groups, by value."""
    values: dict[str, str] = {}
    for option in select.mappings("options"):
        values |= _values(option)
        value = option.text("value")
        if value:
            values[value] = option.text("name")
    return values


def _letters(option: str) -> str:
    """Return the letters of an id; some ids are URLs that end in #name."""
    return re.sub(r"[^a-z]", "", option.rpartition("#")[2].lower())


def _mcp_servers(
    servers: Mapping[str, Mapping[str, Any]], capabilities: JsonObject
) -> list[dict[str, Any]]:
    """Return the MCP servers that the agent can use, and print a notice about every other one."""
    entries: list[dict[str, Any]] = []
    for name, server in servers.items():
        if server["command"]:
            program, *arguments = server["command"]
            env = _pairs(server["env"])
            entries.append({"name": name, "command": program, "args": arguments, "env": env})
        elif capabilities.get("http") is True:
            headers = _pairs(server["headers"])
            entries.append({"type": "http", "name": name, "url": server["url"], "headers": headers})
        else:
            emit(
                "notice",
                f"This agent cannot use the MCP server {name}: it takes servers by command only.",
            )
    return entries


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


async def _wait_for_next_minute(session_id: str) -> None:
    """Wait until the minute in which a session began is over.

    Gemini names a chat's file by minute and session, and overwrites it when it loads a session.
    """
    home = Path(os.environ.get("GEMINI_CLI_HOME") or Path.home())
    minute = time.strftime("%Y-%m-%dT%H-%M", time.gmtime())
    name = f"session-{minute}-{session_id[:8]}.jsonl"
    if any(home.glob(f".gemini/tmp/*/chats/{name}")):
        await asyncio.sleep(60.5 - time.time() % 60)


def _without_variant(model: str) -> str:
    return model.partition("[")[0]
