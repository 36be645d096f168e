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
from kapelle.domain.errors import InvalidInput, KapelleError, field_problem
from kapelle.domain.text import did_you_mean
from kapelle.service import Service
from kapelle.service.output import Bytes

_HEADERS = {
    "idempotency_key": Annotated[str | None, Field(min_length=1, max_length=200)],
    "last_event_id": Annotated[str | None, Field(max_length=100)],
}
# What a use case may take that no request holds.
_OURS = frozenset({"self", "service", "request", "parent", "attempt_id"})
_JSON = "application/json"
_IS_JSON = re.compile(r"application/(.+\+)?json")
_MOST_PROBLEMS = 10
_REF = "#/components/schemas/"
_INFO = {"title": "Kapelle", "description": "Conducts coding agents.", "version": __version__}
_ABOUT = {"openapi": "3.1.0", "info": _INFO}
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
class Route:
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
    tool: str = ""  # its name as a tool, if it is one
    # Adds what the request of an attempt may leave out, before that is validated.
    inherit: Callable[[Any, dict[str, Any], str], Awaitable[dict[str, Any]]] | None = None

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
        if found is None:
            found = await self.binding.read(request)
        if self.inherit is not None and ours["parent"] is not None:
            found = await self.inherit(ours["self"], found, ours["parent"])
        given = self.binding.valid(found)
        given |= {name: ours[name] for name in self.binding.ours}
        answer = self.use_case(**given, **self.fixed)
        if inspect.isawaitable(answer):
            return await answer
        return answer

    async def answer(self, request: HTTPConnection, service: Service) -> Response | None:
        """That as a response; None where it has spoken for itself."""
        answer = await self.perform(request, service)
        if self.method == "WEBSOCKET":
            return None
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, Bytes):
            return Response(answer.data, self.status, answer.headers, answer.media_type)
        if self.told is not None:
            return Response(answer, self.status, media_type=next(iter(self.told["content"])))
        return Response(self.binding.answer.dump_json(answer), self.status, media_type=_JSON)


