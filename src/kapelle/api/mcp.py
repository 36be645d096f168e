"""The Model Context Protocol at /mcp: every tool is a route, called with its caller's own rights.

Names and schemas come from the routes and specs; only what an agent must know besides is here. No
state is kept between two requests, so every revision of the protocol is served alike.
"""

import asyncio
import inspect
import json
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import HTTPConnection, Request
from starlette.types import Receive, Scope, Send

from kapelle import __version__
from kapelle.api.errors import response_to
from kapelle.api.router import MAX_BODY, Router, Row, filled
from kapelle.api.security import owner_only
from kapelle.api.sse import EventStream
from kapelle.patterns.registry import built_in
from kapelle.patterns.spec import PatternSpec
from kapelle.service import Service

_PREFIX = "/api/v1"
# Where a client works, if it says so: the directory of what it asks for.
DIRECTORY_HEADER = "x-kapelle-directory"
# Whoever oversteps a limit of length is told so.
_LEFT_OUT = {
    "title", "x-cli", "default", "pattern", "properties", "$defs", "additionalProperties",
    "minLength", "maxLength", "maxItems", "maxProperties", "propertyNames", "exclusiveMinimum",
}  # fmt: skip
_MANY = 10_000
_IN_DIRECTORY = {
    "task_create", "pattern_list", "agent_list", "learning_search", "learning_report",
}  # fmt: skip
# What every pattern takes and few ask for: understood, and told by pattern_list alone.
_OFTEN = {"directory", "title", "agent", "model", "base", "budget_usd", "project", "deliver"}
_SELDOM = PatternSpec.model_fields.keys() - _OFTEN
# What is told of an answer beforehand: that with which a client goes on. All would cost too much.
_WORK = {"id": {"type": "string"}, "status": {"type": "string"}}
_EVENTS = {"events": {"type": "array"}, "cursor": {"type": "string"}}
_GIVES = {
    **dict.fromkeys(("task_create", "task_get", "run_start", "run_get"), _WORK),
    **dict.fromkeys(("task_logs", "run_tail"), _EVENTS),
    "wait": {"resting": {"type": "array"}, "pending": {"type": "array"}},
}
# What a tool says of itself besides its use case, and what is sent whatever was asked for.
_BESIDES = {
    "task_create": "Say in checks how to see that it is done.",
    "task_logs": "Go on with last_event_id = cursor.",
    "run_start": "For patterns without a tool of their own: see pattern_list.",
    "run_tail": "Go on with after = cursor.",
    "question_ask": "While its status is open, call question_wait.",
}
_SENT = {
    "task_logs": {"follow": "false"},
    "run_tail": {"follow": "false"},
    "learning_search": {"status": "kept"},
}
_DESTRUCTIVE = {"task_cancel", "task_retry", "run_cancel", "schedule_cancel", "note_delete"}
_INTEGRATIONS = f"{_PREFIX}/integrations/"
_EMPTY: tuple[Any, ...] = (None, [], {})
_PROGRESS_S = 5.0
# What one answer may hold: an agent pays for every word of it.
_MOST_TEXT = 60_000

_INSTRUCTIONS = """\
Kapelle runs coding agents in the background, each in a git worktree of its own, checks what they
did and merges what passed. Hand over work with task_create (one agent, one piece of work; give it
checks, or nobody verifies it) or with one of the *_start tools (loop, team, pipeline, best_of,
orchestrate …: several agents after a pattern; fields without a description mean what they mean in
task_create, a check is a shell command; pattern_list tells further fields: max_seconds …). Both
return an id at once. Then call wait with the ids: it answers within a minute and says in `pending`
what to call it again for. task_get tells the outcome with the evidence of every check, task_diff
what changed, task_logs what the agent did; task_merge brings it into the branch that it came from.
Work that builds on other work names it in depends_on instead of waiting for it. Ids may be
shortened. What an agent under Kapelle asks for belongs to its own task: it starts from what is
committed on that task's branch, and task_merge brings it there."""


