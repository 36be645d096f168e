"""OpenAI Chat Completions: POST …/chat/completions."""

import json
import time

from tests.agents.model.dialects import openai
from tests.agents.model.dialects.answer import Answer, Event, Failure, Json, Said, fresh_id
from tests.agents.model.tools import Tool, Tools


class Chat:
    name = "chat"

    def declared(self, body: Json) -> Tools:
        functions = [tool.get("function") or tool for tool in body.get("tools") or []]
        return {
            function["name"]: Tool.of(function["name"], function.get("parameters"))
            for function in functions
            if function.get("name")
        }

    def answer(self, said: Said) -> Answer:
        base = {"id": fresh_id("chatcmpl-"), "created": int(time.time()), "model": said.model}
        usage = {
            "prompt_tokens": said.tokens.input,
            "completion_tokens": said.tokens.output,
            "total_tokens": said.tokens.total,
            "prompt_tokens_details": {"cached_tokens": said.tokens.cached},
        }
        message: Json = {"role": "assistant", "content": said.text or None}
        if said.call:
            function = {"name": said.call.tool.name, "arguments": json.dumps(said.call.input)}
            message["tool_calls"] = [
                {"id": fresh_id("call_"), "type": "function", "function": function}
            ]
        stop = "tool_calls" if said.call else "stop"
        choice = {"index": 0, "message": message, "finish_reason": stop}
        whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
        return Answer(_events(base, message, stop, usage), whole)

    def failure(self, status: int, message: str) -> Failure:
        return openai.failure(status, message)

    def limit_headers(self, reset_in_s: float) -> dict[str, str]:
        return openai.limit_headers(reset_in_s)

    def overflow(self) -> Failure:
        return openai.failure(
            400,
            "This model's maximum context length is 128000 tokens. However, your messages resulted "
            "in 131072 tokens. Please reduce the length of the messages.",
            "context_length_exceeded",
            "invalid_request_error",
        )

    def billing(self) -> Failure:
        return openai.billing()


def _events(base: Json, message: Json, stop: str, usage: Json) -> list[Event]:
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    if message["content"]:
        deltas.append({"content": message["content"]})
    for index, call in enumerate(message.get("tool_calls", [])):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    choices: list[list[Json]] = [
        [{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas
    ]
    choices.append([{"index": 0, "delta": {}, "finish_reason": stop}])
    head = {**base, "object": "chat.completion.chunk"}
    chunks: list[Event] = [(None, {**head, "choices": choice}) for choice in choices]
    return [*chunks, (None, {**head, "choices": [], "usage": usage}), (None, "[DONE]")]
