"""Error responses: one shape for all errors, with a stable code.

The code and the HTTP status of an error stand with its class in domain/errors.py.
"""

import logging
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse
from starlette.types import Scope

from kapelle.domain.errors import FieldProblem, KapelleError

_log = logging.getLogger("kapelle.api")

# Codes of the API itself, in addition to those of domain/errors.py, with their HTTP status.
DOOR_CODES = {
    "bad_request": 400,
    "wrong_origin": 403,
    "method_not_allowed": 405,
    "too_large": 413,
    "wrong_host": 421,
}
_LONGEST_MESSAGE = 2000


class FieldError(BaseModel):
    """A problem with one field, or with several that do not go together."""

    path: list[str | int] = Field(
        description="path of the field in the specification; empty for a rule about all of it"
    )
    message: str = Field(
        description="for kind value: the requirement, to be read after the path; for kind rule: the"
        " rule, to be read after the path and a colon; for kind sentence: a whole sentence"
    )
    kind: Literal["value", "rule", "sentence"]
    names: list[str] = Field(description="the fields that the message names in backticks")


class ErrorBody(BaseModel):
    code: str
    message: str
    hint: str | None = None
    fields: list[FieldError] = Field(
        default_factory=list,
        description="the problems of fields that the message consists of",
    )


class ErrorView(BaseModel):
    error: ErrorBody


def error_response(
    status: int,
    code: str,
    message: str,
    hint: str | None = None,
    fields: Sequence[FieldProblem] = (),
) -> JSONResponse:
    """Return the response for an error with a code."""
    error = ErrorBody(
        code=code,
        message=_shorten(message),
        hint=hint and _shorten(hint),
        fields=[_field_error(problem) for problem in fields],
    )
    headers = None
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    return JSONResponse(ErrorView(error=error).model_dump(), status, headers)


def response_to(scope: Scope, error: Exception) -> JSONResponse:
    """Return the response for an exception of a request.

    An unexpected exception is logged with its traceback; the response has no details of it.
    """
    request = f"{scope.get('method', 'WEBSOCKET')} {scope['path']}"
    if not isinstance(error, KapelleError):
        _log.error("%s failed", request, exc_info=error)
        text = "The daemon failed with an internal error; its log has the details."
        return error_response(500, "internal_error", text)
    if error.http_status >= 500:
        _log.error("%s: %s", request, error.message)
    return error_response(error.http_status, error.code, error.message, error.hint, error.fields)


def _field_error(problem: FieldProblem) -> FieldError:
    path: list[str | int] = []
    for part in problem.path:
        # The keys of a mapping such as `env` come from the request, so they may be of any length.
        path.append(_shorten(part) if isinstance(part, str) else part)
    return FieldError(
        path=path,
        message=_shorten(problem.message),
        kind=problem.kind,
        names=list(problem.names),
    )


def _shorten(text: str) -> str:
    # Messages quote values of the request: a megabyte, perhaps, or half a surrogate pair.
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= _LONGEST_MESSAGE:
        return text
    return text[: _LONGEST_MESSAGE - 1] + "…"
