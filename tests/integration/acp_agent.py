"""A small ACP agent for the tests of the bridge, made with the protocol's own package.

It follows the prompt, a JSON object: {"do": [[step, arguments…]…], "stop": reason, "usage": {…}}.
What it is sent is noted, line by line, in the file that ACP_LOG names.
"""

import asyncio
import json
import os
import sys
from typing import Any

import acp
from acp import helpers
from acp.schema import (
    AgentCapabilities,
    AuthenticateResponse,
    AuthMethodAgent,
    ForkSessionResponse,
    Implementation,
    InitializeResponse,
    LoadSessionResponse,
    McpCapabilities,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionForkCapabilities,
    SessionMode,
    SessionModeState,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    SetSessionModeResponse,
    ToolCallUpdate,
    Usage,
    UsageUpdate,
)

OFFERS = os.environ.get("ACP_OFFERS", "load resume fork http modes models").split()
NAME = os.environ.get("ACP_NAME", "small")


def note(method: str, **params: Any) -> None:
    with open(os.environ["ACP_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps({"method": method, **params}, default=lambda m: m.model_dump()) + "\n")


class SmallAgent:
    """Has the sessions known-1 and those that it made itself."""

    client: acp.Client

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.logged_in = "login" not in OFFERS

    def on_connect(self, conn: acp.Client) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **more: Any) -> InitializeResponse:
        note("initialize", **more)
        if "silent" in OFFERS:
            await asyncio.sleep(60)
        sessions = SessionCapabilities(
            fork=SessionForkCapabilities() if "fork" in OFFERS else None,
            resume=SessionResumeCapabilities() if "resume" in OFFERS else None,
        )
        return InitializeResponse(
            protocol_version=protocol_version,
            auth_methods=[AuthMethodAgent(id="api-key", name="API key")],
            agent_info=Implementation(name=NAME, version="1"),
            agent_capabilities=AgentCapabilities(
                load_session="load" in OFFERS,
                mcp_capabilities=McpCapabilities(http="http" in OFFERS),
                session_capabilities=sessions,
            ),
        )

    async def new_session(self, **params: Any) -> NewSessionResponse:
        note("new", **params)
        if not self.logged_in:
            raise acp.RequestError.auth_required()
        return NewSessionResponse(session_id="new-1", **_choices())

    async def authenticate(self, method_id: str) -> AuthenticateResponse:
        note("authenticate", method_id=method_id)
        self.logged_in = True
        return AuthenticateResponse()

    async def load_session(self, session_id: str, **params: Any) -> LoadSessionResponse:
        note("load", session_id=session_id, **params)
        _must_be_known(session_id)
        await self.say(session_id, "an old story")
        asyncio.get_running_loop().call_later(0.1, self._tell_late, session_id)
        return LoadSessionResponse(**_choices())

    def _tell_late(self, session_id: str) -> None:
        self._late = asyncio.ensure_future(self.say(session_id, "an old story told late"))

    async def resume_session(self, session_id: str, **params: Any) -> ResumeSessionResponse:
        note("resume", session_id=session_id, **params)
        _must_be_known(session_id)
        return ResumeSessionResponse(**_choices())

    async def fork_session(self, session_id: str, **params: Any) -> ForkSessionResponse:
        note("fork", session_id=session_id, **params)
        _must_be_known(session_id)
        return ForkSessionResponse(session_id="copy-1", **_choices())

    async def set_session_mode(self, session_id: str, mode_id: str) -> SetSessionModeResponse:
        note("mode", mode_id=mode_id)
        return SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool
    ) -> SetSessionConfigOptionResponse:
        note("option", config_id=config_id, value=value)
        if value == "nonsense":
            raise acp.RequestError.invalid_params({"details": "no such model"})
        return SetSessionConfigOptionResponse(config_options=[])

    async def prompt(self, session_id: str, prompt: list[Any], **more: Any) -> PromptResponse:
        text = prompt[0].text
        self.cancelled.clear()
        note("prompt", session_id=session_id, text=text)
        script = json.loads(text[text.index('{"do"') :])
        for step, *arguments in script["do"]:
            await getattr(self, step)(session_id, *arguments)
            if self.cancelled.is_set():
                return PromptResponse(stop_reason="cancelled")
        usage = script.get("usage")
        return PromptResponse(
            stop_reason=script.get("stop", "end_turn"),
            usage=Usage.model_validate(usage) if usage else None,
            field_meta=script.get("meta"),
        )

    async def cancel(self, session_id: str) -> None:
        note("cancel", session_id=session_id)
        self.cancelled.set()

    async def say(self, session_id: str, *chunks: str) -> None:
        for chunk in chunks:
            await self.client.session_update(session_id, helpers.update_agent_message_text(chunk))

    async def told(self, session_id: str, update: dict[str, Any]) -> None:
        """Any update as it is, such as one with fields of an agent's own."""
        message = {"jsonrpc": "2.0", "method": "session/update"}
        params = {"sessionId": session_id, "update": update}
        await self.garbage(session_id, json.dumps({**message, "params": params}))

    async def plan(self, session_id: str, *steps: str) -> None:
        entries = [helpers.plan_entry(step, status="completed") for step in steps]
        await self.client.session_update(session_id, helpers.update_plan(entries))

    async def tool(self, session_id: str, name: str, given: Any, output: str) -> None:
        start = helpers.start_tool_call(name, name, kind="execute", status="pending")
        await self.client.session_update(session_id, start)
        for status, extra in (
            ("in_progress", {"raw_input": given}),
            ("completed", {"raw_output": output}),
        ):
            update = helpers.update_tool_call(name, status=status, **extra)  # type: ignore[arg-type]
            await self.client.session_update(session_id, update)

    async def used(self, session_id: str, used: int, cost: float | None = None) -> None:
        told = {"used": used, "size": 200_000, "sessionUpdate": "usage_update"}
        if cost is not None:
            told["cost"] = {"amount": cost, "currency": "USD"}
        await self.client.session_update(session_id, UsageUpdate.model_validate(told))

    async def ask(self, session_id: str, title: str, kind: Any = None) -> None:
        given = {"command": "rm -r /"}
        call = ToolCallUpdate(tool_call_id=title, title=title, raw_input=given, kind=kind)
        kinds = ("allow_once", "allow_always", "reject_once")
        options = [PermissionOption(option_id=f"id_{kind}", name=kind, kind=kind) for kind in kinds]
        response = await self.client.request_permission(session_id, call, options)
        note("outcome", **response.outcome.model_dump())

    async def write(self, session_id: str, path: str, content: str) -> None:
        try:
            await self.client.write_text_file(session_id=session_id, path=path, content=content)
            read = await self.client.read_text_file(session_id=session_id, path=path)
            note("written", content=read.content)
        except acp.RequestError as error:
            note("refused", reason=str(error))

    async def wait(self, session_id: str) -> None:
        await asyncio.wait_for(self.cancelled.wait(), 60)

    async def ignore(self, session_id: str) -> None:
        await asyncio.sleep(60)

    async def fail(self, session_id: str, code: int, message: str, data: Any = None) -> None:
        raise acp.RequestError(code, message, data)

    async def garbage(self, session_id: str, *lines: str) -> None:
        for line in lines:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    async def die(self, session_id: str, code: int) -> None:
        sys.stderr.write("the sky fell\n")
        sys.stderr.flush()
        os._exit(code)


def _must_be_known(session_id: str) -> None:
    if session_id != "known-1":
        raise acp.RequestError.resource_not_found(session_id)


def _choices() -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if "modes" in OFFERS or "autopilot" in OFFERS:
        most = "autopilot" if "autopilot" in OFFERS else "yolo"
        modes = [SessionMode(id=name, name=name) for name in ("default", "plan", most)]
        chosen["modes"] = SessionModeState(current_mode_id="default", available_modes=modes)
    if "models" in OFFERS:
        names = ("small-1", "large-1")
        options = [SessionConfigSelectOption(value=name, name=name.title()) for name in names]
        chosen["config_options"] = [
            SessionConfigOptionSelect(
                id="model",
                name="Model",
                category="model",
                type="select",
                current_value="small-1",
                options=options,
            )
        ]
    return chosen


if __name__ == "__main__":
    asyncio.run(acp.run_agent(SmallAgent(), use_unstable_protocol=True))  # type: ignore[arg-type]
