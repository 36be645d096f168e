"""Kapelle's own line format: one JSON object with a "kind" per line, anything else is text."""

import json
from datetime import UTC, datetime
from typing import Any, get_args

from kapelle.agents.base import AgentEvent, EventKind, Summary, Verdict
from kapelle.agents.endings import failure, how_it_ended
from kapelle.domain.task import Exit

_KINDS = frozenset(get_args(EventKind))


def parse_event(line: str) -> list[AgentEvent]:
    """The event a line holds; a line that is no event is text, a blank one is nothing."""
    if not line.strip():
        return []
    if line.lstrip().startswith("{"):
        event = _event(line)
        if event:
            return [event]
    return [AgentEvent("text", text=line.rstrip("\r\n"))]


def _event(line: str) -> AgentEvent | None:
    try:
        value = json.loads(line, parse_constant=_refuse)
        if "\\u" in line:
            value = _encodable(value)
    except (ValueError, RecursionError):
        return None
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        return None
    data = value.get("data")
    return AgentEvent(
        kind,  # type: ignore[arg-type]
        text=_string(value.get("text")),
        name=_string(value.get("name")),
        data=data if isinstance(data, dict) else {},
    )


def judge_events(summary: Summary, exit: Exit, tail: str) -> Verdict:
    """Success is a clean exit and a result that is no error; silence is not success."""
    claimed = _claim(summary)
    if exit.kind != "exited":
        return failure(how_it_ended(exit, tail), summary.result, claimed)
    if exit.code == 0 and claimed == "success":
        return Verdict(True, result=summary.result, claimed=claimed)
    if claimed == "success":
        return failure(how_it_ended(exit, tail), summary.result, claimed)
    if summary.question is not None:
        return Verdict(False, f"It asks: {summary.question}", claimed=claimed, waiting_for="input")
    if summary.error and summary.error.name == "rate_limit":
        return Verdict(
            False,
            summary.error.text or "The agent's rate limit is reached.",
            claimed=claimed,
            waiting_for="rate_limit",
            retry_at=_time(summary.error.data.get("retry_at")),
        )
    if claimed == "failure":
        said = summary.error.text if summary.error else summary.result
        return failure(said or how_it_ended(exit, tail), summary.result, claimed)
    if exit.code == 0:
        return failure("The agent exited with code 0 without reporting a result.", None, None)
    return failure(how_it_ended(exit, tail), None, None)


def _claim(summary: Summary) -> Any:
    if summary.is_error:
        return "failure"
    if summary.result is not None:
        return "success"
    return "failure" if summary.error else None


def _time(value: object) -> datetime | None:
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return at.replace(tzinfo=at.tzinfo or UTC) if at else None


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _encodable(value: Any) -> Any:
    # JSON may escape half a surrogate pair, which no UTF-8 file or database accepts.
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-8", "replace"))
