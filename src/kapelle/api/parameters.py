"""How a request becomes the arguments of a use case, by the signature of the use case.

- A parameter of the type `Caller` is the caller, one of the type `Request` or `WebSocket` the
  request itself.
- A parameter whose type is a pydantic model is the JSON body, or the whole query of a request
  without a body.
- Any other parameter is in the path, in a header or in the query.
"""

import inspect
import json
import re
from collections.abc import Callable, Collection, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from starlette.requests import ClientDisconnect, HTTPConnection, Request

from kapelle.domain.errors import InvalidInput, KapelleError, read_field_problem
from kapelle.domain.text import suggest_name
from kapelle.service.caller import Caller

_HEADERS = {
    "idempotency_key": Annotated[str | None, Field(min_length=1, max_length=200)],
    "last_event_id": Annotated[str | None, Field(max_length=100)],
}
_METHODS_WITHOUT_BODY = frozenset({"GET", "DELETE", "WEBSOCKET"})
_JSON_TYPE = re.compile(r"application/(.+\+)?json")
_MAX_PROBLEMS = 10
# Enough for a prompt and a system prompt of 1 MB each, with every character escaped in JSON.
MAX_BODY = 16_000_000
# Without a token a request may only log in, so its body is a login code.
_MAX_OPEN_BODY = 1_000


class TooLarge(KapelleError, code="too_large", http_status=413):
    """The request is larger than its caller may send."""


class ParameterSource(NamedTuple):
    """Where in a request a parameter is, and its name there."""

    kind: Literal["path", "header", "query"]
    name: str


