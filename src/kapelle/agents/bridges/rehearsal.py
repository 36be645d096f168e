"""Plays a scripted part as a real process: standard library only, run with python -I -S.

The prompt comes on stdin. The playbook is TOML: rules, each with steps. Events go to stdout, one
JSON object per line. docs/rehearsal.md shows every step.
"""

from __future__ import annotations

import os
import sys
import time
from json import dumps

# Importing typing would cost a third of the start-up time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Step = dict[str, Any]

_CHUNK = 1 << 20


class PlaybookError(Exception):
    """The playbook cannot be followed as it is written."""


class Ended(Exception):
    """The part is over."""

    @property
    def code(self) -> int:
        return int(self.args[0])


class Script:
    """Executes steps in a workspace; each step is the method of its name."""

    def __init__(self, workspace: str) -> None:
        self.workspace = os.path.realpath(workspace)
        self.line_is_open = False

    def execute(self, steps: list[Step]) -> None:
        for number, step in enumerate(steps, 1):
            getattr(self, f"_{action_of(step, f'step {number}')}")(step)
        self.emit("result", "The part was played to its end.", data={"is_error": False})

    def emit(self, kind: str, text: str = "", name: str = "", data: Step | None = None) -> None:
        event = {"kind": kind, "text": text, "name": name, "data": data}
        line = dumps({key: value for key, value in event.items() if value})
        # An event must start a line of its own to be seen.
        start = "\n" if self.line_is_open else ""
        self.raw(f"{start}{line}\n".encode())

    def raw(self, data: bytes) -> None:
        if data:
            self.line_is_open = not data.endswith(b"\n")
            write_all(1, data)

    def path(self, relative: str) -> str:
        path = os.path.realpath(os.path.join(self.workspace, relative))
        if not path.startswith(self.workspace.rstrip("/") + "/"):
            raise PlaybookError(f"the path {relative!r} leads out of the workspace")
        return path

    def report_failure(self, message: str) -> None:
        self.emit("error", message, "failed")
        self.emit("result", message, data={"is_error": True})

    def _say(self, step: Step) -> None:
        self.emit("text", step["say"])

    def _print(self, step: Step) -> None:
        self.raw(step["print"].encode())

    def _stderr(self, step: Step) -> None:
        write_all(2, step["stderr"].encode() + b"\n")

    def _write(self, step: Step) -> None:
        action, mode = ("write", "w") if "write" in step else ("append", "a")
        path = self.path(step[action])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, mode, encoding="utf-8", newline="") as file:
            file.write(step.get("content", ""))

    _append = _write

    def _delete(self, step: Step) -> None:
        path = self.path(step["delete"])
        if os.path.isdir(path):
            import shutil

            shutil.rmtree(path)
        else:
            os.unlink(path)

    def _run(self, step: Step) -> None:
        import subprocess

        done = subprocess.run(
            ["/bin/sh", "-c", step["run"]], cwd=self.workspace, stdin=subprocess.DEVNULL
        )
        self.line_is_open = True
        if done.returncode not in step.get("ok_codes", [0]):
            self.report_failure(f"the command {step['run']!r} ended with code {done.returncode}")
            raise Ended(1)

    def _sleep(self, step: Step) -> None:
        time.sleep(step["sleep"])

    def _usage(self, step: Step) -> None:
        names = {kind: f"{kind}_tokens" for kind in ("input", "output", "cached")}
        names |= {"turns": "turns", "cost": "cost_usd"}
        unknown = sorted(set(step["usage"]) - set(names))
        if unknown:
            raise PlaybookError(f"usage has {', '.join(names)}, but not {unknown[0]}")
        self.emit("usage", data={names[key]: value for key, value in step["usage"].items()})

    def _tool(self, step: Step) -> None:
        self.emit("tool_call", name=step["tool"], data=step.get("input"))
        if "result" in step:
            self.emit("tool_result", step["result"], step["tool"])

    def _session(self, step: Step) -> None:
        self.emit("session", step["session"])

    def _ask(self, step: Step) -> None:
        self.emit("question", step["ask"])
        raise Ended(0)

    def _rate_limit(self, step: Step) -> None:
        at = time.gmtime(time.time() + step["rate_limit"].get("reset_in_s", 60))
        retry_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", at)
        message = f"The rate limit is reached until {retry_at}."
        self.emit("error", message, "rate_limit", {"retry_at": retry_at})
        raise Ended(1)

    def _fail(self, step: Step) -> None:
        self.report_failure(step["fail"])
        raise Ended(step.get("code", 1))

    def _exit(self, step: Step) -> None:
        raise Ended(step["exit"])

    def _crash(self, step: Step) -> None:
        import signal

        name = step["crash"].upper().removeprefix("SIG")
        number = getattr(signal, f"SIG{name}", None)
        if number is None:
            raise PlaybookError(f"there is no signal {step['crash']!r}; one is KILL")
        if name not in {"KILL", "STOP"}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _hang(self, step: Step) -> None:
        import signal

        if step.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        while step["hang"]:
            signal.pause()

    def _spawn(self, step: Step) -> None:
        import subprocess

        output = None if step.get("output") else subprocess.DEVNULL
        subprocess.Popen(
            ["/bin/sh", "-c", step["spawn"]],
            cwd=self.workspace,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=step.get("detached", False),
        )

    def _flood(self, step: Step) -> None:
        total, length = step["flood"], step.get("line", 80)
        letters = b"abcdefghijklmnopqrstuvwxyz012345" * (_CHUNK // 32)
        for offset in range(0, total, _CHUNK):
            chunk = bytearray(letters[: min(_CHUNK, total - offset)])
            ends = range(length - 1 - offset % length, len(chunk), length)
            chunk[ends.start :: length] = b"\n" * len(ends)
            if offset + len(chunk) == total:
                chunk[-1:] = b"\n"
            self.raw(bytes(chunk))

    def _result(self, step: Step) -> None:
        self.emit("result", step["result"], data={"is_error": False})
        raise Ended(0)


# For each step: the type of its value, and the type of each option.
STEPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "say": (str, {}),
    "print": (str, {}),
    "stderr": (str, {}),
    "write": (str, {"content": str}),
    "append": (str, {"content": str}),
    "delete": (str, {}),
    "run": (str, {"ok_codes": list}),
    "sleep": ((int, float), {}),
    "usage": (dict, {}),
    "tool": (str, {"input": dict, "result": str}),
    "session": (str, {}),
    "ask": (str, {}),
    "rate_limit": (dict, {}),
    "fail": (str, {"code": int}),
    "exit": (int, {}),
    "crash": (str, {}),
    "hang": (bool, {"stubborn": bool}),
    "spawn": (str, {"detached": bool, "output": bool}),
    "flood": (int, {"line": int}),
    "result": (str, {}),
}


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def action_of(step: Any, where: str) -> str:
    """The name of a step's action; raises PlaybookError unless the step is well formed."""
    if not isinstance(step, dict) or not step:
        raise PlaybookError(f"{where} is not a table such as {{say = 'text'}}")
    # A tool step may have a result, which alone is a step too.
    action = "tool" if "tool" in step else next((key for key in step if key in STEPS), None)
    if action is None:
        import difflib

        word = next(iter(step))
        near = [f", did you mean {name!r}?" for name in difflib.get_close_matches(word, STEPS, 1)]
        raise PlaybookError(f"{where} has no known action: {word!r} is none{''.join(near)}")
    kind, options = STEPS[action]
    for key, value in step.items():
        wanted = kind if key == action else options.get(key)
        if wanted is None:
            known = ", ".join(options) or "none"
            raise PlaybookError(f"{where} ({action}) has no option {key!r}; it has: {known}")
        if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
            raise PlaybookError(f"{where} ({action}): {key} = {value!r} has the wrong type")
    return action


