"""Requests as the agents send them, one form for all dialects, for tests of the model itself."""

import http.client
import json
from dataclasses import dataclass
from typing import Any

from tests.agents.model import ModelServer

_SCHEMA = {"type": "object", "properties": {"path": {}, "content": {}, "command": {}}}
PATHS = {
    "anthropic": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "gemini": "/v1beta/models/scripted:generateContent",
}


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)

    @property
    def events(self) -> list[Any]:
        """The payloads of a stream, without OpenAI's closing mark."""
        lines = [line[6:] for line in self.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


def ask(
    model: ModelServer,
    dialect: str,
    lane: str,
    prompt: str = "Work.",
    tools: tuple[str, ...] = ("write_file", "bash", "mcp__box__ping"),
    stream: bool = False,
) -> Reply:
    """Send one request that offers these tools."""
    path, body = PATHS[dialect], _body(dialect, prompt, tools)
    if dialect == "gemini" and stream:
        path = path.replace(":generate", ":streamGenerate") + "?alt=sse"
    elif stream:
        body["stream"] = True
    return post(model, f"/s/{lane}{path}", body)


def post(model: ModelServer, path: str, body: Any) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", model.server_port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body), {"X-Asked-By": "test"})
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, headers, response.read().decode())
    finally:
        connection.close()


def called(dialect: str, body: Any) -> tuple[str, Any]:
    """The tool that an answer calls, and its input."""
    if dialect == "anthropic":
        block = body["content"][-1]
        return block["name"], block["input"]
    if dialect == "responses":
        item = body["output"][-1]
        return item["name"], json.loads(item["arguments"])
    if dialect == "chat":
        function = body["choices"][0]["message"]["tool_calls"][0]["function"]
        return function["name"], json.loads(function["arguments"])
    call = body["candidates"][0]["content"]["parts"][-1]["functionCall"]
    return call["name"], call["args"]


def said(dialect: str, body: Any) -> str:
    """The text of an answer."""
    if dialect == "anthropic":
        return str(body["content"][0]["text"])
    if dialect == "responses":
        return str(body["output"][0]["content"][0]["text"])
    if dialect == "chat":
        return str(body["choices"][0]["message"]["content"])
    return str(body["candidates"][0]["content"]["parts"][0]["text"])


def _body(dialect: str, prompt: str, tools: tuple[str, ...]) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    if dialect == "anthropic":
        declared = [{"name": name, "input_schema": _SCHEMA} for name in tools]
        return {"model": "scripted", "messages": [message], "tools": declared}
    functions = [{"name": name, "parameters": _SCHEMA} for name in tools]
    if dialect == "responses":
        typed = [{"type": "function", **function} for function in functions]
        return {"model": "scripted", "input": [message], "tools": typed}
    if dialect == "chat":
        wrapped = [{"type": "function", "function": function} for function in functions]
        return {"model": "scripted", "messages": [message], "tools": wrapped}
    content = {"role": "user", "parts": [{"text": prompt}]}
    return {"contents": [content], "tools": [{"functionDeclarations": functions}]}
