"""The OpenAPI document, made from the table of operations."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from kapelle import __version__
from kapelle.api.errors import ErrorView
from kapelle.api.operation import JSON, WEBSOCKET, Operation
from kapelle.api.security import anybody, owner_only
from kapelle.service import Service

_REF = "#/components/schemas/"
_HEAD = {
    "openapi": "3.1.0",
    "info": {"title": "Kapelle", "description": "Conducts coding agents.", "version": __version__},
}
_TOKENS = ("token", "attempt")
_ERRORS = {
    400: "The request cannot be read.",
    401: "The token is missing or wrong.",
    403: "The Origin is foreign, or the token does not allow this.",
    404: "Not found.",
    409: "The current state does not allow this.",
    413: "The request is too large.",
    421: "The Host is not that of the daemon.",
    422: "The input is invalid.",
    503: "The daemon is unavailable.",
}


def make_document(operations: Mapping[str, Sequence[Operation]], services: Service) -> Any:
    """Return the document of the operations, which are given by their tags.

    It is made for each request, because few ask for it. WebSockets are not part of OpenAPI.
    """
    document_operations = list(_list_documented(operations))
    inputs: list[Any] = [("error", "serialization", TypeAdapter(ErrorView))]
    for _, operation in document_operations:
        binding = operation.bind(services)
        inputs.append((operation, "validation", TypeAdapter(binding.values)))
        inputs.append((operation, "serialization", binding.answer))
    schemas, definitions = TypeAdapter.json_schemas(inputs, ref_template=_REF + "{model}")
    models = definitions["$defs"]
    error = {"content": {JSON: {"schema": schemas["error", "serialization"]}}}
    errors = {str(status): {"description": text, **error} for status, text in _ERRORS.items()}
    paths: dict[str, Any] = {}
    for tag, operation in document_operations:
        reference = schemas[operation, "validation"]["$ref"]
        values = models.pop(reference.removeprefix(_REF))
        answer = {
            "description": "Successful Response",
            "content": {JSON: {"schema": schemas[operation, "serialization"]}},
        }
        description = _describe(tag, operation, services, values, models)
        description["responses"] = {str(operation.status): operation.response or answer, **errors}
        paths.setdefault(operation.path, {})[operation.method.lower()] = description
    tokens = {token: {"type": "http", "scheme": "bearer"} for token in _TOKENS}
    components = {"schemas": _select_used(models, paths), "securitySchemes": tokens}
    return without_empty({**_HEAD, "paths": paths, "components": components}, None)


def _list_documented(
    operations: Mapping[str, Sequence[Operation]],
) -> Iterator[tuple[str, Operation]]:
    """Yield the operations that the document describes, with their tags."""
    for tag, operations_of_tag in operations.items():
        for operation in operations_of_tag:
            if operation.method != WEBSOCKET:
                yield tag, operation


def _select_used(models: dict[str, Any], paths: dict[str, Any]) -> dict[str, Any]:
    """Return the models that are referenced anywhere, sorted by name.

    The model of a whole query is not: its fields are parameters.
    """
    text = json.dumps([paths, models])
    return {name: models[name] for name in sorted(models) if f'"{_REF}{name}"' in text}


def _describe(
    tag: str, operation: Operation, services: Service, values: Any, models: Any
) -> dict[str, Any]:
    """Return the description of an operation without its responses.

    `values` is the schema of the values of its requests; the body is removed from it.
    """
    use_case = operation.use_case(services)
    name = operation.name or use_case.__name__
    binding = operation.bind(services)
    description: dict[str, Any] = {
        "tags": [tag],
        "summary": name.replace("_", " ").title(),
        "description": inspect.getdoc(use_case),
        "operationId": f"{tag}_{name}",
    }
    if operation.access is owner_only:
        description["security"] = [{"token": []}]
    elif operation.access is not anybody:
        description["security"] = [{token: []} for token in _TOKENS]
    query_model = None
    if binding.model_parameter:
        schema = values["properties"].pop(binding.model_parameter)
        if binding.has_body:
            description["requestBody"] = {"content": {JSON: {"schema": schema}}}
            if binding.model_parameter in values.get("required", ()):
                description["requestBody"]["required"] = True
        else:
            query_model = models[schema["$ref"].removeprefix(_REF)]
    sources = {source.name: source.kind for source in binding.sources.values()}
    parameters = _describe_parameters(values, sources)
    if query_model is not None:
        parameters += _describe_parameters(query_model, sources)
    description["parameters"] = parameters or None
    return description


def _describe_parameters(model: Any, sources: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the fields of a model as parameters; those without a source are in the query."""
    required_names = model.get("required", ())
    parameters = []
    for name, schema in model.get("properties", {}).items():
        parameter = {
            "name": name,
            "in": sources.get(name, "query"),
            "required": name in required_names,
            "schema": schema,
            "description": schema.get("description"),
        }
        parameters.append(parameter)
    return parameters


def without_empty(value: Any, *empty: Any) -> Any:
    """Return JSON without the fields, at any depth, that have one of the empty values."""
    if isinstance(value, list):
        return [without_empty(item, *empty) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: without_empty(item, *empty) for name, item in value.items() if item not in empty}
