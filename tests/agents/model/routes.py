"""Which dialect, lane and model an address and its body ask for."""

import re
from dataclasses import dataclass
from typing import Any

_GEMINI = re.compile(r"/models/([^/:]+):(\w+)$")
_LANE = re.compile(r"/s/([\w.-]+)")
_MARK = re.compile(r"\[\[lane:([\w.-]+)\]\]")
_ENDINGS = {
    "/messages": "anthropic",
    "/responses": "responses",
    "/chat/completions": "chat",
}


@dataclass(frozen=True, slots=True)
class Route:
    dialect: str
    model: str
    stream: bool


def route(path: str, body: dict[str, Any]) -> Route | None:
    """Where a request belongs, or None when no provider has such an endpoint."""
    if (match := _GEMINI.search(path)) and match[2].endswith("enerateContent"):
        return Route("gemini", match[1], match[2] == "streamGenerateContent")
    for ending, dialect in _ENDINGS.items():
        if path.endswith(ending):
            return Route(dialect, str(body.get("model", "scripted")), bool(body.get("stream")))
    return None


def lane_of(path: str, text: str) -> str:
    """The lane of the address, unless a marker in the conversation names another."""
    if marks := _MARK.findall(text):
        return str(marks[-1])
    match = _LANE.match(path)
    return match[1] if match else "default"


def counted(path: str, text: str) -> dict[str, int] | None:
    """The answer to a request that only counts tokens."""
    tokens = max(1, len(text) // 4)
    if path.endswith("/messages/count_tokens"):
        return {"input_tokens": tokens}
    return {"totalTokens": tokens} if path.endswith(":countTokens") else None


def models() -> dict[str, Any]:
    """The list of models, in a form that all dialects can read."""
    names = ["scripted", "claude-sonnet-4-5", "gpt-5", "gemini-2.5-pro"]
    about = {"object": "model", "type": "model", "owned_by": "scripted", "created": 0}
    data = [{"id": name, "display_name": name, **about} for name in names]
    ends = {"first_id": names[0], "last_id": names[-1], "has_more": False}
    return {"object": "list", "data": data, "models": [], **ends}
