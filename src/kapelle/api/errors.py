"""Errors as the API shows them: one shape, with a stable code. The status of each stands with its
class in domain/errors.py."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from kapelle.domain.errors import KapelleError, problem

_log = logging.getLogger("kapelle.api")

# What the door itself answers, besides the codes of domain/errors.py.
DOOR_CODES = {
    "bad_request": 400,
    "wrong_origin": 403,
    "method_not_allowed": 405,
    "too_large": 413,
    "wrong_host": 421,
}
_BY_STATUS = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}
_SENTENCES = {404: "There is no such address.", 405: "This address does not know that method."}
_LONGEST_MESSAGE = 2000
_MOST_PROBLEMS = 10
_SOURCES = ("body", "query", "path")


class ErrorBody(BaseModel):
    code: str
    message: str
    hint: str | None = None


class ErrorView(BaseModel):
    error: ErrorBody


def error_response(status: int, code: str, message: str, hint: str | None = None) -> JSONResponse:
    error = ErrorBody(code=code, message=_shown(message), hint=hint and _shown(hint))
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(ErrorView(error=error).model_dump(), status, headers)


def install(app: FastAPI) -> None:
    @app.exception_handler(KapelleError)
    async def _known(request: Request, error: KapelleError) -> JSONResponse:
        if error.http_status >= 500:
            _log.error("%s %s: %s", request.method, request.url.path, error.message)
        return error_response(error.http_status, error.code, error.message, error.hint)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        problems = list(error.errors())[:_MOST_PROBLEMS]
        return error_response(422, "invalid_input", "; ".join(map(_sentence, problems)))

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> JSONResponse:
        code = _BY_STATUS.get(error.status_code, "bad_request")
        text = _SENTENCES.get(error.status_code, str(error.detail))
        response = error_response(error.status_code, code, text)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def _unknown(request: Request, error: Exception) -> JSONResponse:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(
            500, "internal_error", "Something went wrong inside the daemon; its log says more."
        )


def _sentence(error: Any) -> str:
    if error["type"] == "json_invalid":
        return f"The body is not JSON: {error['ctx']['error']} at character {error['loc'][-1]}"
    # Only where it begins: a field may have the name of a source.
    source, *place = error["loc"] or ("",)
    return problem({**error, "loc": place if source in _SOURCES else error["loc"]})


def _shown(text: str) -> str:
    # Messages quote what was given, which may be a megabyte, or half a surrogate pair.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"
