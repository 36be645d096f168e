"""The Model Context Protocol at /mcp: each tool is an operation of the API.

A tool is called with the permissions of its caller. Names and schemas come from the operations and
specifications. The server keeps no state between two requests, so it serves every revision of the
protocol in the same way.
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
    CONSTANT_ARGUMENTS,
    DIRECTORY,
    IN_DIRECTORY,
    ITEMS,
    MOST_ITEMS,
    PAGED,
    RENAMED_ARGUMENTS,
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

# The directory in which a client works; some tools use it by default.
DIRECTORY_HEADER = "x-kapelle-directory"
# The tools to list for a client: `all`, or by default the core set.
TOOLS_HEADER = "x-kapelle-tools"
_EMPTY: tuple[Any, ...] = (None, [], {})
# The most bytes of an event stream that are read for one answer.
_MAX_LOG_BYTES = 60_000
_MAX_EVENTS = 1000

_INSTRUCTIONS = """\
Kapelle runs coding agents in the background, each in its own git worktree, verifies their work with
checks, and merges it.

1. Start work. task_create starts one agent with one task; give it checks, or nothing verifies the
   work. loop_start, team_start and run_start start several agents in a pattern. pattern_list lists
   the patterns, pattern_get returns the schema of one. Fields without a description are those of
   task_create; a check is a shell command. Each call returns an id at once.
2. Call wait with the ids. It returns within a minute; call it again with the ids in `pending`.
3. Read the result: task_get (status and evidence of each check), task_diff (changes), task_logs
   (what the agent did).
4. Merge with task_merge, into the branch from which the work started.

- Work that builds on other work names it in depends_on; do not wait for it.
- Ids may be shortened.
- tool_list lists more tools (schedules, pull requests, search, notes, learnings, …); tool_call
  calls them.
- An answer has at most 20,000 characters. Lists have a cursor. `cut` lists what is missing: repeat
  the call with that field and offset.
