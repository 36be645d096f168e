"""The OpenAPI document, made from the table of operations."""

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from kapelle import __version__
from kapelle.api.errors import ErrorView
from kapelle.api.operations import JSON, WEBSOCKET, Operation
from kapelle.api.security import anybody, owner_only
from kapelle.service import Service

_REF = "#/components/schemas/"
_HEAD = {
    "openapi": "3.1.0",
    "info": {"title": "Kapelle", "description": "Conducts coding agents.", "version": __version__},
}
_TOKENS = ("token", "attempt")
_ERRORS = {
    400: "a request that cannot be read",
    401: "no token, or a wrong one",
    403: "a foreign Origin, or a token that does not allow this",
    404: "no such thing",
    409: "the present state does not allow this",
    413: "the request is too large",
    421: "a Host that is not the daemon's",
    422: "invalid input",
    503: "the daemon is unavailable",
}


def make_document(operations: Mapping[str, Sequence[Operation]], services: Service) -> Any:
    """Return the document of the operations, which are given by their tags.

    It is made for each request, because few ask for it. WebSockets are not part of OpenAPI.
    """
    described = [
        (tag, operation)
        for tag, tagged in operations.items()
        for operation in tagged
        if operation.method != WEBSOCKET
    ]
    inputs: list[Any] = [("error", "serialization", TypeAdapter(ErrorView))]
    for _, operation in described:
        binding = operation.bind(services)
        inputs.append((operation, "validation", TypeAdapter(binding.values)))
        inputs.append((operation, "serialization", binding.answer))
    schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template=_REF + "{model}")
    shared = definitions["$defs"]
    error = {"content": {JSON: {"schema": schemas["error", "serialization"]}}}
    errors = {str(status): {"description": text, **error} for status, text in _ERRORS.items()}
    paths: dict[str, Any] = {}
    for tag, operation in described:
        reference = schemas[operation, "validation"]["$ref"]
        values = shared.pop(reference.removeprefix(_REF))
        answer = {
            "description": "Successful Response",
            "content": {JSON: {"schema": schemas[operation, "serialization"]}},
        }
        described_operation = _describe(tag, operation, services, values, shared)
        described_operation["responses"] = {
            str(operation.status): operation.response or answer,
            **errors,
        }
        paths.setdefault(operation.path, {})[operation.method.lower()] = described_operation
    # The models of whole queries are left out: their fields are parameters.
    text = json.dumps([paths, shared])
    referenced = {name: one for name, one in sorted(shared.items()) if f'"{_REF}{name}"' in text}
    tokens = {token: {"type": "http", "scheme": "bearer"} for token in _TOKENS}
    components = {"schemas": referenced, "securitySchemes": tokens}
    return without_empty({**_HEAD, "paths": paths, "components": components}, None)


def _describe(
    tag: str, operation: Operation, services: Service, values: Any, shared: Any
) -> dict[str, Any]:
    """Return the description of one operation, but for its responses.

    `values` is the schema of what it takes, from which the body is taken out.
    """
    use_case = operation.use_case(services)
    name = operation.name or use_case.__name__
    binding = operation.bind(services)
    described: dict[str, Any] = {
        "tags": [tag],
        "summary": name.replace("_", " ").title(),
        "description": inspect.getdoc(use_case),
        "operationId": f"{tag}_{name}",
    }
    if operation.access is owner_only:
        described["security"] = [{"token": []}]
    elif operation.access is not anybody:
        described["security"] = [{token: []} for token in _TOKENS]
    models = [values]
    if binding.model_parameter:
        schema = values["properties"].pop(binding.model_parameter)
        if binding.has_body:
            described["requestBody"] = {"content": {JSON: {"schema": schema}}}
            if binding.model_parameter in values.get("required", ()):
                described["requestBody"]["required"] = True
        else:
            models.append(shared[schema["$ref"].removeprefix(_REF)])
    kinds = {source.name: source.kind for source in binding.sources.values()}
    parameters = [
        {
            "name": name,
            "in": kinds.get(name, "query"),
            "required": name in model.get("required", ()),
            "schema": schema,
            "description": schema.get("description"),
        }
        for model in models
        for name, schema in model.get("properties", {}).items()
    ]
    described["parameters"] = parameters or None
    return described


def without_empty(value: Any, *empty: Any) -> Any:
    """Return JSON without the fields, at any depth, that have one of the empty values."""
    if isinstance(value, list):
        return [without_empty(one, *empty) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: without_empty(one, *empty) for name, one in value.items() if one not in empty}
