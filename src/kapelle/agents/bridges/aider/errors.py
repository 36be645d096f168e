"""What aider's words about a provider's error say of its kind."""

import re
from typing import Any

ERROR = re.compile(r"litellm\.(?:exceptions\.)?(\w+): ")
_STATUSES = {
    "AuthenticationError": 401,
    "PermissionDeniedError": 403,
    "NotFoundError": 404,
    "Timeout": 408,
    "RateLimitError": 429,
    "InternalServerError": 500,
    "BadGatewayError": 502,
    "ServiceUnavailableError": 503,
}
_CLASSES = {
    "APIConnectionError": "environment",
    "ContextWindowExceededError": "context_overflow",
}
_SENTENCES = {
    "LLM Provider NOT provided": "capability",
    "Insufficient credits with the API provider": "billing",
}
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def described(text: str) -> tuple[str, dict[str, Any]]:
    """The failure class as far as it is certain, and the fields of an error event."""
    found = ERROR.match(text)
    if not found:
        return "", {}
    name = _CLASSES.get(found[1], "")
    for sentence, special in _SENTENCES.items():
        name = special if sentence in text else name
    # RateLimitError becomes rate_limit_error, as providers write it.
    data: dict[str, Any] = {"type": _HUMP.sub("_", found[1]).lower()}
    if found[1] in _STATUSES:
        data["status"] = _STATUSES[found[1]]
    return name, data