- Work that an agent of Kapelle starts belongs to its own task: it starts from the commits on the
  branch of that task, and task_merge merges it there."""


class Mcp:
    """The MCP server. It costs 60 MB, so it is made for the first request."""

    def __init__(self, app: Router) -> None:
        self._app = app
        self.tools = Tools(app)
        server = Server(
            "kapelle", version=__version__, instructions=_INSTRUCTIONS,
            on_list_tools=self._list, on_call_tool=self._call,
        )  # fmt: skip
        # The guard in front of this server has checked Host, Origin and token.
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
        lists_all = request.headers.get(TOOLS_HEADER) == "all"
        tools = self.tools.list_tools(owner=_is_owner(request), every=lists_all)
        return types.ListToolsResult(tools=tools)

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
        """Return the tools outside the core set, or the tool of a name with its schema."""
        if name is not None:
            full_tool = self.tools.get(str(name), owner=owner).full
            answer = full_tool.model_dump(mode="json", by_alias=True, exclude_none=True)
            return fit_answer(answer, is_repeatable=False)
        others = self.tools.list_others(owner=owner)
        return {"tools": [_summarize_tool(tool) for tool in others]}

    def _find_called_tool(
        self, arguments: AnswerObject, *, owner: bool
    ) -> tuple[Tool, AnswerObject]:
        """Return the tool that `tool_call` names, with its arguments; raises InvalidInput."""
        tool_arguments = arguments.get("arguments")
        if not isinstance(tool_arguments, dict | None):
            raise InvalidInput(f"`arguments` of {TOOL_CALL} must be an object.")
        tool = self.tools.get(str(arguments.get("name")), owner=owner)
        if tool.operation is None:
            raise InvalidInput(f"{tool.name} must be called directly.")
        return tool, dict(tool_arguments or {})

    async def _perform(
        self, context: ServerRequestContext, request: Request, tool: Tool, arguments: AnswerObject
    ) -> types.CallToolResult:
        """Call the operation of a tool, and report progress until it has ended."""
        part = _AnswerPart(tool, arguments)
        _add_directory(tool, arguments, request.headers.get(DIRECTORY_HEADER))
        services = self._app.services
        progress = Progress(context, services, tool, dict(arguments), request)
        values = _rename_for_operation(services, tool, arguments)
        call = asyncio.create_task(_call_operation(services, tool, values, request, part))
        try:
            await progress.report_until(call)
            return call.result()
        finally:
            call.cancel()


class _AnswerPart:
    """The part of an answer that a call asks for; removes its arguments from those of the call."""

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
            limit = arguments.pop("limit", None)
            self.limit = _read_number(limit, "limit", _MAX_EVENTS, 1, _MAX_EVENTS)


def _read_text(value: object, name: str) -> str | None:
    if not isinstance(value, str | None):
        raise InvalidInput(f"{name} must be text, not {value!r}.")
    return value


def _read_number(value: object, name: str, default: int, least: int, most: int) -> int:
    """Return an argument as a number; some clients send a number as text."""
    if value is None:
        return default
    number = value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        hint = None
        if name == "limit":
            hint = "Use the cursor for further items."
        raise InvalidInput(f"{name} must be a whole number from {least} to {most}.", hint=hint)
    return number


def _is_owner(request: HTTPConnection) -> bool:
    return bool(request.scope["kapelle.principal"].kind == "owner")


def _summarize_tool(tool: Tool) -> AnswerObject:
    first_sentence = (tool.full.description or "").partition(". ")[0]
    return {"name": tool.name, "about": f"{first_sentence.rstrip('.')}."}


def _add_directory(tool: Tool, arguments: AnswerObject, directory: str | None) -> None:
    """Add the directory of the client to a call that needs a directory and has none."""
    if directory is None:
        return
    if tool.pattern or tool.name in IN_DIRECTORY:
        arguments.setdefault(DIRECTORY, directory)
    elif tool.name in {"run_start", "schedule_create"} and isinstance(arguments.get("spec"), dict):
        arguments["spec"] = {DIRECTORY: directory, **arguments["spec"]}


def _rename_for_operation(services: Service, tool: Tool, arguments: AnswerObject) -> AnswerObject:
    """Return the arguments of a tool by their names in its operation."""
    assert tool.operation is not None
    new_names = RENAMED_ARGUMENTS.get(tool.name, {})
    values = {new_names.get(name, name): value for name, value in arguments.items()}
    values |= CONSTANT_ARGUMENTS.get(tool.name, {})
    if tool.pattern is None:
        return values
    # A header such as the idempotency key is not part of the pattern's specification.
    names = header_arguments(tool.operation.bind(services))
    headers = {name: values.pop(name) for name in names & values.keys()}
    return {**headers, "pattern": tool.pattern.name, "spec": values}


async def _call_operation(
    services: Service,
    tool: Tool,
    arguments: AnswerObject,
    request: HTTPConnection,
    part: _AnswerPart,
) -> types.CallToolResult:
    """Perform the operation of a tool with the permissions of its caller."""
    assert tool.operation is not None
    operation = tool.operation
    binding = operation.bind(services)
    values = binding.arrange(arguments)
    path_parameters = {}
    for source in binding.sources.values():
        if source.kind == "path":
            path_parameters[source.name] = values[source.name]
    scope = {**request.scope, "method": operation.method, "path": operation.path}
    scope["path_params"] = path_parameters
    response = await operation.perform(HTTPConnection(scope), services, values)
    if isinstance(response, EventStream):
        answer = await _read_events(services, arguments, response, part)
        if part.field is not None:
            return _make_answer(read_part(answer, part.field, part.offset))
        return _make_answer(answer)
    answer = _without_empty_fields(json.loads(binding.answer.dump_json(response)))
    if tool.name == "pattern_get":
        answer["spec_schema"] = compact_schema(answer["spec_schema"], {"shell"})
    is_failed = False
    if operation.method == "POST" and operation.path.endswith("/pr"):
        is_failed = answer["delivery"]["status"] == "failed"
    if part.field is not None:
        return _make_answer(read_part(answer, part.field, part.offset))
    if tool.name in SLICED and part.limit is not None:
        answer = slice_list(answer, SLICED[tool.name], part.limit, part.cursor)
    answer = fit_answer(shorten_rows(tool.name, answer), is_repeatable=tool.is_read_only)
    return _make_answer(answer, failed=is_failed)


def _without_empty_fields(response: Any) -> AnswerObject:
    """Return a response as an object without what an agent has no use for."""
    if not isinstance(response, dict):
        response = {"items": response}
    answer: AnswerObject = {}
    for name, value in response.items():
        if value is not None:
            # An empty list at the top is an answer; inside of an item it only costs characters.
            answer[name] = without_empty(value, *_EMPTY)
    spec = answer.get("spec")
    if isinstance(spec, dict):
        # The environment of the client's shell.
        spec.pop("shell", None)
    return answer


async def _read_events(
    service: Service, arguments: AnswerObject, stream: EventStream[Any], part: _AnswerPart
) -> AnswerObject:
    """Return the events of a stream that fit, with the cursor after the last one.

    `more` is whether there are more now, `running` whether more may come. Without any event the
    cursor stays the same.
    """
    cursor = str(arguments.get("last_event_id") or arguments.get("after") or "0")
    # Before the events are read: those that come later are in the answer to the next call.
    is_running = await _is_running(service, arguments)
    data, is_complete = await stream.read(_MAX_LOG_BYTES)
    events = _parse_events(data)
    if part.field is not None:
        return {"events": [event for _, event in events]}
    answer = fit_events(events, cursor, part.limit)
    has_more = bool(answer["more"]) or not is_complete
    return {**answer, "more": has_more, "running": is_running}


def _parse_events(data: bytes) -> list[tuple[str, AnswerObject]]:
    """Return server-sent events, each with its id."""
    events: list[tuple[str, AnswerObject]] = []
    for block in data.decode("utf-8", "replace").split("\n\n")[:-1]:
        fields = {}
        for line in block.splitlines():
            name, _, value = line.partition(": ")
            fields[name] = value
        if "data" in fields:
            body = without_empty(json.loads(fields["data"]), *_EMPTY)
            events.append((fields.get("id", ""), {"kind": fields.get("event"), **body}))
    return events


async def _is_running(service: Service, arguments: AnswerObject) -> bool:
    """Return whether more events may come: the task or run, if one is named, is not at rest."""
    text = arguments.get("run_id") or arguments.get("task_id")
    if text is None:
        return True
    work = await service.work.get(str(text))
    return not is_resting(work.status, work.waiting_for)


def _make_refusal(scope: Scope, error: Exception) -> types.CallToolResult:
    """Return the answer for an exception: its message and its hint."""
    response = response_to({**scope, "method": "MCP"}, error)
    body = json.loads(bytes(response.body))["error"]
    return _make_answer(" ".join(filter(None, (body["message"], body["hint"]))), failed=True)


def _make_answer(answer: AnswerObject | str, *, failed: bool = False) -> types.CallToolResult:
    structured_answer: AnswerObject | None = None
    if isinstance(answer, str):
        text = answer
    else:
        text = json.dumps(answer, ensure_ascii=False)
        structured_answer = answer
    content: list[Any] = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(
        content=content, structured_content=structured_answer, is_error=failed
    )
