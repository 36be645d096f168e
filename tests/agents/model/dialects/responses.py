"""OpenAI Responses: POST …/responses."""

import json
import time

from tests.agents.model.dialects import openai
from tests.agents.model.dialects.answer import Answer, Event, Failure, Json, Said, fresh_id
from tests.agents.model.tools import Call, Tool, Tools

_EMPTY: dict[str, Json] = {
    "message": {"content": []},
    "function_call": {"arguments": ""},
    "custom_tool_call": {"input": ""},
}


class Responses:
    name = "responses"

    def declared(self, body: Json) -> Tools:
        tools = {}
        for tool in body.get("tools") or []:
            namespace = tool["name"] if tool.get("type") == "namespace" else ""
            for inner in tool.get("tools") or [] if namespace else [tool]:
                if inner.get("type") in {"function", "custom"} and inner.get("name"):
                    schema, freeform = inner.get("parameters"), inner["type"] == "custom"
                    tools[namespace + inner["name"]] = Tool.of(
                        inner["name"], schema, namespace=namespace, freeform=freeform
                    )
        return tools

    def answer(self, said: Said) -> Answer:
        items = [_message(said.text)] if said.text else []
        if said.call:
            items.append(_called(said.call))
        tokens = said.tokens
        usage = {
            "input_tokens": tokens.input,
            "input_tokens_details": {"cached_tokens": tokens.cached},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens.total,
        }
        whole = {**_response(said.model), "status": "completed", "output": items, "usage": usage}
        started = {**whole, "status": "in_progress", "output": [], "usage": None}
        events: list[tuple[str, Json]] = [("response.created", {"response": started})]
        for index, item in enumerate(items):
            events += _item_events(index, item)
        events.append(("response.completed", {"response": whole}))
        return Answer(_numbered(events), whole)

    def failure(self, status: int, message: str) -> Failure:
        return openai.failure(status, message)

    def limit_headers(self, reset_in_s: float) -> dict[str, str]:
        return openai.limit_headers(reset_in_s)

    def overflow(self) -> Failure:
        message = (
            "Your input exceeds the context window of this model. "
            "Please adjust your input and try again."
        )
        code = "context_length_exceeded"
        failed = {**_response("scripted"), "status": "failed", "output": []}
        failed["error"] = {"code": code, "message": message}
        plain = openai.failure(400, message, code, "invalid_request_error")
        # In a stream it is noticed only after the headers went out.
        events = _numbered([("response.failed", {"response": failed})])
        return Failure(plain.status, plain.body, events=events)

    def billing(self) -> Failure:
        return openai.billing()


def _response(model: str) -> Json:
    return {
        "id": fresh_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "error": None,
        "incomplete_details": None,
    }


def _message(text: str) -> Json:
    return {
        "type": "message",
        "id": fresh_id("msg_"),
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def _called(call: Call) -> Json:
    head = {"call_id": fresh_id("call_"), "name": call.tool.name, "status": "completed"}
    if call.tool.freeform:
        return {"type": "custom_tool_call", "id": fresh_id("ctc_"), **head, "input": call.input}
    if call.tool.namespace:
        head["namespace"] = call.tool.namespace
    arguments = json.dumps(call.input)
    return {"type": "function_call", "id": fresh_id("fc_"), **head, "arguments": arguments}


def _item_events(index: int, item: Json) -> list[tuple[str, Json]]:
    at = {"output_index": index, "item_id": item["id"]}
    opened = {**item, **_EMPTY[item["type"]], "status": "in_progress"}
    added = ("response.output_item.added", {"output_index": index, "item": opened})
    done = ("response.output_item.done", {"output_index": index, "item": item})
    return [added, *_content_events(at, item), done]


def _content_events(at: Json, item: Json) -> list[tuple[str, Json]]:
    if item["type"] == "custom_tool_call":
        return [("response.custom_tool_call_input.delta", {**at, "delta": item["input"]})]
    if item["type"] == "function_call":
        arguments = item["arguments"]
        return [
            ("response.function_call_arguments.delta", {**at, "delta": arguments}),
            ("response.function_call_arguments.done", {**at, "arguments": arguments}),
        ]
    part = item["content"][0]
    at = {**at, "content_index": 0}
    return [
        ("response.content_part.added", {**at, "part": {**part, "text": ""}}),
        ("response.output_text.delta", {**at, "delta": part["text"]}),
        ("response.output_text.done", {**at, "text": part["text"]}),
        ("response.content_part.done", {**at, "part": part}),
    ]


def _numbered(events: list[tuple[str, Json]]) -> list[Event]:
    return [
        (name, {"type": name, "sequence_number": number, **payload})
        for number, (name, payload) in enumerate(events)
    ]
