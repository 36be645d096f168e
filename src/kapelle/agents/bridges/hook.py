"""Asks the daemon whether a tool that an agent is about to use may write what it would write.

    python -I -S hook.py FILE claude|gemini

An agent runs it before each such tool, with the tool as JSON on standard input; FILE says where the
daemon is. What cannot be asked is refused. Only the standard library is used, for it runs often.
"""

import http.client
import json
import sys
from collections.abc import Mapping
from typing import Any

_TIMEOUT_S = 2.0


def refusal(place: Mapping[str, str], given: Mapping[str, Any], directory: str) -> str | None:
    """Why a tool with this input may not be used; None where nothing is in its way."""
    body = json.dumps({"tool": "", "input": dict(given), "directory": directory})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {place['token']}"}
    host = place["url"].partition("://")[2]
    try:
        connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_S)
        connection.request("POST", "/api/v1/locks/check", body, headers)
        answer = json.loads(connection.getresponse().read())
        if "error" in answer:
            raise OSError(answer["error"]["message"])
        return None if answer["allowed"] else str(answer["reason"])
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        return f"Kapelle cannot tell whether this is locked, so it is refused: {error or 'silence'}"


def main() -> None:
    event = json.load(sys.stdin)
    with open(sys.argv[1], encoding="utf-8") as file:
        reason = refusal(json.load(file), event["tool_input"], event["cwd"])
    if reason is None:
        return
    decision = {"hookEventName": "PreToolUse", "permissionDecision": "deny"}
    of_claude = {"hookSpecificOutput": {**decision, "permissionDecisionReason": reason}}
    of_gemini = {"decision": "deny", "reason": reason}
    sys.stdout.write(json.dumps(of_gemini if sys.argv[2] == "gemini" else of_claude))


if __name__ == "__main__":
    main()
