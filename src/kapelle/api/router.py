"""Routes as rows: which use case answers which request, and what it is given of it.

What a use case takes stands in its signature: names in the path, headers, what is in the query, and
a specification, which is the body or, of a request without one, the query. A row is looked into
when its first request comes, for there are many and few are ever used.
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from kapelle import __version__
from kapelle.api.errors import ErrorView, error_response, response_to
from kapelle.api.security import anybody, owner_only
from kapelle.domain.errors import InvalidInput, KapelleError, problem
from kapelle.service import Service

_HEADERS = {
    "idempotency_key": Annotated[str | None, Field(min_length=1, max_length=200)],
    "last_event_id": Annotated[str | None, Field(max_length=100)],
}
# What a use case may take that no request holds.
_OURS = frozenset({"self", "service", "request", "parent", "attempt_id"})
_WITHOUT_BODY = frozenset({"GET", "DELETE", "WEBSOCKET"})
_JSON = "application/json"
_IS_JSON = re.compile(r"application/(.+\+)?json")
_MOST_PROBLEMS = 10
_REF = "#/components/schemas/"
_TOKENS = ("token", "attempt")
_ERRORS = {
    400: "a request that cannot be read",
    401: "no token, or a wrong one",
    403: "a foreign Origin, or a token that does not allow this",
    404: "no such thing",
    409: "the present state does not allow this",
    413: "the request is too large",
    421: "a Host that is not the daemon's",
    422: "what was given cannot be used",
    503: "the daemon is unwell",
}
# A prompt and a system prompt of 1 MB each, with every character escaped in JSON, and the rest.
MAX_BODY = 16_000_000
# What anybody may send: the code of a login.
_MAX_OPEN_BODY = 1_000


@dataclass(frozen=True, eq=False)
class Row:
    """A use case as a route; text, where it takes one, is the id in the path."""

    method: str
    path: str
    # A mark of api/security.py: it gives the task of the attempt that calls, None for the owner.
    who: Callable[[HTTPConnection, Service], Awaitable[str | None]]
    use_case: Callable[..., Any]
    name: str = ""  # by default that of the use case
    status: int = 200
    told: Mapping[str, Any] | None = None  # of what is no JSON: how the OpenAPI document tells it
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what the use case is always given

    @cached_property
    def binding(self) -> "Binding":
        return Binding(self)

    async def perform(
        self, request: HTTPConnection, service: Service, found: dict[str, Any] | None = None
    ) -> Any:
        """What its use case says to a request, or to what was found elsewhere."""
        ours = {
            "parent": await self.who(request, service),
            "attempt_id": request.scope["kapelle.caller"].attempt_id,
            "self": service.of_class.get(self.use_case.__qualname__.partition(".")[0]),
            "service": service,
            "request": request,
        }
        given = self.binding.valid(await self.binding.read(request) if found is None else found)
        given |= {name: ours[name] for name in self.binding.ours}
        answer = self.use_case(**given, **self.fixed)
        return await answer if inspect.isawaitable(answer) else answer

    async def answer(self, request: HTTPConnection, service: Service) -> Response | None:
        """That as a response; None where it has spoken for itself."""
        answer = await self.perform(request, service)
        if self.method == "WEBSOCKET":
            return None
        if isinstance(answer, Response):
            return answer
        if self.told is not None:
            return Response(answer, self.status, media_type=next(iter(self.told["content"])))
        return Response(self.binding.answer.dump_json(answer), self.status, media_type=_JSON)


class Binding:
    """What a use case takes of a request, as one model."""

    def __init__(self, row: Row) -> None:
        signature = inspect.signature(row.use_case)
        taken = {name: one for name, one in signature.parameters.items() if name not in row.fixed}
        self.ours = taken.keys() & _OURS
        gives = signature.return_annotation if row.told is None else Any
        self.answer: TypeAdapter[Any] = TypeAdapter(gives)
        # Where each stands, and its name there.
        self.places: dict[str, tuple[str, str]] = {}
        fields: dict[str, Any] = {}
        in_path = re.findall(r"{(\w+)}", row.path)
        for name, one in taken.items():
            if name in self.ours:
                continue
            annotation = _HEADERS.get(name, one.annotation)
            fields[name] = (annotation, ... if one.default is one.empty else one.default)
            named = in_path[0] if name == "text" else name
            if _holds(annotation, BaseModel):
                place = "filter" if row.method in _WITHOUT_BODY else "body"
            elif name in _HEADERS:
                place, named = "header", name.replace("_", "-")
            else:
                place = "path" if named in in_path else "query"
            self.places[name] = (place, named)
        config = ConfigDict(alias_generator=lambda name: self.places[name][1])
        self.takes = create_model(f"{row.method} {row.path}", __config__=config, **fields)
        filters = [one for name, (one, _) in fields.items() if self.places[name][0] == "filter"]
        self._lists = {
            name
            for model in (self.takes, *filters)
            for name, one in model.model_fields.items()
            if _holds(one.annotation, list)
        }

    async def read(self, request: HTTPConnection) -> dict[str, Any]:
        """What a request says."""
        query: dict[str, Any] = {}
        # Without those that are empty: `?status=&tag=` asks for everything.
        for name, value in parse_qsl(request.scope["query_string"].decode("latin-1")):
            query[name] = [*query.get(name, ()), value] if name in self._lists else value
        sources = {"path": request.path_params, "query": query, "header": request.headers}
        found: dict[str, Any] = {}
        for place, named in self.places.values():
            if place == "filter":
                found[named] = query
            elif place == "body" and isinstance(request, Request):
                found |= await _body(request, named)
            elif named in sources[place]:
                found[named] = sources[place][named]
        return found

    def arranged(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The same of arguments that were given without saying where each stands."""
        found, rest = dict[str, Any](), dict(arguments)
        for place, named in self.places.values():
            value = rest.pop(named.replace("-", "_"), None)
            if place == "path" and not (isinstance(value, str) and value):
                raise InvalidInput(f"`{named}` is missing: the id of what is meant.")
            if place in {"path", "query", "header"} and value is not None:
                found[named] = _text(value)
            elif value is not None:
                rest[named] = value
        texts = {name: _text(value) for name, value in rest.items() if value is not None}
        return found | {
            named: texts if place == "filter" else rest
            for place, named in self.places.values()
            if place == "filter" or (place == "body" and rest)
        }

    def valid(self, found: dict[str, Any]) -> dict[str, Any]:
        """The arguments that were found; InvalidInput says all that is wrong with them."""
        try:
            valid = self.takes.model_validate(found)
        except ValidationError as error:
            problems = error.errors(include_url=False)[:_MOST_PROBLEMS]
            raise InvalidInput("; ".join(map(self._problem, problems))) from None
        return {name: getattr(valid, name) for name in self.places}

    def _problem(self, error: Any) -> str:
        # What is wrong in a body or a query has its place there.
        whole = any(named == error["loc"][0] and place in {"body", "filter"}
                    for place, named in self.places.values())  # fmt: skip
        return problem({**error, "loc": error["loc"][whole:]})


