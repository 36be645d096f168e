"""Tells an agent what people say to it while it works.

    python -I -S message.py FOLDER

An agent runs it after each tool and before its end, with the event as JSON on standard input; the
texts are in FOLDER. Only the standard library is used, for it runs often.
"""

import json
import os
import sys


def main() -> None:
    event = json.load(sys.stdin)["hook_event_name"]
    text = "\n\n".join(_taken(sys.argv[1]))
    if not text:
        return
    said = f"A person says to you, go by it: {text}"
    context = {"hookSpecificOutput": {"hookEventName": event, "additionalContext": said}}
    sys.stdout.write(
        json.dumps({"decision": "block", "reason": said} if event == "Stop" else context)
    )


def _taken(folder: str) -> list[str]:
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


if __name__ == "__main__":
    main()
