"""What both OpenAI dialects share: errors and rate limit headers."""

from typing import Any

from tests.agents.model.dialects.answer import Failure

_CODES = {
    400: "invalid_request_error",
    401: "invalid_api_key",
    403: "forbidden",
    404: "model_not_found",
    429: "rate_limit_exceeded",
    529: "overloaded",
}


def failure(status: int, message: str, code: str | None = None, kind: str | None = None) -> Failure:
    code = code or _CODES.get(status, "server_error")
    error: dict[str, Any] = {"message": message, "type": kind or code, "code": code, "param": None}
    return Failure(status, {"error": error})


def limit_headers(reset_in_s: float) -> dict[str, str]:
    return {
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": f"{reset_in_s:g}s",
    }


def billing() -> Failure:
    return failure(
        429,
        "You exceeded your current quota, please check your plan and billing details. For more "
        "information on this error, read the docs: "
        "https://platform.openai.com/docs/guides/error-codes/api-errors.",
        "insufficient_quota",
    )
