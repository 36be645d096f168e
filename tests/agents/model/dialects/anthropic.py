"""Anthropic Messages: POST …/v1/messages."""

import json
import time
from datetime import UTC, datetime, timedelta

from tests.agents.model.dialects.answer import Answer, Event, Failure, Json, Said, fresh_id
from tests.agents.model.tools import Tool, Tools

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class Anthropic:
    name = "anthropic"

    def declared(self, body: Json) -> Tools:
        tools = body.get("tools") or []
        return {
            tool["name"]: Tool.of(tool["name"], tool.get("input_schema"))
            for tool in tools
            if tool.get("name")
        }

    def answer(self, said: Said) -> Answer:
        blocks: list[Json] = []
        if said.text:
            blocks.append({"type": "text", "text": said.text})
        if said.call:
            use = {"id": fresh_id("toolu_"), "name": said.call.tool.name, "input": said.call.input}
            blocks.append({"type": "tool_use", **use})
        # Here the cached tokens are counted beside the input, not within it.
        usage = {
            "input_tokens": said.tokens.input - said.tokens.cached,
            "output_tokens": said.tokens.output,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": said.tokens.cached,
        }
        whole: Json = {
            "id": fresh_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": said.model,
            "content": blocks,
            "stop_reason": "tool_use" if said.call else "end_turn",
            "stop_sequence": None,
            "usage": usage,
        }
        return Answer(_events(whole), whole)

    def failure(self, status: int, message: str) -> Failure:
        error = {"type": _TYPES.get(status, "api_error"), "message": message}
        body = {"type": "error", "error": error, "request_id": fresh_id("req_")}
        return Failure(status, body)

    def limit_headers(self, reset_in_s: float) -> dict[str, str]:
        reset_at = datetime.now(UTC) + timedelta(seconds=reset_in_s)
        return {
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-representative-claim": "five_hour",
            "anthropic-ratelimit-unified-reset": str(int(time.time() + reset_in_s)),
            "anthropic-ratelimit-requests-remaining": "0",
            "anthropic-ratelimit-requests-reset": reset_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }

    def overflow(self) -> Failure:
        return self.failure(400, "prompt is too long: 214361 tokens > 200000 maximum")

    def billing(self) -> Failure:
        return self.failure(
            400,
            "Your credit balance is too low to access the Anthropic API. "
            "Please go to Plans & Billing to upgrade or purchase credits.",
        )


def _events(whole: Json) -> list[Event]:
    started = {
        **whole,
        "content": [],
        "stop_reason": None,
        "usage": {**whole["usage"], "output_tokens": 1},
    }
    events: list[tuple[str, Json]] = [("message_start", {"message": started})]
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty: Json = {"text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty = {"input": {}}
            partial = json.dumps(block["input"])
            delta = {"type": "input_json_delta", "partial_json": partial}
        events += [
            ("content_block_start", {"index": index, "content_block": {**block, **empty}}),
            ("content_block_delta", {"index": index, "delta": delta}),
            ("content_block_stop", {"index": index}),
        ]
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    spent = {"output_tokens": whole["usage"]["output_tokens"]}
    events += [("message_delta", {"delta": stop, "usage": spent}), ("message_stop", {})]
    return [(name, {"type": name, **payload}) for name, payload in events]
