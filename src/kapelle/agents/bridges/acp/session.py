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

from acp import PROTOCOL_VERSION, RequestError
from acp.connection import Connection
from acp.meta import AGENT_METHODS

from kapelle.agents.bridges.acp import Job
from kapelle.agents.bridges.acp.process import failure_of, needs_login
from kapelle.agents.bridges.events import Failed, emit
from kapelle.agents.output import Json, mapping_of, mappings_of, text_of

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
_AUTONOMOUS = (
    "bypasspermissions", "agentfullaccess", "fullaccess", "yolo", "autopilot", "allowall",
)  # fmt: skip


class Session:
    """One session over a fresh connection, from the greeting to the choice of its model."""

    def __init__(self, connection: Connection, job: Job) -> None:
        self._connection = connection
        self._job = job
        self._agent: Json = {}
        self.system_prompt_taken = False

    async def greet(self) -> None:
        """Raises Failed when the agent does not answer as one would."""
        params = {
            "protocolVersion": PROTOCOL_VERSION,
            # Gemini cannot make new files through a client's file system.
            "clientCapabilities": {
                "fs": {"readTextFile": False, "writeTextFile": False},
                "terminal": False,
                # Without it codex-acp tells failures as if they were the model's answer.
                "_meta": {"jetbrains": {"air": {"version": 1, "capabilities": ["sessionFailure"]}}},
            },
            "clientInfo": {"name": "kapelle", "title": "Kapelle", "version": version("kapelle")},
        }
        self._agent = await self._ask("initialize", params, self._job.greeting_s)

    @property
    def name(self) -> str:
        return text_of(mapping_of(self._agent.get("agentInfo")).get("name"))

    async def open(self) -> str:
        """The session's id; its mode and model are chosen."""
        try:
            session = await self._session()
        except RequestError as error:
            if not needs_login(error) or not await self._log_in():
                raise
            session = await self._session()
        session_id = text_of(session.get("sessionId")) or self._job.session_id or ""
        emit("session", session_id)
        await self._choose_mode(session_id, session)
        await self._choose_model(session_id, session)
        return session_id

    async def _session(self) -> Json:
        params = self._params()
        wanted = self._job.session_id
        if not wanted:
            return await self._ask(AGENT_METHODS["session_new"], params, _OPENING_S)
        if self.name == "gemini-cli":
            await _wait_for_next_minute(wanted)
        try:
            return await self._ask(
                self._resume_method(), {**params, "sessionId": wanted}, _OPENING_S
            )
        except RequestError as error:
            if needs_login(error):
                raise
            raise Failed(str(failure_of(error)), "session_lost") from None

    def _resume_method(self) -> str:
        """The method that goes on with an earlier session; resume replays nothing, load does."""
        offered = self._offers("sessionCapabilities")
        if self._job.fork:
            if offered.get("fork") is None:
                raise Failed("This agent cannot fork a session.", "session_lost")
            return AGENT_METHODS["session_fork"]
        if offered.get("resume") is not None:
            return AGENT_METHODS["session_resume"]
        if mapping_of(self._agent.get("agentCapabilities")).get("loadSession") is True:
            return AGENT_METHODS["session_load"]
        raise Failed("This agent cannot go on with an earlier session.", "session_lost")

    def _params(self) -> Json:
        known = _mcp_servers(self._job.mcp_servers, self._offers("mcpCapabilities"))
        params: Json = {"cwd": str(Path.cwd()), "mcpServers": known}
        text = self._job.system_prompt
        if text and self._offers("sessionCapabilities").get("systemPrompt") is not None:
            blocks = [{"type": "text", "text": text}]
            params["systemPrompt"] = {"mode": "append", "content": blocks}
        elif text and "claude" in self.name:
            params["_meta"] = {"systemPrompt": {"append": text}}
        else:
            return params
        self.system_prompt_taken = True
        return params

    def _offers(self, what: str) -> Json:
        return mapping_of(mapping_of(self._agent.get("agentCapabilities")).get(what))

    async def _log_in(self) -> bool:
        """Use the first login that needs nothing but a key in the environment."""
        for method in mappings_of(self._agent.get("authMethods")):
            login = text_of(method.get("id"))
            names = [text_of(variable.get("name")) for variable in mappings_of(method.get("vars"))]
            names = names or [_KEYS.get(login, "")]
            if all(os.environ.get(name) for name in names):
                await self._ask(AGENT_METHODS["authenticate"], {"methodId": login}, _CHOOSING_S)
                return True
        return False

    async def _choose_mode(self, session_id: str, session: Json) -> None:
        modes, wanted = choice(session, "mode"), self._job.mode
        if wanted is None:
            picked = modes.most_autonomous() if modes and self._job.decision == "allow" else None
        else:
            picked = modes.pick(wanted) if modes else None
            if picked is None:
                known = ", ".join(modes.options) if modes else "none"
                raise Failed(f"The agent has no mode {wanted!r}; it has: {known}.", "capability")
        if modes and picked and picked != modes.current:
            params = {"sessionId": session_id, **modes.params, modes.key: picked}
            await self._ask(modes.method, params, _CHOOSING_S)

    async def _choose_model(self, session_id: str, session: Json) -> None:
        models, wanted = choice(session, "model"), self._job.model
        if models is None:
            if wanted:
                emit("notice", f"This agent offers no choice of models, so {wanted} is not used.")
            return
        current = models.current
        if wanted:
            # One that is not listed may be an alias, or too new for the list.
            current = models.pick(wanted) or wanted
            params = {"sessionId": session_id, **models.params, models.key: current}
            try:
                await self._ask(models.method, params, _CHOOSING_S)
            except RequestError as error:
                known = ", ".join(dict.fromkeys(map(_without_variant, models.options)))
                text = f"The agent refuses the model {wanted}. It offers: {known}."
                raise Failed(f"{text} {failure_of(error)}", "capability") from None
        if current not in {"", "default", "auto"}:
            emit("model", _without_variant(current))

    async def _ask(self, method: str, params: Json, within_s: float) -> Json:
        try:
            answer = await asyncio.wait_for(self._connection.send_request(method, params), within_s)
        except TimeoutError:
            text = f"The agent did not answer {method} within {within_s:.0f} s."
            raise Failed(text, "environment") from None
        return mapping_of(answer)


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing to choose: how to, what from, and what it is now."""

    method: str
    key: str  # of the parameter that takes the value
    params: Json
    options: dict[str, str]  # ids to names
    current: str

    def pick(self, wanted: str) -> str | None:
        """The id that a person means by its id, its name, or its id without a [variant]."""
        for option, name in self.options.items():
            if wanted == option or wanted.lower() == name.lower():
                return option
        variants = [option for option in self.options if option.partition("[")[0] == wanted]
        same = wanted + self.current[len(self.current.partition("[")[0]) :]
        return same if same in variants else next(iter(variants), None)

    def most_autonomous(self) -> str | None:
        plain = {_letters(option): option for option in self.options}
        return next((plain[name] for name in _AUTONOMOUS if name in plain), None)


def choice(session: Json, what: Literal["mode", "model"]) -> Choice | None:
    """How a session's mode or model is chosen; None when the agent offers no choice."""
    plural, title = f"{what}s", what.title()
    listed = mapping_of(session.get(plural))
    available = mappings_of(listed.get(f"available{title}s"))
    id_key = "id" if what == "mode" else "modelId"
    if available:
        options = {text_of(item.get(id_key)): text_of(item.get("name")) for item in available}
        current = text_of(listed.get(f"current{title}Id"))
        return Choice(f"session/set_{what}", f"{what}Id", {}, options, current)
    for option in mappings_of(session.get("configOptions")):
        if what in {option.get("category"), option.get("id")} and option.get("type") == "select":
            options = _values(option.get("options"))
            params = {"configId": option.get("id")}
            current = text_of(option.get("currentValue"))
            return Choice("session/set_config_option", "value", params, options, current)
    return None


def _values(options: object) -> dict[str, str]:
    """The options of a select, which may be in groups."""
    values: dict[str, str] = {}
    for option in mappings_of(options):
        values |= _values(option.get("options"))
        if value := text_of(option.get("value")):
            values[value] = text_of(option.get("name"))
    return values


def _letters(option: str) -> str:
    """An id reduced to its letters; some are addresses that end in #name."""
    return re.sub(r"[^a-z]", "", option.rpartition("#")[2].lower())


def _mcp_servers(
    known: Mapping[str, Mapping[str, Any]], capabilities: Mapping[str, Any]
) -> list[Json]:
    """Those that the agent can use; there is a notice about every other one."""
    entries = []
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