class Binding:
    """The parameters of one use case and where in a request they are."""

    def __init__(
        self,
        use_case: Callable[..., Any],
        *,
        method: str,
        path: str,
        constants: Collection[str] = (),
        path_names: Mapping[str, str] | None = None,
        has_json_answer: bool = True,
    ) -> None:
        signature = inspect.signature(use_case)
        self.has_body = method not in _METHODS_WITHOUT_BODY
        self.caller_parameter = ""
        self.request_parameter = ""
        # The parameter that is the whole body or query.
        self.model_parameter = ""
        self.sources: dict[str, ParameterSource] = {}
        self._path = path
        self._path_names = path_names or {}
        fields: dict[str, Any] = {}
        for name, parameter in signature.parameters.items():
            if name not in constants:
                self._add_parameter(name, parameter, fields)
        # The values of a request by their names in it.
        self.values = create_model(
            f"{method} {path}",
            __config__=ConfigDict(alias_generator=self._name_in_request),
            **fields,
        )
        self.answer: TypeAdapter[Any] = TypeAdapter(
            signature.return_annotation if has_json_answer else Any
        )
        self._query_names = [
            source.name for source in self.sources.values() if source.kind == "query"
        ]
        self._list_names = _list_fields(self.values)
        if self.model_parameter and not self.has_body:
            model = fields[self.model_parameter][0]
            self._query_names += model.model_fields
            self._list_names |= _list_fields(model)

    def _add_parameter(
        self, name: str, parameter: inspect.Parameter, fields: dict[str, Any]
    ) -> None:
        """Store what a parameter is; add it to the fields of the values if a request has it."""
        if parameter.annotation is Caller:
            self.caller_parameter = name
            return
        if _may_be(parameter.annotation, HTTPConnection):
            self.request_parameter = name
            return
        annotation = _HEADERS.get(name, parameter.annotation)
        default = parameter.default
        if default is parameter.empty:
            default = ...  # the mark of pydantic for a required field
        fields[name] = (annotation, default)
        if _may_be(annotation, BaseModel):
            self.model_parameter = name
        else:
            self.sources[name] = self._find_source(name)

    def _find_source(self, parameter: str) -> ParameterSource:
        if parameter in _HEADERS:
            return ParameterSource("header", parameter.replace("_", "-"))
        name = self._path_names.get(parameter, parameter)
        if f"{{{name}}}" in self._path:
            return ParameterSource("path", name)
        return ParameterSource("query", name)

    def _name_in_request(self, parameter: str) -> str:
        source = self.sources.get(parameter)
        if source is None:
            return parameter
        return source.name

    async def read(self, request: HTTPConnection) -> dict[str, Any]:
        """Return the values of a request, not validated yet."""
        query = self._read_query(request)
        values: dict[str, Any] = {}
        for kind, name in self.sources.values():
            if kind == "path" and name in request.path_params:
                values[name] = request.path_params[name]
            elif kind == "header" and name in request.headers:
                values[name] = request.headers[name]
            elif kind == "query" and name in query:
                values[name] = query[name]
        if self.model_parameter and not self.has_body:
            values[self.model_parameter] = query
        elif self.model_parameter and isinstance(request, Request):
            data = await _read_body(request)
            if data:
                values[self.model_parameter] = _parse_body(request, data)
        return values

    def _read_query(self, request: HTTPConnection) -> dict[str, Any]:
        """Return the parameters of the query; raises InvalidInput for an unknown one.

        Empty ones are left out: `?status=&tag=` filters nothing.
        """
        query: dict[str, Any] = {}
        for name, value in parse_qsl(request.scope["query_string"].decode("latin-1")):
            if name not in self._query_names:
                names = ", ".join(self._query_names) or "none"
                hint = suggest_name(name, self._query_names) or f"Known are: {names}."
                raise InvalidInput(f"The query has an unknown parameter {name!r}.", hint=hint)
            if name in self._list_names:
                query.setdefault(name, []).append(value)
            else:
                query[name] = value
        return query

    def arrange(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a request for the flat arguments of a tool, not validated yet."""
        rest = {name: value for name, value in arguments.items() if value is not None}
        values: dict[str, Any] = {}
        for kind, name in self.sources.values():
            argument = name.replace("-", "_")
            if argument in rest:
                values[name] = _as_text(rest.pop(argument))
            if kind == "path" and not values.get(name):
                raise InvalidInput(f"The argument `{name}` is missing.")
        if self.model_parameter and self.has_body:
            values[self.model_parameter] = rest
        elif self.model_parameter:
            values[self.model_parameter] = {name: _as_text(value) for name, value in rest.items()}
        return values

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the use case; raises InvalidInput with all problems."""
        try:
            model = self.values.model_validate(values)
        except ValidationError as error:
            all_details: list[Any] = error.errors(include_url=False)[:_MAX_PROBLEMS]
            for details in all_details:
                # The path of a field in the body begins in the body.
                if details["loc"][0] == self.model_parameter:
                    details["loc"] = details["loc"][1:]
            problems = [read_field_problem(details) for details in all_details]
            sentences = [problem.sentence for problem in problems]
            raise InvalidInput("; ".join(sentences), fields=problems) from None
        return {name: getattr(model, name) for name in self.values.model_fields}


def _may_be(annotation: Any, kind: type) -> bool:
    """Return whether values of a type may be instances of a class."""
    if get_origin(annotation) in {Union, UnionType, Annotated}:
        return any(_may_be(part, kind) for part in get_args(annotation))
    plain = get_origin(annotation) or annotation
    return inspect.isclass(plain) and issubclass(plain, kind)


def _list_fields(model: type[BaseModel]) -> set[str]:
    return {name for name, field in model.model_fields.items() if _may_be(field.annotation, list)}


def _as_text(value: Any) -> Any:
    """Return an argument as the text that a query has; some clients send an id as a number."""
    if isinstance(value, list):
        return [str(item) for item in value]
    return str(value)


async def _read_body(request: Request) -> bytes:
    """Return the body; raises TooLarge as soon as it is longer than allowed."""
    limit = MAX_BODY
    size = "16 MB"
    if request.scope["kapelle.principal"].kind == "nobody":
        limit = _MAX_OPEN_BODY
        size = "1 KB"
    content_length = request.headers.get("content-length", "")
    is_announced_too_large = content_length.isdigit() and int(content_length) > limit
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if is_announced_too_large or len(data) > limit:
                raise TooLarge(f"The request is larger than {size}.")
    except ClientDisconnect:
        raise InvalidInput("The connection was closed before the request was complete.") from None
    return bytes(data)


def _parse_body(request: Request, data: bytes) -> Any:
    """Return the content of a JSON body; of any other type the bytes, which no model accepts."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not _JSON_TYPE.fullmatch(media_type):
        return data
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"The body is not valid JSON: {error}") from None
