"""A Model Context Protocol server over stdio with one tool, in the standard library alone."""

import json
import os
import sys
from typing import Any

_TOOL = {
    "name": "ping",
    "description": "Answers with a word that only this server knows.",
    "inputSchema": {"type": "object", "properties": {}},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": params.get("protocolVersion", "2025-06-18"),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "pitch", "version": "1"},
            }
        case "tools/list":
            return {"tools": [_TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": f"pong-{os.environ['PITCH']}"}]}
        case "ping":
            return {}
        case _:
            return None


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        result = answer(asked["method"], asked.get("params") or {})
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": asked["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": "no such method"}
        else:
            reply["result"] = result
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
