"""The Model Context Protocol at /mcp: every tool is a route, called with its caller's own rights.

Names and schemas come from the routes and specs; only what an agent must know besides is here. No
state is kept between two requests, so every revision of the protocol is served alike.
"""

import asyncio
import json
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
from kapelle.api.mcp.answers import (
    AnswerObject,
    fit_answer,
    fit_events,
    read_part,
    shorten_rows,
    slice_list,
)
from kapelle.api.mcp.progress import Progress
from kapelle.api.mcp.tools import (
    DIRECTORY,
    IN_DIRECTORY,
    ITEMS,
    MOST_ITEMS,
    PAGED,
    RENAMED,
    SENT,
    SLICED,
    TOOL_CALL,
    TOOL_LIST,
    Tool,
    Tools,
    compact_schema,
    header_arguments,
)
from kapelle.api.openapi import without_empty
from kapelle.api.parameters import MAX_BODY
from kapelle.api.router import Router
from kapelle.api.sse import EventStream
from kapelle.domain.errors import InvalidInput
from kapelle.domain.states import is_resting
from kapelle.service import Service

# Where a client works, if it says so: the directory of what it asks for.
DIRECTORY_HEADER = "x-kapelle-directory"
# Which tools a client is listed: all, or by default the core set.
TOOLS_HEADER = "x-kapelle-tools"
_EMPTY: tuple[Any, ...] = (None, [], {})
# So much of a log is read for one answer.
_MOST_OF_LOG = 60_000
_MOST_EVENTS = 1000

_INSTRUCTIONS = """\
Kapelle runs coding agents in the background, each in a git worktree of its own, checks what they
did and merges what passed. Hand over work with task_create (one agent, one piece of work; give it
checks, or nobody verifies it) or with loop_start, team_start or run_start (several agents after a
pattern; fields without a description mean what they mean in task_create, a check is a shell
command; pattern_list names the patterns, pattern_get has the schema of one). All return an id at
once. Then call wait with the ids: it answers within a minute and says in `pending` what to call it
again for. task_get tells the outcome with the evidence of every check, task_diff what changed,
task_logs what the agent did; task_merge brings it into the branch that it came from. Work that
builds on other work names it in depends_on instead of waiting for it. Ids may be shortened.
tool_list names further tools (schedules, pull requests, search, notes, learnings, …); tool_call
calls them. No answer is longer than 20,000 characters: lists have a cursor, and `cut` names what
is missing; the same call with that field and offset gives it. What an agent under Kapelle asks for
belongs to its own task: it starts from what is committed on that task's branch, and task_merge
brings it there."""


