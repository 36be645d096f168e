"""Errors as the API shows them: one shape, with a stable code. The status of each stands with its
class in domain/errors.py."""

import logging

from pydantic import BaseModel
from starlette.responses import JSONResponse
from starlette.types import Scope

from kapelle.domain.errors import KapelleError

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


class ErrorBody(BaseModel):
    code: str
    message: str
    hint: str | None = None


class ErrorView(BaseModel):
    error: ErrorBody


def error_response(status: int, code: str, message: str, hint: str | None = None) -> JSONResponse:
    error = ErrorBody(code=code, message=_shown(message), hint=hint and _shown(hint))
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
    return error_response(error.http_status, error.code, error.message, error.hint)


def _shown(text: str) -> str:
    # Messages quote what was given, which may be a megabyte, or half a surrogate pair.
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= _LONGEST_MESSAGE:
        return text
    return text[: _LONGEST_MESSAGE - 1] + "…"
