"""What an agent runs as its hooks, with the event as JSON on standard input.

    python -I -S hook.py FILE claude|gemini

before each tool that writes: it asks the daemon, of which FILE says where it is, whether the tool
may write what it would write. What cannot be asked is refused.

    python -I -S hook.py FOLDER

after each tool and before its end: it tells the agent what people say to it while it works, in
texts that come to FOLDER. Only the standard library is used, for both run often.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

_TIMEOUT_S = 2.0


def refusal(place: Mapping[str, str], given: Mapping[str, Any], directory: str) -> str | None:
    """Why a tool with this input may not be used; None where nothing is in its way."""
    import http.client

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


def taken(folder: str) -> list[str]:
    """What is new; it counts as told, and of two tools that end at once one tells it."""
    texts = []
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".txt")):
        told = os.path.join(folder, f"{name}.told")
        try:
            os.rename(os.path.join(folder, name), told)
        except FileNotFoundError:
            continue
        with open(told, encoding="utf-8", errors="replace") as file:
            texts.append(file.read())
    return texts


def _guard(event: dict[str, Any], file: str, form: str) -> dict[str, Any]:
    with open(file, encoding="utf-8") as opened:
        reason = refusal(json.load(opened), event["tool_input"], event["cwd"])
    decision = {"hookEventName": "PreToolUse", "permissionDecision": "deny"}
    of_claude = {"hookSpecificOutput": {**decision, "permissionDecisionReason": reason}}
    of_gemini = {"decision": "deny", "reason": reason}
    return (of_gemini if form == "gemini" else of_claude) if reason else {}


def _tell(event: dict[str, Any], folder: str) -> dict[str, Any]:
    when = event["hook_event_name"]
    said = "\n\n".join(taken(folder))
    text = f"A person says to you, go by it: {said}"
    context = {"hookSpecificOutput": {"hookEventName": when, "additionalContext": text}}
    return ({"decision": "block", "reason": text} if when == "Stop" else context) if said else {}


if __name__ == "__main__":
    reply = (_guard if len(sys.argv) > 2 else _tell)(json.load(sys.stdin), *sys.argv[1:])
    sys.stdout.write(json.dumps(reply) if reply else "")
