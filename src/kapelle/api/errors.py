"""Errors as the API shows them: one shape, with a stable code."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from kapelle.domain.errors import KapelleError

_log = logging.getLogger("kapelle.api")
_CODES = {404: "not_found", 405: "method_not_allowed"}


class ErrorBody(BaseModel):
    code: str
    message: str
    hint: str | None = None


class ErrorView(BaseModel):
    error: ErrorBody


def error_response(status: int, code: str, message: str, hint: str | None = None) -> JSONResponse:
    body = ErrorView(error=ErrorBody(code=code, message=message, hint=hint))
    return JSONResponse(body.model_dump(), status)


def install(app: FastAPI) -> None:
    @app.exception_handler(KapelleError)
    async def _known(request: Request, error: KapelleError) -> JSONResponse:
        if error.http_status >= 500:
            _log.error("%s %s: %s", request.method, request.url.path, error.message)
        return error_response(error.http_status, error.code, error.message, error.hint)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(422, "invalid_input", "; ".join(map(_sentence, error.errors())))

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, "http_error")
        response = error_response(error.status_code, code, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def _unknown(request: Request, error: Exception) -> JSONResponse:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return error_response(
            500, "internal_error", "Something went wrong inside the daemon; its log says more."
        )


def _sentence(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"] if part not in {"body", "query", "path"})
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{place}: {text}" if place else text
