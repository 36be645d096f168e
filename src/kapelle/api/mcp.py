"""The Model Context Protocol at /mcp: every tool is a route, called with its caller's own rights.

Names and schemas come from the routes and specs; only what an agent must know besides is here. No
state is kept between two requests, so every revision of the protocol is served alike.
"""

import asyncio
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
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
from kapelle.api.router import MAX_BODY, Router, Row
from kapelle.api.security import owner_only
from kapelle.api.sse import EventStream
from kapelle.patterns.registry import built_in
from kapelle.service import Service

_PREFIX = "/api/v1"
# Where a client works, if it says so: the directory of what it asks for.
DIRECTORY_HEADER = "x-kapelle-directory"
# Whoever oversteps a limit of length is told so.
_LEFT_OUT = {
    "title", "x-cli", "default", "pattern", "properties", "$defs", "additionalProperties",
    "minLength", "maxLength", "maxItems", "exclusiveMinimum",
}  # fmt: skip
_MANY = 10_000
_IN_DIRECTORY = {
    "task_create", "pattern_list", "agent_list", "learning_search", "learning_report",
}  # fmt: skip
# What every pattern takes and few ask for: understood, and told by pattern_list alone.
_SELDOM = {
    "project", "fallback_agents", "priority", "system_prompt", "env", "workspace", "prove",
    "task_timeout_s", "max_seconds", "max_agent_calls", "template", "deliver",
}  # fmt: skip
_PROGRESS_S = 5.0
# What one answer may hold: an agent pays for every word of it.
_MOST_EVENTS, _MOST_TEXT = 200, 60_000

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


@dataclass(frozen=True)
class Tool:
    """A route as a tool; about says what its own description does not."""

    name: str
    method: str
    path: str
    about: str = ""
    read_only: bool = False
    destructive: bool = False
    # What is sent whatever was asked for.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    pattern: str = ""

    @property
    def takes_directory(self) -> bool:
        return bool(self.pattern) or self.name in _IN_DIRECTORY


def _read(name: str, path: str, about: str = "", **fixed: Any) -> Tool:
    return Tool(name, "GET", path, about, read_only=True, fixed=fixed)


def _write(name: str, path: str, about: str = "", *, destructive: bool = False) -> Tool:
    return Tool(name, "POST", path, about, destructive=destructive)


TOOLS = (
    _write("task_create", "/tasks", "Say in checks how to see that it is done."),
    _read("task_get", "/tasks/{task_id}"),
    _read("task_list", "/tasks"),
    _read(
        "task_logs",
        "/tasks/{task_id}/transcript",
        "Go on with last_event_id = cursor.",
        follow="false",
    ),
    _read("task_diff", "/tasks/{task_id}/diff"),
    _write("task_cancel", "/tasks/{task_id}/cancel", destructive=True),
    _write("task_retry", "/tasks/{task_id}/retry", destructive=True),
    _write("task_resume", "/tasks/{task_id}/resume"),
    _write("task_say", "/tasks/{task_id}/say"),
    _write("task_report", "/attempt/report"),
    _write("task_finish", "/attempt/finish"),
    _write("task_merge", "/tasks/{task_id}/merge"),
    _write("task_pr", "/tasks/{task_id}/pr"),
    _read("task_pr_get", "/tasks/{task_id}/pr"),
    _write("run_start", "/runs", "For patterns without a tool of their own: see pattern_list."),
    _read("run_get", "/runs/{run_id}"),
    _read("run_list", "/runs"),
    _read("run_steps", "/runs/{run_id}/steps"),
    _read("run_tail", "/events", "Go on with after = cursor.", follow="false"),
    _read("run_diff", "/runs/{run_id}/diff"),
    _write("run_pause", "/runs/{run_id}/pause"),
    _write("run_resume", "/runs/{run_id}/resume"),
    _write("run_cancel", "/runs/{run_id}/cancel", destructive=True),
    _write("run_merge", "/runs/{run_id}/merge"),
    _write("run_pr", "/runs/{run_id}/pr"),
    _read("run_pr_get", "/runs/{run_id}/pr"),
    _write("question_ask", "/questions", "While its status is open, call question_wait."),
    _read("question_wait", "/questions/{token}"),
    _read("question_list", "/questions"),
    _write("question_answer", "/questions/{token}/answer"),
    _read("wait", "/wait", "Call it again while something is pending."),
    _write("schedule_create", "/schedules"),
    _read("schedule_list", "/schedules"),
    _read("schedule_get", "/schedules/{schedule_id}"),
    _write("schedule_pause", "/schedules/{schedule_id}/pause"),
    _write("schedule_resume", "/schedules/{schedule_id}/resume"),
    _write("schedule_run", "/schedules/{schedule_id}/run"),
    _write("schedule_cancel", "/schedules/{schedule_id}/cancel", destructive=True),
    _read("template_list", "/templates"),
    _read("search", "/search"),
    _read("learning_search", "/learnings", status="kept"),
    _write("learning_report", "/learnings"),
    _write("note_set", "/notes"),
    _read("note_get", "/notes/entry"),
    _read("note_list", "/notes"),
    _read("note_watch", "/notes/watch"),
    Tool("note_delete", "DELETE", "/notes", destructive=True),
    _write("lock_take", "/locks"),
    _write("lock_release", "/locks/release"),
    _read("lock_list", "/locks"),
    _read("pattern_list", "/patterns"),
    _read("agent_list", "/agents"),
    _write("agent_check", "/agents/{name}/check"),
    _read("usage_get", "/usage"),
    _read("daemon_get", "/daemon"),
    Tool("linear_query", "POST", "/integrations/linear", read_only=True),
    Tool("logs_query", "POST", "/integrations/logs", read_only=True),
    Tool("database_query", "POST", "/integrations/database", read_only=True),
    Tool("ci_logs", "POST", "/integrations/ci", read_only=True),
)


