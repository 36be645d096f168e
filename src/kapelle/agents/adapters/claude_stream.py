"""Reads the stream of Claude Code, `--output-format stream-json`, and of those who print the same.

What was used they count differently, so that is left to their adapters.
"""

import re

from kapelle.agents.base import AgentEvent, EventKind
from kapelle.agents.output import (
    Json,
    count_of,
    error,
    list_of,
    mapping_of,
    mappings_of,
    plan,
    text_of,
)
from kapelle.agents.resets import reset_stated
from kapelle.domain.failures import FailureClass

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
    (re.compile(r"^(?:No auth type is selected|Missing API key)"), FailureClass.AUTHENTICATION),
    (re.compile(r"^\[API Error: Context is too large"), FailureClass.CONTEXT_OVERFLOW),
    (re.compile(r"^\[API Error: Connection error"), FailureClass.ENVIRONMENT),
)
_STATUS = re.compile(r"^\[API Error: (\d{3})\b")


def parse_event(event: Json) -> list[AgentEvent]:
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


def _system(event: Json) -> list[AgentEvent]:
    match event.get("subtype"):
        case "init":
            session = AgentEvent("session", text_of(event.get("session_id")))
            model = AgentEvent("model", text_of(event.get("model")))
            return [session, model, *_absent_servers(event)]
        case "api_retry":
            return [_api_retry(event)]
        case "retry":
            return _retry(mapping_of(event.get("data")))
        case "permission_denied":
            why = text_of(event.get("decision_reason")) or text_of(event.get("message"))
            text = f"{text_of(event.get('tool_name'))} was denied: {why}"
            return [AgentEvent("notice", text, FailureClass.TOOL)]
    return []


def _absent_servers(event: Json) -> list[AgentEvent]:
    servers = mappings_of(event.get("mcp_servers"))
    absent = [server for server in servers if text_of(server.get("status")) in _ABSENT]
    texts = [f"The MCP server {s.get('name')} is not there: {s['status']}." for s in absent]
    return [AgentEvent("notice", text, FailureClass.TOOL) for text in texts]


def _api_retry(event: Json) -> AgentEvent:
    status, kind = count_of(event.get("error_status")), text_of(event.get("error"))
    what = f"HTTP status {status}" if status else "The provider did not answer"
    again = f"retry {count_of(event.get('attempt'))} of {count_of(event.get('max_retries'))}"
    text = f"{what} ({kind}); {again} in {count_of(event.get('retry_delay_ms')) / 1000:g} s"
    return error(text, kind="notice", status=status, type=kind)


def _retry(data: Json) -> list[AgentEvent]:
    """Qwen Code's own: it has a pause only after a limit of rate."""
    if not (delay_ms := count_of(data.get("delayMs"))):
        return []
    again = f"retry {count_of(data.get('attempt'))} of {count_of(data.get('maxRetries'))}"
    text = f"The provider limits the rate; {again} in {delay_ms / 1000:g} s"
    return [AgentEvent("notice", text, FailureClass.RATE_LIMIT)]


def _limit(info: Json) -> list[AgentEvent]:
    window = text_of(info.get("rateLimitType")).replace("_", " ") or "usage"
    if info.get("status") == "rejected" and info.get("isUsingOverage") is not True:
        text = f"The {window} limit of the subscription is used up"
        return [error(text, FailureClass.RATE_LIMIT, "notice", retry_at=_reset(info))]
    if info.get("status") == "allowed_warning":
        used = info.get("utilization")
        share = f"{used:.0%}" if isinstance(used, float) else "Most"
        return [AgentEvent("notice", f"{share} of the {window} limit is used")]
    return []


def _assistant(event: Json) -> list[AgentEvent]:
    blocks = mappings_of(mapping_of(event.get("message")).get("content"))
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
                events.append(_plan(given))
    return events


def _plan(given: Json) -> AgentEvent:
    todos = mappings_of(given.get("todos"))
    return plan([(text_of(todo.get("status")), text_of(todo.get("content"))) for todo in todos])


def _api_error(event: Json, said: str, kind: EventKind) -> AgentEvent:
    own = text_of(event.get("error"))
    provider_type = own if own in _OWN_TYPES else text_of(event.get("api_error_type"))
    info = mapping_of(mapping_of(event.get("api_error_params")).get("rate_limit_info"))
    status, retry_at, name = count_of(event.get("api_error_status")), _reset(info), ""
    if own in _NO_ACCESS:
        name = FailureClass.AUTHENTICATION
    elif text_of(event.get("api_error")) in _NO_ANSWER:
        name = _NO_ANSWER[event["api_error"]]
    elif not retry_at and _NO_MONEY.search(said):
        name = FailureClass.BILLING
    return error(said or own, name, kind, status=status, type=provider_type, retry_at=retry_at)


def _reset(info: Json) -> str | None:
    at = reset_stated(info.get("resetsAt"))
    return at.isoformat() if at else None


def _tool_results(event: Json) -> list[AgentEvent]:
    blocks = mappings_of(mapping_of(event.get("message")).get("content"))
    results = [block for block in blocks if block.get("type") == "tool_result"]
    return [AgentEvent("tool_result", _flat(block), data=_failed(block)) for block in results]


def _failed(block: Json) -> Json:
    return {"is_error": True} if block.get("is_error") is True else {}


def _flat(block: Json) -> str:
    content = block.get("content")
    parts = [text_of(part.get("text")) for part in mappings_of(content)]
    return text_of(content) or "\n".join(part for part in parts if part)


def _result(event: Json) -> list[AgentEvent]:
    """Its subtype may be success where is_error says otherwise, and that counts."""
    subtype = text_of(event.get("subtype"))
    if event.get("is_error") is not True and not subtype.startswith("error"):
        return [AgentEvent("result", text_of(event.get("result")))]
    text = _reason(event)
    result = AgentEvent("result", text, data={"is_error": True})
    if subtype == "success" and event.get("terminal_reason"):
        return [result]  # the message before this one said why, and more than this one does
    return [_failure(event, subtype, text), result]


def _reason(event: Json) -> str:
    if text_of(event.get("terminal_reason")).startswith("aborted"):
        return "It was interrupted."
    errors = "; ".join(text_of(message) for message in list_of(event.get("errors")))
    own = text_of(mapping_of(event.get("error")).get("message"))
    return text_of(event.get("result")) or errors or own or text_of(event.get("subtype"))


def _failure(event: Json, subtype: str, text: str) -> AgentEvent:
    found = _STATUS.search(text)
    status = count_of(event.get("api_error_status")) or (int(found[1]) if found else 0)
    name = next((kind for pattern, kind in _BY_MESSAGE if pattern.search(text)), "")
    name = FailureClass.LIMIT if subtype in _LIMITS else name
    return error(text, name, status=status, type=text_of(event.get("api_error_type")))