def _holds(annotation: Any, kind: type) -> bool:
    """Whether a type is one of a kind, or may be."""
    if get_origin(annotation) in {Union, UnionType, Annotated}:
        return any(_holds(one, kind) for one in get_args(annotation))
    found = get_origin(annotation) or annotation
    return inspect.isclass(found) and issubclass(found, kind)


def _text(value: Any) -> Any:
    """What would stand in a query: somebody may give a number where an id of digits is meant."""
    return [str(one) for one in value] if isinstance(value, list) else str(value)


class TooLarge(KapelleError, code="too_large", http_status=413):
    """The request is larger than any real one of such a caller."""


async def _body(request: Request, name: str) -> dict[str, Any]:
    """What a body says, by its name; bytes, which are no specification, if it is no JSON."""
    nobody = request.scope["kapelle.caller"].kind == "nobody"
    most, shown = (_MAX_OPEN_BODY, "1 KB") if nobody else (MAX_BODY, "16 MB")
    declared, data = request.headers.get("content-length", ""), bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > most or (declared.isdigit() and int(declared) > most):
                raise TooLarge(f"The request is larger than {shown}.")
    except ClientDisconnect:
        raise InvalidInput("The request has no end.") from None
    if not data:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        return {name: json.loads(data) if _IS_JSON.fullmatch(kind) else bytes(data)}
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"The body is not JSON that can be read: {error}") from None


