"""What a command template's JSON output says, by the paths of its settings."""

from kapelle.agents.adapters.json_paths import json_document, number_at, text_at, value_at
from kapelle.agents.base import AgentEvent, EventKind, Summary, Verdict
from kapelle.agents.endings import claim, failure, how_it_ended
from kapelle.domain.task import Exit
from kapelle.settings.models import ReadJson

_UNNAMED = "It reported an error without a message."


def json_events(line: str, read: ReadJson) -> list[AgentEvent]:
    """The events that a line holds; what is no JSON is not the agent's own word."""
    document = json_document(line)
    if document is None:
        return []
    paths: dict[EventKind, str | None] = {
        "session": read.session,
        "model": read.model,
        "text": read.text,
    }
    found = {kind: text_at(document, path) for kind, path in paths.items()}
    events = [AgentEvent(kind, text=text) for kind, text in found.items() if text]
    if used := _used(document, read):
        events.append(AgentEvent("usage", data=used))
    return events + _outcome(document, read)


def judge_json(summary: Summary, exit: Exit, tail: str, read: ReadJson) -> Verdict:
    """Success is a clean exit, no error, and the answer where the settings say that it is."""
    said = summary.result if read.result else summary.tail.strip() or None
    if exit.kind != "exited":
        return failure(how_it_ended(exit, tail), said, claim(summary))
    if summary.error:
        return failure(summary.error.text, said, "failure")
    if exit.code != 0:
        return failure(how_it_ended(exit, tail), said, claim(summary))
    if said is None:
        sentence = f"The agent exited with code 0, and {read.result or read.text} was never there."
        return failure(sentence, None, None)
    return Verdict(True, result=said, claimed="success")


def _used(document: object, read: ReadJson) -> dict[str, float]:
    paths = {
        "input_tokens": read.input_tokens,
        "output_tokens": read.output_tokens,
        "cached_tokens": read.cached_tokens,
        "cost_usd": read.cost_usd,
    }
    found = {name: number_at(document, path) for name, path in paths.items()}
    used = {name: number for name, number in found.items() if number is not None}
    # Whatever reports what it used has had an answer of a model.
    return {**used, "turns": 1} if used else {}


def _outcome(document: object, read: ReadJson) -> list[AgentEvent]:
    result = text_at(document, read.result)
    # A flag may stand where a message would: then the answer is the message.
    wrong = value_at(document, read.error)
    message = result or _UNNAMED if wrong is True else text_at(document, read.error)
    events = [AgentEvent("error", text=message)] if wrong else []
    if value_at(document, read.result) is not None:
        events.append(AgentEvent("result", text=result, data={"is_error": True} if wrong else {}))
    return events
