"""Reads the stream of Claude Code, `--output-format stream-json`, and of those who print the same.

What was used they count differently, so that is left to their adapters.
"""

import re
from typing import Any

from kapelle.agents.base import AgentEvent
from kapelle.agents.output import list_of, mapping_of, text_of
from kapelle.agents.resets import reset_stated
from kapelle.domain.failures import FailureClass

_Json = dict[str, Any]

_PLANS = frozenset({"TodoWrite", "todo_write"})
_ABSENT = frozenset({"failed", "disconnected", "needs-auth"})
_LIMITS = frozenset({"error_max_turns", "error_max_budget_usd"})
# What Claude Code itself calls an error; these say more than what the provider does.
_OWN_TYPES = frozenset(
    {
        "authentication_failed", "billing_error", "rate_limit", "overloaded", "server_error",
        "model_not_found",
    }
)  # fmt: skip
_NO_ACCESS = frozenset(
    {"oauth_org_not_allowed", "account_on_hold", "verification_required", "cloud_credential_error"}
)
_NO_ANSWER = {
    "connection_failed": FailureClass.ENVIRONMENT,
    "no_response": FailureClass.OVERLOADED,
    "stream_idle_timeout": FailureClass.OVERLOADED,
}
_NO_MONEY = re.compile(
    r"spend limit|shared budget|out of (?:usage|extra usage)|include (?:extra )?usage"
    r"|requires usage credits|usage limit is set to \$0"
)
_BY_MESSAGE = (
    (
        re.compile(r"No conversation found with session ID|--resume requires a valid session"),
        FailureClass.SESSION_LOST,
    ),
    (
        re.compile(r"^(?:No auth type is selected|Missing API key)"),
        FailureClass.AUTHENTICATION,
    ),
    (re.compile(r"^\[API Error: Context is too large"), FailureClass.CONTEXT_OVERFLOW),
    (re.compile(r"^\[API Error: Connection error"), FailureClass.ENVIRONMENT),
)
_STATUS = re.compile(r"^\[API Error: (\d{3})\b")


def parse_event(event: _Json) -> list[AgentEvent]:
    """What one object of the stream says, apart from usage."""
    match event.get("type"):
        case "system":
            return _system(event)
        case "assistant":
            return _assistant(event)
        case "user":
            return _tool_results(event)
        case "rate_limit_event":
            return _limit(mapping_of(event.get("rate_limit_info")))
        case "result":
            return _result(event)
    return []


def whole(value: object) -> int:
    """A number of things, or 0 for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53:
        return value
    return 0


def _system(event: _Json) -> list[AgentEvent]:
    match event.get("subtype"):
        case "init":
            told = [
                AgentEvent("session", text_of(event.get("session_id"))),
                AgentEvent("model", text_of(event.get("model"))),
            ]
            return told + _absent_servers(event)
        case "api_retry":
            return [_api_retry(event)]
        case "retry":
            return _retry(mapping_of(event.get("data")))
        case "permission_denied":
            why = text_of(event.get("decision_reason")) or text_of(event.get("message"))
            text = f"{text_of(event.get('tool_name'))} was denied: {why}"
            return [AgentEvent("notice", text, FailureClass.TOOL)]
    return []


def _absent_servers(event: _Json) -> list[AgentEvent]:
    servers = [mapping_of(server) for server in list_of(event.get("mcp_servers"))]
    return [
        AgentEvent(
            "notice",
            f"The MCP server {text_of(server.get('name'))} is not there: {server['status']}.",
            FailureClass.TOOL,
        )
        for server in servers
        if text_of(server.get("status")) in _ABSENT
    ]


def _api_retry(event: _Json) -> AgentEvent:
    status, kind = whole(event.get("error_status")), text_of(event.get("error"))
    what = f"HTTP status {status}" if status else "The provider did not answer"
    again = f"retry {whole(event.get('attempt'))} of {whole(event.get('max_retries'))}"
    text = f"{what} ({kind}); {again} in {whole(event.get('retry_delay_ms')) / 1000:g} s"
    return AgentEvent("notice", text, data=_error_data(status, kind))


def _retry(data: _Json) -> list[AgentEvent]:
    """Qwen Code's own: it has a pause only after a limit of rate."""
    if not (delay_ms := whole(data.get("delayMs"))):
        return []
    again = f"retry {whole(data.get('attempt'))} of {whole(data.get('maxRetries'))}"
    text = f"The provider limits the rate; {again} in {delay_ms / 1000:g} s"
    return [AgentEvent("notice", text, FailureClass.RATE_LIMIT)]


