"""The program that agents run as their hooks, with the event as JSON on standard input.

    python -I -S hook.py FILE claude|codex|gemini

runs before each tool that writes. It asks the daemon, whose address is in FILE, whether the tool
may write these files. If the daemon cannot be asked, the tool is refused.

    python -I -S hook.py FOLDER KEY

runs after each tool and before the agent's end. It hands the agent the messages that people have
sent to it, which arrive as files in FOLDER, signed with KEY.

Both run often, so only the standard library is imported.
"""

import json
import os
import stat
import sys
from collections.abc import Mapping
from typing import Any

_TIMEOUT_S = 2.0
# The suffixes of the file of a message, and of one that the agent has read.
SUFFIX = ".txt"
READ = ".told"
_LARGEST = 8_000_000
_FORMS = ("claude", "codex", "gemini")


def refusal(daemon: Mapping[str, str], tool_input: Mapping[str, Any], directory: str) -> str | None:
    """Return why a tool with this input may not write; None if it may."""
    import http.client

    body = json.dumps({"tool": "", "input": dict(tool_input), "directory": directory})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {daemon['token']}"}
    host = daemon["url"].partition("://")[2]
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
        return f"Refused, because Kapelle cannot check the locks: {error or 'no answer'}"


def sign_message(key: str, name: str, text: bytes) -> bytes:
    """Return the content of a message's file: its signature in the first line, then its text."""
    import hmac

    signature = hmac.digest(key.encode(), f"{name}\n".encode() + text, "sha256")
    return signature.hex().encode() + b"\n" + text


def new_messages(folder: str, key: str) -> dict[str, bytes]:
    """Return the texts of unread messages by name; leave out those with a wrong signature."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))
    except OSError:
        return {}
    messages = {}
    for name in names:
        content = _read_regular(os.path.join(folder, name))
        text = content.partition(b"\n")[2]
        if content and sign_message(key, name, text) == content:
            messages[name] = text
    return messages


def take_messages(folder: str, key: str) -> list[str]:
    """Return new messages and mark them as read.

    Of two hooks that run at once, only one gets each message.
    """
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
    """Return the answer to a hook before a tool, in the form of the agent."""
    with open(file, encoding="utf-8") as stream:
        daemon = json.load(stream)
    reason = refusal(daemon, event["tool_input"], event["cwd"])
    if reason is None:
        return {}
    if form == "gemini":
        return {"decision": "deny", "reason": reason}
    decision = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": reason,
    }
    return {"hookSpecificOutput": decision}


def _deliver(event: dict[str, Any], folder: str, key: str) -> dict[str, Any]:
    """Return the answer to a hook that hands over new messages, if there are any."""
    messages = take_messages(folder, key)
    if not messages:
        return {}
    name = event["hook_event_name"]
    text = "A person sends you this message. Follow it.\n\n" + "\n\n".join(messages)
    if name == "Stop":
        # The agent must not end before it has followed the message.
        return {"decision": "block", "reason": text}
    return {"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}}


def _main(place: str, form_or_key: str) -> None:
    event = json.load(sys.stdin)
    if form_or_key in _FORMS:
        reply = _guard(event, place, form_or_key)
    else:
        reply = _deliver(event, place, form_or_key)
    if reply:
        sys.stdout.write(json.dumps(reply))


if __name__ == "__main__":
    _main(*sys.argv[1:])