class Router:
    """The application without its guard: finds the row of a request and answers by it."""

    def __init__(self, rows: Mapping[str, tuple[Row, ...]]) -> None:
        self.rows = rows  # by their tags; those without one are not documented
        self.service: Service
        # By how many parts their paths have, and the noun among them.
        self._by_shape: dict[tuple[int, str], list[tuple[list[str], Row]]] = {}
        for row in self.every():
            parts = row.path.split("/")
            self._by_shape.setdefault(_shape(parts), []).append((parts, row))

    def every(self) -> Iterator[Row]:
        return (row for rows in self.rows.values() for row in rows)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document, made each time: few ask for it."""
        told = {row: tag for tag, rows in self.rows.items() for row in rows if tag}
        inputs: list[Any] = [(None, "serialization", TypeAdapter(ErrorView))]
        for row in told:
            inputs.append((row, "validation", TypeAdapter(row.binding.takes)))
            inputs.append((row, "serialization", row.binding.answer))
        schemas, rest = TypeAdapter.json_schemas(inputs, ref_template=_REF + "{model}")
        shared = rest["$defs"]
        paths: dict[str, Any] = {}
        for row, tag in told.items():
            if row.method != "WEBSOCKET":
                takes = shared.pop(schemas[row, "validation"]["$ref"].removeprefix(_REF))
                operation = _operation(tag, row, takes, shared)
                operation["responses"] = _responses(
                    row, schemas[row, "serialization"], schemas[None, "serialization"]
                )
                paths.setdefault(row.path, {})[row.method.lower()] = operation
        # What a query is made of is told by the parameters.
        words = json.dumps([paths, shared])
        named = {name: one for name, one in sorted(shared.items()) if f'"{_REF}{name}"' in words}
        tokens = {token: {"type": "http", "scheme": "bearer"} for token in _TOKENS}
        components = {"schemas": named, "securitySchemes": tokens}
        about = "A conductor for coding agents."
        info = {"title": "Kapelle", "description": about, "version": __version__}
        document = {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}
        return dict(_filled(document))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request: Request | WebSocket
        if scope["type"] == "websocket":
            request, method = WebSocket(scope, receive, send), "WEBSOCKET"
        else:
            request, method = Request(scope, receive), scope["method"]
        try:
            answer = await self._answer(request, method)
        except Exception as error:
            state = getattr(request, "application_state", WebSocketState.CONNECTING)
            if state is not WebSocketState.CONNECTING:
                raise
            answer = response_to(scope, error)
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer(self, request: HTTPConnection, method: str) -> Response | None:
        parts = request.scope["path"].split("/")
        found: dict[str, tuple[dict[str, str], Row]] = {}
        for names, row in self._by_shape.get(_shape(parts), ()):
            pairs = zip(names, parts, strict=True)
            values = {name[1:-1]: part for name, part in pairs if name[:1] == "{"}
            if all(values.values()) and row.path.format_map(values) == request.scope["path"]:
                found.setdefault(row.method, (values, row))
        if method in found:
            request.scope["path_params"], row = found[method]
            return await row.answer(request, self.service)
        if not found:
            return error_response(404, "not_found", "There is no such address.")
        text = "This address does not know that method."
        response = error_response(405, "method_not_allowed", text)
        response.headers["Allow"] = ", ".join(sorted(found))
        return response


def _shape(parts: list[str]) -> tuple[int, str]:
    return len(parts), parts[3] if len(parts) > 3 else ""


def _operation(tag: str, row: Row, takes: Any, shared: Any) -> dict[str, Any]:
    """How a row is told, but for its answers."""
    name = row.name or row.use_case.__name__
    operation: dict[str, Any] = {
        "tags": [tag],
        "summary": name.replace("_", " ").title(),
        "description": inspect.getdoc(row.use_case),
        "operationId": f"{tag}_{name}",
    }
    if row.who is not anybody:
        tokens = _TOKENS[:1] if row.who is owner_only else _TOKENS
        operation["security"] = [{token: []} for token in tokens]
    for place, named in row.binding.places.values():
        schema, required = takes["properties"][named], named in takes.get("required", ())
        if place == "body":
            body = {"required": required or None, "content": {_JSON: {"schema": schema}}}
            operation["requestBody"] = body
            continue
        several = takes
        if place == "filter":
            several, place = shared[schema["$ref"].removeprefix(_REF)], "query"
        for one in several["properties"] if several is not takes else (named,):
            schema, required = several["properties"][one], one in several.get("required", ())
            about = {"name": one, "in": place, "required": required, "schema": schema}
            about["description"] = schema.get("description")
            operation.setdefault("parameters", []).append(about)
    return operation


def _responses(row: Row, gives: Any, error: Any) -> dict[str, Any]:
    content = {_JSON: {"schema": gives}}
    good = row.told or {"description": "Successful Response", "content": content}
    bad = {"content": {_JSON: {"schema": error}}}
    told = {str(code): {"description": about, **bad} for code, about in _ERRORS.items()}
    return {str(row.status): good, **told}


def _filled(found: Any) -> Any:
    """Without what is null: a default that says nothing."""
    if isinstance(found, list):
        return [_filled(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {name: _filled(one) for name, one in found.items() if one is not None}