def _limit(info: _Json) -> list[AgentEvent]:
    window = text_of(info.get("rateLimitType")).replace("_", " ") or "usage"
    if info.get("status") == "rejected" and info.get("isUsingOverage") is not True:
        text = f"The {window} limit of the subscription is used up"
        return [AgentEvent("notice", text, FailureClass.RATE_LIMIT, _error_data(info=info))]
    if info.get("status") == "allowed_warning":
        used = info.get("utilization")
        share = f"{used:.0%}" if isinstance(used, float) else "Most"
        return [AgentEvent("notice", f"{share} of the {window} limit is used")]
    return []


def _assistant(event: _Json) -> list[AgentEvent]:
    blocks = [mapping_of(b) for b in list_of(mapping_of(event.get("message")).get("content"))]
    said = "\n".join(text_of(b.get("text")) for b in blocks if b.get("type") == "text")
    is_part = bool(event.get("parent_tool_use_id"))  # of a subagent's work
    if event.get("error") or event.get("is_api_error_message") is True:
        return [_api_error(event, said, "notice" if is_part else "error")]
    events = [AgentEvent("text", said)] if said and not is_part else []
    for block in blocks:
        if block.get("type") == "tool_use":
            name, given = text_of(block.get("name")), mapping_of(block.get("input"))
            events.append(AgentEvent("tool_call", name=name, data=given))
            if name in _PLANS:
                events.append(AgentEvent("plan", _plan(given)))
    return events


def _plan(given: _Json) -> str:
    todos = [mapping_of(todo) for todo in list_of(given.get("todos"))]
    marks = {"completed": "x", "in_progress": ">"}
    return "\n".join(
        f"[{marks.get(text_of(todo.get('status')), ' ')}] {text_of(todo.get('content'))}"
        for todo in todos
    )


def _api_error(event: _Json, said: str, kind: Any) -> AgentEvent:
    own = text_of(event.get("error"))
    provider_type = own if own in _OWN_TYPES else text_of(event.get("api_error_type"))
    info = mapping_of(mapping_of(event.get("api_error_params")).get("rate_limit_info"))
    data = _error_data(whole(event.get("api_error_status")), provider_type, info)
    name = ""
    if own in _NO_ACCESS:
        name = FailureClass.AUTHENTICATION
    elif text_of(event.get("api_error")) in _NO_ANSWER:
        name = _NO_ANSWER[event["api_error"]]
    elif "retry_at" not in data and _NO_MONEY.search(said):
        name = FailureClass.BILLING
    return AgentEvent(kind, said or own, name, data)


def _error_data(status: int = 0, kind: str = "", info: _Json | None = None) -> _Json:
    at = reset_stated((info or {}).get("resetsAt"))
    given = {"status": status, "type": kind, "retry_at": at.isoformat() if at else None}
    return {key: value for key, value in given.items() if value}


def _tool_results(event: _Json) -> list[AgentEvent]:
    content = list_of(mapping_of(event.get("message")).get("content"))
    results = [block for block in map(mapping_of, content) if block.get("type") == "tool_result"]
    return [
        AgentEvent(
            "tool_result",
            _flat(block.get("content")),
            data={"is_error": True} if block.get("is_error") is True else {},
        )
        for block in results
    ]


def _flat(content: object) -> str:
    parts = [text_of(mapping_of(part).get("text")) for part in list_of(content)]
    return text_of(content) or "\n".join(part for part in parts if part)


def _result(event: _Json) -> list[AgentEvent]:
    """Its subtype may be success where is_error says otherwise, and that counts."""
    subtype = text_of(event.get("subtype"))
    if event.get("is_error") is not True and not subtype.startswith("error"):
        return [AgentEvent("result", text_of(event.get("result")))]
    text = _reason(event)
    result = AgentEvent("result", text, data={"is_error": True})
    if subtype == "success" and event.get("terminal_reason"):
        return [result]  # the message before this one said why, and more than this one does
    return [_failure(event, subtype, text), result]


def _reason(event: _Json) -> str:
    if text_of(event.get("terminal_reason")).startswith("aborted"):
        return "It was interrupted."
    errors = "; ".join(text_of(error) for error in list_of(event.get("errors")))
    message = text_of(mapping_of(event.get("error")).get("message"))
    return text_of(event.get("result")) or errors or message or text_of(event.get("subtype"))


def _failure(event: _Json, subtype: str, text: str) -> AgentEvent:
    found = _STATUS.search(text)
    status = whole(event.get("api_error_status")) or (int(found[1]) if found else 0)
    data = _error_data(status, text_of(event.get("api_error_type")))
    if subtype in _LIMITS:
        return AgentEvent("error", text, FailureClass.LIMIT, data)
    name = next((kind for pattern, kind in _BY_MESSAGE if pattern.search(text)), "")
    return AgentEvent("error", text, name, data)