def parse_rules(text: str, source: str) -> list[dict[str, Any]]:
    """The rules of a playbook, all checked before any is played."""
    import tomllib

    try:
        book = tomllib.loads(text)
    except ValueError as error:
        raise PlaybookError(f"{source} is not valid TOML: {error}") from None
    if set(book) == {"do"}:
        book = {"rule": [book]}
    rules = book.get("rule")
    if set(book) != {"rule"} or not isinstance(rules, list):
        raise PlaybookError(f"{source} must hold [[rule]] tables, or only [[do]] steps")
    for number, rule in enumerate(rules, 1):
        check_rule(rule, f"rule {number} of {source}")
    return rules


def check_rule(rule: Any, where: str) -> None:
    unknown = sorted(set(rule) - {"match", "attempt", "do"}) if isinstance(rule, dict) else ["it"]
    if unknown:
        raise PlaybookError(f"{where} has match, attempt and do, but not {unknown[0]}")
    if not isinstance(rule.get("match", ""), str):
        raise PlaybookError(f"{where}: match is not a text")
    if not all(type(number) is int for number in attempts_of(rule)):
        raise PlaybookError(f"{where}: attempt is not a number or a list of numbers")
    steps = rule.get("do", [])
    if not isinstance(steps, list):
        raise PlaybookError(f"{where}: do is not a list of steps")
    for number, step in enumerate(steps, 1):
        action_of(step, f"step {number} of {where}")


