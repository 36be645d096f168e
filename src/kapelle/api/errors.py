"""Errors as the API shows them: one shape, with a stable code. The status of each stands with its
class in domain/errors.py."""

import logging
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse
from starlette.types import Scope

from kapelle.domain.errors import FieldProblem, KapelleError

_log = logging.getLogger("kapelle.api")

# What the door itself answers, besides the codes of domain/errors.py.
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
        description="where it is in the specification; empty for a rule about the whole of it"
    )
    message: str = Field(
        description="of a value, what it must be, to be read behind its path; of a rule, what it "
        "says, behind the path and a colon; or a sentence that needs no path"
    )
    kind: Literal["value", "rule", "sentence"]
    names: list[str] = Field(description="the fields that the message has in backticks")


class ErrorBody(BaseModel):
    code: str
    message: str
    hint: str | None = None
    fields: list[FieldError] = Field(
        default_factory=list,
        description="the problems that the message is made of, if fields have them",
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
    error = ErrorBody(
        code=code,
        message=_shown(message),
        hint=hint and _shown(hint),
        fields=[_field_error(one) for one in fields],
    )
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    else:
        headers = None
    return JSONResponse(ErrorView(error=error).model_dump(), status, headers)


def response_to(scope: Scope, error: Exception) -> JSONResponse:
    """What an error says to whoever asked; one that nobody foresaw says more in the log."""
    asked = f"{scope.get('method', 'WEBSOCKET')} {scope['path']}"
    if not isinstance(error, KapelleError):
        _log.error("%s failed", asked, exc_info=error)
        text = "Something went wrong inside the daemon; its log says more."
        return error_response(500, "internal_error", text)
    if error.http_status >= 500:
        _log.error("%s: %s", asked, error.message)
    return error_response(error.http_status, error.code, error.message, error.hint, error.fields)


def _field_error(problem: FieldProblem) -> FieldError:
    # The names of pairs, such as those of `env`, are what somebody typed.
    path = [_shown(part) if isinstance(part, str) else part for part in problem.path]
    return FieldError(
        path=path,
        message=_shown(problem.message),
        kind=problem.kind,
        names=list(problem.names),
    )


def _shown(text: str) -> str:
    # Messages quote what was given, which may be a megabyte, or half a surrogate pair.
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= _LONGEST_MESSAGE:
        return text
    return text[: _LONGEST_MESSAGE - 1] + "…"