class Mcp:
    """The server, which costs 60 MB: it is made when the first request comes."""

    def __init__(self, app: Router) -> None:
        self._app = app
        self._rows = {row.tool: row for row in app.every() if row.tool}
        self.listed = [
            _listed(row, name, inspect.getdoc(row.use_case) or "", _arguments(row), {})
            for name, row in self._rows.items()
        ]
        known = self.listed[0].input_schema["properties"]
        # A tool for each pattern, which starts a run of it.
        self._patterns = {f"{item.name.replace('-', '_')}_start": item for item in built_in()}
        for name, item in self._patterns.items():
            row = self._rows[name] = self._rows["run_start"]
            self.listed.append(_listed(row, name, item.summary, item.spec_schema, known))
        server = Server(
            "kapelle", version=__version__, instructions=_INSTRUCTIONS,
            on_list_tools=self._list, on_call_tool=self._call,
        )  # fmt: skip
        # Host, Origin and token were judged by the guard before this.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._manager = StreamableHTTPSessionManager(
            server, stateless=True, security_settings=security, max_request_body_size=MAX_BODY
        )
        self._serving: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
        await self._ready.wait()
        await self._manager.handle_request(scope, receive, send)

    async def _serve(self) -> None:
        async with self._manager.run():
            self._ready.set()
            await asyncio.Event().wait()

    async def _list(
        self, context: ServerRequestContext, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        request: Request = context.request  # type: ignore[assignment]
        known = {_INTEGRATIONS + name for name in self._app.service.integrations.configured()}
        owner = request.scope["kapelle.caller"].kind == "owner"
        return types.ListToolsResult(
            tools=[
                tool
                for tool in (self.listed if owner else self.for_attempts())
                if (path := self._rows[tool.name].path) in known
                or not path.startswith(_INTEGRATIONS)
            ]
        )

    def for_attempts(self) -> list[types.Tool]:
        """What an attempt is shown: the tools whose routes it may call."""
        return [tool for tool in self.listed if self._rows[tool.name].who is not owner_only]

    async def _call(
        self, context: ServerRequestContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        name, row = params.name, self._rows.get(params.name)
        if row is None:
            return _answer(f"There is no tool {name}; tools/list names them.", failed=True)
        request: Request = context.request  # type: ignore[assignment]
        arguments: dict[str, Any] = {**(params.arguments or {}), **_SENT.get(name, {})}
        pattern = self._patterns.get(name)
        here = request.headers.get(DIRECTORY_HEADER)
        if here and (pattern or name in _IN_DIRECTORY):
            arguments.setdefault("directory", here)
        elif here and name in {"run_start", "schedule_create"}:
            spec = arguments.get("spec")
            arguments["spec"] = {"directory": here, **spec} if isinstance(spec, dict) else spec
        if pattern:
            # What is a header of a request is no part of the pattern's spec.
            names = {named.replace("-", "_") for _, named in row.binding.places.values()}
            own = {name: arguments.pop(name) for name in names & arguments.keys()}
            arguments = {**own, "pattern": pattern.name, "spec": arguments}
        calling = asyncio.create_task(_call(self._app.service, row, arguments, request.scope))
        try:
            while not (await asyncio.wait([calling], timeout=_PROGRESS_S))[0]:
                await context.session.report_progress(0, message=f"{name} goes on")
            return calling.result()
        finally:
            calling.cancel()


def _listed(
    row: Row, name: str, about: str, schema: dict[str, Any], known: Mapping[str, Any]
) -> types.Tool:
    """A tool for a list; of fields that are known from the first one it has no further words."""
    hidden = {"shell", *_SENT.get(name, ()), *(_SELDOM if known else ())}
    given = schema.get("properties", {}).items()
    properties = {field: one for field, one in given if field not in hidden}
    # A client that says where it is need not say it with every call.
    required = [field for field in schema.get("required", []) if field != "directory"]
    short = {"type": "object", "properties": properties, "required": required}
    compact = _compact(short, schema.get("$defs", {}))
    for field, one in compact["properties"].items() if known else ():
        if one == known.get(field):
            del one["description"]
    if known:
        check = json.dumps(known["checks"]["items"])
        compact = json.loads(json.dumps(compact).replace(check, '{"type": "string"}'))
    is_elsewhere = row.path.startswith(_INTEGRATIONS)
    read_only, gives = row.method == "GET" or is_elsewhere, _GIVES.get(name)
    return types.Tool(
        name=name,
        description=f"{' '.join(about.split())} {_BESIDES.get(name, '')}".strip(),
        input_schema=compact,
        output_schema={"type": "object", "properties": gives} if gives else None,
        annotations=types.ToolAnnotations(
            # What a tool that only reads cannot do needs no words, nor does what holds by default.
            read_only_hint=read_only or None,
            destructive_hint=None if read_only else name in _DESTRUCTIVE,
            open_world_hint=is_elsewhere or row.path.endswith("/pr"),
        ),
    )


def _arguments(row: Row) -> dict[str, Any]:
    """What a route takes in its path, query, headers and body, as one object."""
    schema = row.binding.takes.model_json_schema()
    parts = {name.replace("-", "_"): one for name, one in schema.get("properties", {}).items()}
    required = [name for name in schema.get("required", ()) if name != row.binding.whole]
    if row.binding.whole:
        whole = _resolved(parts.pop(row.binding.whole), schema["$defs"])
        parts |= whole["properties"]
        required += whole.get("required", ())
    return {**schema, "properties": parts, "required": required}


def _resolved(schema: dict[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """A schema itself, where a reference or "this or null" stands for it."""
    if "$ref" in schema:
        named: dict[str, Any] = defs[schema["$ref"].rpartition("/")[2]]
        return _resolved(named, defs)
    choices = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return _resolved(choices[0], defs) if len(choices) == 1 else schema


def _compact(schema: Any, defs: Mapping[str, Any]) -> Any:
    """A schema without what an agent has no use for, in which every reference is resolved."""
    if isinstance(schema, list):
        return [_compact(one, defs) for one in schema]
    if not isinstance(schema, dict):
        return schema
    about = {"description": schema["description"]} if schema.get("description") else {}
    found = {**_resolved(schema, defs), **about}
    named = {name: _compact(one, defs) for name, one in found.get("properties", {}).items()}
    kept = {
        name: _compact(value, defs)
        for name, value in found.items()
        if name not in _LEFT_OUT and value is not None and value != "" and value != []
        # What nobody comes near needs no words.
        if name != "maximum" or value < _MANY
    }
    return {**kept, **({"properties": named} if named else {})}


async def _call(
    service: Service, row: Row, arguments: dict[str, Any], caller: Scope
) -> types.CallToolResult:
    """Ask the route, as the one who called the tool."""
    scope = {**caller, "method": row.method, "path": row.path}
    try:
        found = row.binding.arranged(arguments)
        in_path = {named for place, named in row.binding.places.values() if place == "path"}
        scope["path_params"] = {name: found[name] for name in in_path}
        answer = await row.perform(HTTPConnection(scope), service, found)
    except Exception as error:
        told = json.loads(bytes(response_to(scope, error).body))["error"]
        return _answer(" ".join(filter(None, (told["message"], told["hint"]))), failed=True)
    if isinstance(answer, EventStream):
        cursor = found.get("last-event-id", found.get("after", "0"))
        return _answer(_events(await answer.read(_MOST_TEXT), cursor))
    answer = json.loads(row.binding.answer.dump_json(answer))
    shown = answer if isinstance(answer, dict) else {"items": answer}
    # That a whole list is empty is an answer, that a field of something is not worth its words.
    told = {name: filled(one, *_EMPTY) for name, one in shown.items() if one is not None}
    is_pushed = row.method == "POST" and row.path.endswith("/pr")
    return _answer(told, failed=is_pushed and told["delivery"]["status"] == "failed")


def _events(data: bytes, cursor: str) -> dict[str, Any]:
    """The events of a stream, and the cursor behind the last of them: without any, as it was."""
    found: list[dict[str, Any]] = []
    for block in data.decode("utf-8", "replace").split("\n\n")[:-1]:
        lines = (line.partition(": ") for line in block.splitlines())
        fields = {name: value for name, _, value in lines}
        if "data" in fields:
            found.append(
                {"kind": fields.get("event"), **filled(json.loads(fields["data"]), *_EMPTY)}
            )
            cursor = fields.get("id", cursor)
    return {"events": found, "cursor": cursor}


def _answer(found: Any, *, failed: bool = False) -> types.CallToolResult:
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    content: list[Any] = [types.TextContent(type="text", text=text)]
    structured = None if isinstance(found, str) else found
    return types.CallToolResult(content=content, structured_content=structured, is_error=failed)
