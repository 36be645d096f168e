"""Gemini: POST …/models/MODEL:generateContent and :streamGenerateContent."""

from typing import Any

from tests.agents.model.dialects.answer import Answer, Failure, Json, Said, fresh_id
from tests.agents.model.tools import Tool, Tools

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    529: "UNAVAILABLE",
}
_CONSOLE = "https://console.developers.google.com/billing/enable?project=scripted"


class Gemini:
    name = "gemini"

    def declared(self, body: Json) -> Tools:
        tools = {}
        for tool in body.get("tools") or []:
            for function in tool.get("functionDeclarations") or []:
                schema = function.get("parametersJsonSchema") or function.get("parameters")
                tools[function["name"]] = Tool.of(function["name"], schema)
        return tools

    def answer(self, said: Said) -> Answer:
        parts: list[Json] = [{"text": said.text}] if said.text else []
        if said.call:
            call = {"id": fresh_id("fc_"), "name": said.call.tool.name, "args": said.call.input}
            parts.append({"functionCall": call, "thoughtSignature": "c2NyaXB0ZWQ="})
        usage = {
            "promptTokenCount": said.tokens.input,
            "candidatesTokenCount": said.tokens.output,
            "totalTokenCount": said.tokens.total,
            "cachedContentTokenCount": said.tokens.cached,
        }
        content = {"role": "model", "parts": parts}
        whole: Json = {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": usage,
            "modelVersion": said.model,
            "responseId": fresh_id("r"),
        }
        return Answer([(None, whole)], whole)

    def failure(self, status: int, message: str) -> Failure:
        return _failure(status, message)

    def limit_headers(self, reset_in_s: float) -> dict[str, str]:
        # Gemini sends no such headers; a script that wants a hint gives retry_after.
        return {}

    def overflow(self) -> Failure:
        return _failure(
            400,
            "The input token count (1196265) exceeds the maximum number of tokens allowed "
            "(1048576).",
        )

    def billing(self) -> Failure:
        return _failure(
            403,
            "This API method requires billing to be enabled. Please enable billing on project "
            f"#scripted by visiting {_CONSOLE} then retry.",
            details=[
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "BILLING_DISABLED",
                    "domain": "googleapis.com",
                }
            ],
        )


def _failure(status: int, message: str, **more: Any) -> Failure:
    name = _STATUSES.get(status, "INTERNAL")
    return Failure(status, {"error": {"code": status, "message": message, "status": name, **more}})