def attempts_of(rule: dict[str, Any]) -> list[Any]:
    value = rule.get("attempt", [])
    return value if isinstance(value, list) else [value]


def find_rules(prompt: str, checkout: str, playbook: str | None) -> tuple[list[Any], str, str]:
    """The rules to follow, the text they are matched against, and where they stand."""
    if "```rehearsal" in prompt:
        import re

        block = re.compile(r"^```rehearsal[ \t]*\r?\n(.*?)^```[ \t]*\r?$", re.DOTALL | re.MULTILINE)
        text = "\n".join(block.findall(prompt))
        # A rule's own words must not make it match.
        return parse_rules(text, "the prompt"), block.sub("", prompt), "the prompt"
    path = os.path.join(checkout, playbook or ".kapelle/playbook.toml")
    try:
        with open(path, encoding="utf-8") as file:
            return parse_rules(file.read(), path), prompt, path
    except FileNotFoundError:
        if playbook:
            raise PlaybookError(f"there is no playbook {path}") from None
    first = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
    steps = [
        {"say": f"A real agent would now work on: {first[:200]}"},
        {"result": "This was a rehearsal without a playbook: nothing was changed."},
    ]
    return [{"do": steps}], prompt, "the built-in part"


def choose(rules: list[Any], text: str, attempt: int, source: str) -> dict[str, Any]:
    """The first rule that fits; raises PlaybookError when none does."""
    for number, rule in enumerate(rules, 1):
        attempts = attempts_of(rule)
        if attempts and attempt not in attempts:
            continue
        if "match" not in rule:
            return dict(rule)
        import re

        try:
            if re.search(rule["match"], text):
                return dict(rule)
        except re.error as error:
            where = f"rule {number}: match is not a regular expression"
            raise PlaybookError(f"{where}: {error}") from None
    raise PlaybookError(f"no rule of {source} matches this prompt on attempt {attempt}")


def main(arguments: list[str]) -> int:
    # argparse would cost half of the start-up time.
    given = dict(zip(arguments[::2], arguments[1::2], strict=False))
    script = Script(given.get("--workspace", "."))
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        if "--session" in given:
            script.emit("session", given["--session"])
        checkout = given.get("--checkout", script.workspace)
        rules, text, source = find_rules(prompt, checkout, given.get("--playbook"))
        rule = choose(rules, text, int(given.get("--attempt", "1")), source)
        script.execute(rule.get("do", []))
    except Ended as end:
        return end.code
    except BrokenPipeError:
        return 1  # nobody reads the output any more
    except Exception as error:
        script.report_failure(f"The rehearsal cannot go on: {error}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