class Mcp:
    """The server, which costs 60 MB: it is made when the first request comes."""

    def __init__(self, app: Router) -> None:
        self._app = app
        self.tools = Tools(app)
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
        every = request.headers.get(TOOLS_HEADER) == "all"
        return types.ListToolsResult(tools=self.tools.listed(owner=_is_owner(request), every=every))

    async def _call(
        self, context: ServerRequestContext, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        request: Request = context.request  # type: ignore[assignment]
        try:
            owner = _is_owner(request)
            tool = self.tools.get(params.name, owner=owner)
            arguments = dict(params.arguments or {})
            tool.require_known(arguments)
            if tool.name == TOOL_LIST:
                return _make_answer(self._list_other_tools(arguments.get("name"), owner=owner))
            if tool.name == TOOL_CALL:
                tool, arguments = self._find_called_tool(arguments, owner=owner)
                tool.require_known(arguments)
            return await self._perform(context, request, tool, arguments)
        except Exception as error:
            return _make_refusal(request.scope, error)

    def _list_other_tools(self, name: object, *, owner: bool) -> AnswerObject:
        """The tools that are not listed, or one of all of them with its schema."""
        if name is not None:
            listed = self.tools.get(str(name), owner=owner).listed
            found: AnswerObject = listed.model_dump(mode="json", by_alias=True, exclude_none=True)
            return fit_answer(found, is_repeatable=False)
        others = self.tools.others(owner=owner)
        return {"tools": [_summarize_tool(tool) for tool in others]}

    def _find_called_tool(
        self, arguments: AnswerObject, *, owner: bool
    ) -> tuple[Tool, AnswerObject]:
        given = arguments.get("arguments")
        if not isinstance(given, dict | None):
            raise InvalidInput(f"`arguments` of {TOOL_CALL} must be an object.")
        tool = self.tools.get(str(arguments.get("name")), owner=owner)
        if tool.operation is None:
            raise InvalidInput(f"{tool.name} is called directly.")
        return tool, dict(given or {})

    async def _perform(
        self, context: ServerRequestContext, request: Request, tool: Tool, arguments: AnswerObject
    ) -> types.CallToolResult:
        wanted = _AnswerPart(tool, arguments)
        _add_directory(tool, arguments, request.headers.get(DIRECTORY_HEADER))
        services = self._app.services
        progress = Progress(context, services, tool, dict(arguments), request)
        calling = asyncio.create_task(
            _call_operation(
                services, tool, _rename_for_operation(services, tool, arguments), request, wanted
            )
        )
        try:
            await progress.tell_until(calling)
            return calling.result()
        finally:
            calling.cancel()


class _AnswerPart:
    """Which part of an answer is wanted, taken out of the arguments of a call."""

    def __init__(self, tool: Tool, arguments: AnswerObject) -> None:
        self.field: str | None = None
        self.offset = 0
        if tool.is_read_only:
            self.field = _read_text(arguments.pop("field", None), "field")
            self.offset = _read_number(arguments.pop("offset", None), "offset", 0, 0, 2**53)
        self.limit: int | None = None
        self.cursor: str | None = None
        if tool.name in SLICED:
            self.limit = _read_number(arguments.pop("limit", None), "limit", ITEMS, 1, MOST_ITEMS)
            self.cursor = _read_text(arguments.pop("cursor", None), "cursor")
        elif tool.name in PAGED:
            limit = _read_number(arguments.get("limit"), "limit", ITEMS, 1, MOST_ITEMS)
            arguments["limit"] = limit
        elif tool.name == "run_tail":
            given = arguments.pop("limit", None)
            self.limit = _read_number(given, "limit", _MOST_EVENTS, 1, _MOST_EVENTS)


def _read_text(value: object, name: str) -> str | None:
    if not isinstance(value, str | None):
        raise InvalidInput(f"{name} must be text, not {value!r}.")
    return value


def _read_number(value: object, name: str, default: int, least: int, most: int) -> int:
    if value is None:
        return default
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        if name == "limit":
            hint = "The cursor leads to further items."
        else:
            hint = None
        raise InvalidInput(f"{name} must be a whole number from {least} to {most}.", hint=hint)
    return number


def _is_owner(request: HTTPConnection) -> bool:
    return bool(request.scope["kapelle.principal"].kind == "owner")


def _summarize_tool(tool: Tool) -> AnswerObject:
    about = (tool.listed.description or "").partition(". ")[0]
    return {"name": tool.name, "about": f"{about.rstrip('.')}."}


def _add_directory(tool: Tool, arguments: AnswerObject, here: str | None) -> None:
    """Add the directory of the client where the tool takes one and none was given."""
    if here is None:
        return
    if tool.pattern or tool.name in IN_DIRECTORY:
        arguments.setdefault(DIRECTORY, here)
    elif tool.name in {"run_start", "schedule_create"} and isinstance(arguments.get("spec"), dict):
        arguments["spec"] = {DIRECTORY: here, **arguments["spec"]}


def _rename_for_operation(services: Service, tool: Tool, arguments: AnswerObject) -> AnswerObject:
    """Return the arguments of a tool by their names in its operation."""
    assert tool.operation is not None
    new_names = RENAMED.get(tool.name, {})
    asked = {new_names.get(name, name): value for name, value in arguments.items()}
    asked |= SENT.get(tool.name, {})
    if tool.pattern is None:
        return asked
    # A header of a request is no part of the pattern's specification.
    names = header_arguments(tool.operation.bind(services))
    own = {name: asked.pop(name) for name in names & asked.keys()}
    return {**own, "pattern": tool.pattern.name, "spec": asked}


async def _call_operation(
    services: Service,
    tool: Tool,
    arguments: AnswerObject,
    request: HTTPConnection,
    wanted: _AnswerPart,
) -> types.CallToolResult:
    """Perform the operation of a tool, with the rights of whoever called the tool."""
    assert tool.operation is not None
    operation = tool.operation
    binding = operation.bind(services)
    values = binding.arrange(arguments)
    in_path = [source.name for source in binding.sources.values() if source.kind == "path"]
    scope = {**request.scope, "method": operation.method, "path": operation.path}
    scope["path_params"] = {name: values[name] for name in in_path}
    answer = await operation.perform(HTTPConnection(scope), services, values)
    is_failed = False
    if isinstance(answer, EventStream):
        told = await _read_events(services, tool, arguments, answer, wanted)
    else:
        answer = json.loads(binding.answer.dump_json(answer))
        if isinstance(answer, dict):
            shown = answer
        else:
            shown = {"items": answer}
        # That a whole list is empty is an answer, that a field of something is not worth its words.
        told = {name: without_empty(one, *_EMPTY) for name, one in shown.items() if one is not None}
        if isinstance(spec := told.get("spec"), dict):
            spec.pop("shell", None)  # the environment is of no use to an agent
        if operation.method == "POST" and operation.path.endswith("/pr"):
            is_failed = told["delivery"]["status"] == "failed"
    if tool.name == "pattern_get":
        told["spec_schema"] = compact_schema(told["spec_schema"], {"shell"})
    if wanted.field is not None:
        return _make_answer(read_part(told, wanted.field, wanted.offset))
    if tool.name in SLICED and wanted.limit is not None:
        told = slice_list(told, SLICED[tool.name], wanted.limit, wanted.cursor)
    if not isinstance(answer, EventStream):
        told = fit_answer(shorten_rows(tool.name, told), is_repeatable=tool.is_read_only)
    return _make_answer(told, failed=is_failed)


async def _read_events(
    service: Service,
    tool: Tool,
    arguments: AnswerObject,
    stream: EventStream[Any],
    wanted: _AnswerPart,
) -> AnswerObject:
    """The events of a stream, the cursor behind the last of them (without any, as it was), whether
    there are more, and whether more are still to come."""
    cursor = str(arguments.get("last_event_id") or arguments.get("after") or "0")
    # What comes after this moment is told by the next call: so it is asked first.
    running = await _is_running(service, arguments)
    data, is_complete = await stream.read(_MOST_OF_LOG)
    events = _parse_events(data)
    if wanted.field is not None:
        return {"events": [event for _, event in events]}
    told = fit_events(events, cursor, wanted.limit)
    more = bool(told["more"]) or not is_complete
    return {**told, "more": more, "running": running}


def _parse_events(data: bytes) -> list[tuple[str, AnswerObject]]:
    """Server-sent events, each with its id."""
    found: list[tuple[str, AnswerObject]] = []
    for block in data.decode("utf-8", "replace").split("\n\n")[:-1]:
        lines = (line.partition(": ") for line in block.splitlines())
        fields = {name: value for name, _, value in lines}
        if "data" in fields:
            body = without_empty(json.loads(fields["data"]), *_EMPTY)
            found.append((fields.get("id", ""), {"kind": fields.get("event"), **body}))
    return found


async def _is_running(service: Service, arguments: AnswerObject) -> bool:
    """Whether the task or run that is followed may still do something; without one, the daemon."""
    text = arguments.get("run_id") or arguments.get("task_id")
    if text is None:
        return True
    work = await service.work.get(str(text))
    return not is_resting(work.status, work.waiting_for)


def _make_refusal(scope: Scope, error: Exception) -> types.CallToolResult:
    told = json.loads(bytes(response_to({**scope, "method": "MCP"}, error).body))["error"]
    return _make_answer(" ".join(filter(None, (told["message"], told["hint"]))), failed=True)


def _make_answer(found: Any, *, failed: bool = False) -> types.CallToolResult:
    if isinstance(found, str):
        text = found
    else:
        text = json.dumps(found, ensure_ascii=False)
    content: list[Any] = [types.TextContent(type="text", text=text)]
    if isinstance(found, str):
        structured = None
    else:
        structured = found
    return types.CallToolResult(content=content, structured_content=structured, is_error=failed)