class Mcp:
    """The server, which costs 60 MB: it is made when the first request comes."""

    def __init__(self, app: Router) -> None:
        self._app = app
        patterns = {item.name: item for item in built_in()}
        self._tools = {tool.name: tool for tool in (*TOOLS, *map(_start, patterns))}
        rows = {(row.method, row.path): row for row in app.every()}
        self.listed: list[types.Tool] = []
        # What an attempt is shown: the tools whose routes it may call.
        self.for_attempts: list[types.Tool] = []
        self._rows: dict[str, Row] = {}
        for tool in self._tools.values():
            row = self._rows[tool.name] = rows[tool.method, f"{_PREFIX}{tool.path}"]
            if tool.pattern:
                item = patterns[tool.pattern]
                about, schema = item.summary, item.spec_schema
            else:
                about, schema = inspect.getdoc(row.use_case) or "", _arguments(row)
            known = self.listed[0].input_schema["properties"] if tool.pattern else {}
            self.listed.append(_listed(tool, about, schema, known))
            if row.who is not owner_only:
                self.for_attempts.append(self.listed[-1])
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
        owner = request.scope["kapelle.caller"].kind == "owner"
        known = {f"/integrations/{name}" for name in self._app.service.integrations.configured()}
        listed = [
            tool
            for tool in (self.listed if owner else self.for_attempts)
            if (path := self._tools[tool.name].path) in known
            or not path.startswith("/integrations/")
        ]
        return types.ListToolsResult(tools=listed)

    async def _call(
        self, context: ServerRequestContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            return _answer(f"There is no tool {params.name}; tools/list names them.", failed=True)
        request: Request = context.request  # type: ignore[assignment]
        arguments = {**(params.arguments or {}), **tool.fixed}
        if (here := request.headers.get(DIRECTORY_HEADER)) and tool.takes_directory:
            arguments.setdefault("directory", here)
        row = self._rows[tool.name]
        if tool.pattern:
            # What is a header of a request is no part of the pattern's spec.
            names = {named.replace("-", "_") for _, named in row.binding.places.values()}
            own = {name: arguments.pop(name) for name in names & arguments.keys()}
            arguments = {**own, "pattern": tool.pattern, "spec": arguments}
        calling = asyncio.create_task(_call(self._app.service, row, arguments, request.scope))
        try:
            while not (await asyncio.wait([calling], timeout=_PROGRESS_S))[0]:
                await context.session.report_progress(0, message=f"{tool.name} goes on")
            return calling.result()
        finally:
            calling.cancel()


def _start(pattern: str) -> Tool:
    return Tool(f"{pattern.replace('-', '_')}_start", "POST", "/runs", pattern=pattern)


def _listed(tool: Tool, about: str, schema: dict[str, Any], known: dict[str, Any]) -> types.Tool:
    """A tool for a list; of fields that are known from the first one it has no further words."""
    properties = {
        name: field
        for name, field in schema.get("properties", {}).items()
        if name not in {"shell", *tool.fixed, *(_SELDOM if tool.pattern else ())}
    }
    # A client that says where it is need not say it with every call.
    required = [name for name in schema.get("required", []) if name != "directory"]
    short = {"type": "object", "properties": properties, "required": required}
    compact = _compact(short, schema.get("$defs", {}))
    for name, one in compact["properties"].items() if known else ():
        if one == known.get(name):
            del one["description"]
        if one.get("items") == known["checks"]["items"]:
            one["items"] = {"type": "string"}
    return types.Tool(
        name=tool.name,
        description=f"{' '.join(about.split())} {tool.about}".strip(),
        input_schema=compact,
        annotations=types.ToolAnnotations(
            # What a tool that only reads cannot do needs no words, nor does what holds by default.
            read_only_hint=tool.read_only or None,
            destructive_hint=None if tool.read_only else tool.destructive,
            open_world_hint=False,
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
        return _answer(_events(await answer.read(_MOST_TEXT)))
    answer = json.loads(row.binding.answer.dump_json(answer))
    shown = answer if isinstance(answer, dict) else {"items": answer}
    # That a whole list is empty is an answer, that a field of something is not worth its words.
    return _answer({name: _filled(one) for name, one in shown.items() if one is not None})


def _events(data: bytes) -> dict[str, Any]:
    """The events of a stream, and the cursor behind the last of them."""
    found: list[dict[str, Any]] = []
    cursor = None
    for block in data.decode("utf-8", "replace").split("\n\n")[:-1]:
        lines = (line.partition(": ") for line in block.splitlines())
        fields = {name: value for name, _, value in lines}
        if "data" in fields:
            found.append({"kind": fields.get("event"), **_filled(json.loads(fields["data"]))})
            cursor = fields.get("id", cursor)
    return {"events": found, "cursor": cursor}


def _filled(found: Any) -> Any:
    """An answer without its empty fields."""
    if isinstance(found, list):
        return [_filled(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {name: _filled(one) for name, one in found.items() if one not in (None, [], {})}


def _answer(found: Any, *, failed: bool = False) -> types.CallToolResult:
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    content: list[Any] = [types.TextContent(type="text", text=text)]
    structured = None if isinstance(found, str) else found
    return types.CallToolResult(content=content, structured_content=structured, is_error=failed)
