"""What an agent runs as its hooks, with the event as JSON on standard input.

    python -I -S hook.py FILE claude|gemini

before each tool that writes: it asks the daemon, of which FILE says where it is, whether the tool
may write what it would write. What cannot be asked is refused.

    python -I -S hook.py FOLDER KEY

after each tool and before its end: it tells the agent what people say to it while it works, in
files that come to FOLDER, signed with KEY. Only the standard library is used, for both run often.
"""

import json
import os
import stat
import sys
from collections.abc import Mapping
from typing import Any

_TIMEOUT_S = 2.0
# The ends of the names of a message, and of one that was read.
SUFFIX = ".txt"
READ = ".told"
_LARGEST = 8_000_000
_FORMS = ("claude", "codex", "gemini")


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
        if answer["allowed"]:
            return None
        return str(answer["reason"])
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        return f"Kapelle cannot tell whether this is locked, so it is refused: {error or 'silence'}"


def signed(key: str, name: str, text: bytes) -> bytes:
    """Return the content of a message's file: its signature in the first line, then its text."""
    import hmac

    return (
        hmac.digest(key.encode(), f"{name}\n".encode() + text, "sha256").hex().encode()
        + b"\n"
        + text
    )


def new_messages(folder: str, key: str) -> dict[str, bytes]:
    """Return the texts of the messages that nobody has read, by name; forged ones are left out."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except OSError:
        return {}
    found = {}
    for name in names:
        content = _read_regular(os.path.join(folder, name))
        text = content.partition(b"\n")[2]
        if content and signed(key, name, text) == content:
            found[name] = text
    return found


def take_messages(folder: str, key: str) -> list[str]:
    """Return new messages and mark them as read; of two tools that end at once, one gets each."""
    texts = []
    for name, text in new_messages(folder, key).items():
        path = os.path.join(folder, name)
        try:
            os.rename(path, path + READ)
        except OSError:
            continue
        texts.append(text.decode("utf-8", "replace"))
    return texts


def _read_regular(path: str) -> bytes:
    """Return the content of a small regular file; nothing for a pipe, a link or a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return file.read(_LARGEST)


def _guard(event: dict[str, Any], file: str, form: str) -> dict[str, Any]:
    with open(file, encoding="utf-8") as opened:
        reason = refusal(json.load(opened), event["tool_input"], event["cwd"])
    decision = {"hookEventName": "PreToolUse", "permissionDecision": "deny"}
    of_claude = {"hookSpecificOutput": {**decision, "permissionDecisionReason": reason}}
    of_gemini = {"decision": "deny", "reason": reason}
    if reason:
        if form == "gemini":
            return of_gemini
        return of_claude
    return {}


def _tell(event: dict[str, Any], folder: str, key: str) -> dict[str, Any]:
    when = event["hook_event_name"]
    said = "\n\n".join(take_messages(folder, key))
    text = f"A person says to you, go by it: {said}"
    context = {"hookSpecificOutput": {"hookEventName": when, "additionalContext": text}}
    if said:
        if when == "Stop":
            return {"decision": "block", "reason": text}
        return context
    return {}


if __name__ == "__main__":
    reply = (_guard if sys.argv[2] in _FORMS else _tell)(json.load(sys.stdin), *sys.argv[1:])
    sys.stdout.write(json.dumps(reply) if reply else "")