class Binding:
    """What a use case takes of a request, as one model."""

    def __init__(self, row: Route) -> None:
        signature = inspect.signature(row.use_case)
        taken = {name: one for name, one in signature.parameters.items() if name not in row.fixed}
        self.ours = taken.keys() & _OURS
        if row.told is None:
            gives = signature.return_annotation
        else:
            gives = Any
        self.answer: TypeAdapter[Any] = TypeAdapter(gives)
        # Where each stands, and its name there; and the one that is the whole body, or query.
        self.places: dict[str, tuple[str, str]] = {}
        self.whole = ""
        self.has_body = row.method not in {"GET", "DELETE", "WEBSOCKET"}
        fields: dict[str, Any] = {}
        in_path = re.findall(r"{(\w+)}", row.path)
        for name, one in taken.items():
            if name in self.ours:
                continue
            annotation = _HEADERS.get(name, one.annotation)
            fields[name] = (annotation, ... if one.default is one.empty else one.default)
            named = in_path[0] if name == "text" else name
            if _holds(annotation, BaseModel):
                self.whole = name
            elif name in _HEADERS:
                self.places[name] = ("header", name.replace("_", "-"))
            else:
                self.places[name] = ("path" if named in in_path else "query", named)
        config = ConfigDict(alias_generator=lambda name: self.places.get(name, ("", name))[1])
        self.takes = create_model(f"{row.method} {row.path}", __config__=config, **fields)
        models = [self.takes, *(one for one, _ in fields.values() if hasattr(one, "model_fields"))]
        every = [pair for model in models for pair in model.model_fields.items()]
        self._of_whole = [
            name
            for one, _ in fields.values()
            if hasattr(one, "model_fields")
            for name in one.model_fields
        ]
        self._lists = {name for name, one in every if _holds(one.annotation, list)}

    async def read(self, request: HTTPConnection) -> dict[str, Any]:
        """What a request says."""
        query: dict[str, Any] = {}
        # Without those that are empty: `?status=&tag=` asks for everything.
        for name, value in parse_qsl(request.scope["query_string"].decode("latin-1")):
            query[name] = [*query.get(name, ()), value] if name in self._lists else value
        self._require_known(query)
        sources = {"path": request.path_params, "query": query, "header": request.headers}
        places = self.places.values()
        found = {named: sources[at][named] for at, named in places if named in sources[at]}
        if self.whole and not self.has_body:
            found[self.whole] = query
        elif self.whole and isinstance(request, Request):
            found |= await _body(request, self.whole)
        return found

    def _require_known(self, query: dict[str, Any]) -> None:
        """Raise InvalidInput for a name in the query that would be ignored."""
        known = [named for place, named in self.places.values() if place == "query"]
        if self.whole and not self.has_body:
            known += self._of_whole
        for name in query:
            if name not in known:
                hint = did_you_mean(name, known) or f"Known are: {', '.join(known) or 'none'}."
                raise InvalidInput(f"{name!r} is not known in this query.", hint=hint)

    def arranged(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The same of arguments that were given without saying where each stands."""
        rest = {name: value for name, value in arguments.items() if value is not None}
        keys = {named: named.replace("-", "_") for _, named in self.places.values()}
        found = {named: _text(rest.pop(key)) for named, key in keys.items() if key in rest}
        for place, named in self.places.values():
            if place == "path" and not found.get(named):
                raise InvalidInput(f"`{named}` is missing: the id of what is meant.")
        if self.whole:
            texts = {name: _text(value) for name, value in rest.items()}
            found[self.whole] = rest if self.has_body else texts
        return found

    def valid(self, found: dict[str, Any]) -> dict[str, Any]:
        """The arguments that were found; InvalidInput says all that is wrong with them."""
        try:
            valid = self.takes.model_validate(found)
        except ValidationError as error:
            findings: list[Any] = error.errors(include_url=False)[:_MOST_PROBLEMS]
            for one in findings:
                # What is wrong in a body or a query has its place there.
                if one["loc"][0] == self.whole:
                    one["loc"] = one["loc"][1:]
            problems = [field_problem(one) for one in findings]
            sentences = [one.sentence for one in problems]
            raise InvalidInput("; ".join(sentences), fields=problems) from None
        return {name: getattr(valid, name) for name in self.takes.model_fields}


def _holds(annotation: Any, kind: type) -> bool:
    """Whether a type is one of a kind, or may be."""
    if get_origin(annotation) in {Union, UnionType, Annotated}:
        return any(_holds(one, kind) for one in get_args(annotation))
    found = get_origin(annotation) or annotation
    return inspect.isclass(found) and issubclass(found, kind)


def _text(value: Any) -> Any:
    """What would stand in a query: somebody may give a number where an id of digits is meant."""
    if isinstance(value, list):
        return [str(one) for one in value]
    return str(value)


class TooLarge(KapelleError, code="too_large", http_status=413):
    """The request is larger than any real one of such a caller."""


async def _body(request: Request, name: str) -> dict[str, Any]:
    """What a body says, by its name; bytes, which are no specification, if it is no JSON."""
    nobody = request.scope["kapelle.caller"].kind == "nobody"
    most, shown = (_MAX_OPEN_BODY, "1 KB") if nobody else (MAX_BODY, "16 MB")
    declared = request.headers.get("content-length", "")
    data = bytearray()
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

    def __init__(self, rows: Mapping[str, tuple[Route, ...]]) -> None:
        self.rows = rows  # by their tags; those without one are not documented
        self.service: Service
        self._rows = [(row.path.split("/"), row) for row in self.every()]

    def every(self) -> Iterator[Route]:
        return (row for rows in self.rows.values() for row in rows)

    def openapi(self) -> Any:
        """The OpenAPI document, made each time: few ask for it."""
        told = {row: tag for tag, rows in self.rows.items() for row in rows if tag}
        inputs: list[Any] = [(None, "serialization", TypeAdapter(ErrorView))]
        for row in told:
            inputs.append((row, "validation", TypeAdapter(row.binding.takes)))
            inputs.append((row, "serialization", row.binding.answer))
        schemas, rest = TypeAdapter.json_schemas(inputs, ref_template=_REF + "{model}")
        shared = rest["$defs"]
        error = {"content": {_JSON: {"schema": schemas[None, "serialization"]}}}
        bad = {str(code): {"description": about, **error} for code, about in _ERRORS.items()}
        paths: dict[str, Any] = {}
        for row, tag in told.items():
            if row.method != "WEBSOCKET":
                takes = shared.pop(schemas[row, "validation"]["$ref"].removeprefix(_REF))
                operation = _operation(tag, row, takes, shared)
                content = {_JSON: {"schema": schemas[row, "serialization"]}}
                good = row.told or {"description": "Successful Response", "content": content}
                operation["responses"] = {str(row.status): good, **bad}
                paths.setdefault(row.path, {})[row.method.lower()] = operation
        # What a query is made of is told by the parameters.
        words = json.dumps([paths, shared])
        named = {name: one for name, one in sorted(shared.items()) if f'"{_REF}{name}"' in words}
        tokens = {token: {"type": "http", "scheme": "bearer"} for token in _TOKENS}
        components = {"schemas": named, "securitySchemes": tokens}
        return filled({**_ABOUT, "paths": paths, "components": components}, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = scope["type"] == "websocket"
        request = WebSocket(scope, receive, send) if socket else Request(scope, receive)
        try:
            answer = await self._answer(request, "WEBSOCKET" if socket else scope["method"])
        except Exception as error:
            state = getattr(request, "application_state", WebSocketState.CONNECTING)
            if state is not WebSocketState.CONNECTING:
                raise
            answer = response_to(scope, error)
        if answer is not None:
            await answer(scope, receive, send)

    async def _answer(self, request: HTTPConnection, method: str) -> Response | None:
        path = request.scope["path"]
        found = dict[str, tuple[dict[str, str], Route]]()
        parts = path.split("/")
        for names, row in self._rows:
            # The third is the noun.
            if len(names) == len(parts) and names[3:4] == parts[3:4]:
                pairs = zip(names, parts, strict=True)
                values = {name[1:-1]: part for name, part in pairs if name[:1] == "{"}
                if all(values.values()) and row.path.format_map(values) == path:
                    found.setdefault(row.method, (values, row))
        if method in found:
            request.scope["path_params"], row = found[method]
            return await row.answer(request, self.service)
        found.pop("WEBSOCKET", None)
        if not found:
            return error_response(404, "not_found", "There is no such address.")
        response = error_response(405, "method_not_allowed", "This address knows other methods.")
        response.headers["Allow"] = ", ".join(sorted(found))
        return response


def _operation(tag: str, row: Route, takes: Any, shared: Any) -> dict[str, Any]:
    """How a row is told, but for its answers."""
    name = row.name or row.use_case.__name__
    made = row.binding
    operation: dict[str, Any] = {
        "tags": [tag],
        "summary": name.replace("_", " ").title(),
        "description": inspect.getdoc(row.use_case),
        "operationId": f"{tag}_{name}",
    }
    if row.who is not anybody:
        tokens = _TOKENS[:1] if row.who is owner_only else _TOKENS
        operation["security"] = [{token: []} for token in tokens]
    places = {named: place for place, named in made.places.values()}
    told = [takes]
    if made.whole:
        schema = takes["properties"].pop(made.whole)
        if made.has_body:
            operation["requestBody"] = {"content": {_JSON: {"schema": schema}}}
            if made.whole in takes.get("required", ()):
                operation["requestBody"]["required"] = True
        else:
            told.append(shared[schema["$ref"].removeprefix(_REF)])
    operation["parameters"] = [
        {
            "name": name,
            "in": places.get(name, "query"),
            "required": name in model.get("required", ()),
            "schema": schema,
            "description": schema.get("description"),
        }
        for model in told
        for name, schema in model.get("properties", {}).items()
    ] or None
    return operation


def filled(found: Any, *empty: Any) -> Any:
    """Without the fields, at any depth, that say nothing."""
    if isinstance(found, list):
        return [filled(one, *empty) for one in found]
    if not isinstance(found, dict):
        return found
    return {name: filled(one, *empty) for name, one in found.items() if one not in empty}
