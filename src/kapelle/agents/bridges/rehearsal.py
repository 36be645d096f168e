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

    Number = float
    Table = dict[str, Any]

_CHUNK = 1 << 20


class PlaybookError(Exception):
    """The playbook cannot be followed as it is written."""


class RehearsalScript:
    """Executes steps in a workspace: play_say is the step say, and its parameters are what a
    playbook may write there, of the types in TYPES. SystemExit ends the part."""

    def __init__(self, workspace: str) -> None:
        self.workspace = os.path.realpath(workspace)
        self.line_is_open = False

    def execute(self, steps: list[Table]) -> None:
        for number, step in enumerate(steps, 1):
            STEPS[action_of(step, f"step {number}")](self, **step)
        self.emit("result", "The part was played to its end.", data={"is_error": False})

    def emit(self, kind: str, text: str = "", name: str = "", data: Table | None = None) -> None:
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

    def put(self, relative: str, content: str, mode: str) -> None:
        path = self.path(relative)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, mode, encoding="utf-8", newline="") as file:
            file.write(content)

    def play_say(self, say: str) -> None:
        self.emit("text", say)

    def play_print(self, print: str) -> None:
        self.raw(print.encode())

    def play_stderr(self, stderr: str) -> None:
        write_all(2, stderr.encode() + b"\n")

    def play_write(self, write: str, content: str = "") -> None:
        self.put(write, content, "w")

    def play_append(self, append: str, content: str = "") -> None:
        self.put(append, content, "a")

    def play_delete(self, delete: str) -> None:
        path = self.path(delete)
        if os.path.isdir(path):
            import shutil

            shutil.rmtree(path)
        else:
            os.unlink(path)

    def play_run(self, run: str, ok_codes: list[int] | None = None) -> None:
        import subprocess

        command = ["/bin/sh", "-c", run]
        done = subprocess.run(command, cwd=self.workspace, stdin=subprocess.DEVNULL)
        self.line_is_open = True
        if done.returncode not in (ok_codes or [0]):
            self.report_failure(f"the command {run!r} ended with code {done.returncode}")
            sys.exit(1)

    def play_sleep(self, sleep: Number) -> None:
        time.sleep(sleep)

    def play_usage(self, usage: Table) -> None:
        names = {kind: f"{kind}_tokens" for kind in ("input", "output", "cached")}
        names |= {"turns": "turns", "cost": "cost_usd"}
        unknown = sorted(set(usage) - set(names))
        if unknown:
            raise PlaybookError(f"usage has {', '.join(names)}, but not {unknown[0]}")
        self.emit("usage", data={names[key]: value for key, value in usage.items()})

    def play_tool(self, tool: str, input: Table | None = None, result: str | None = None) -> None:
        self.emit("tool_call", name=tool, data=input)
        if result is not None:
            self.emit("tool_result", result, tool)

    def play_session(self, session: str) -> None:
        self.emit("session", session)

    def play_ask(self, ask: str) -> None:
        self.emit("question", ask)
        sys.exit(0)

    def play_rate_limit(self, rate_limit: Table) -> None:
        at = time.gmtime(time.time() + rate_limit.get("reset_in_s", 60))
        retry_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", at)
        message = f"The rate limit is reached until {retry_at}."
        self.emit("error", message, "rate_limit", {"retry_at": retry_at})
        sys.exit(1)

    def play_fail(self, fail: str, code: int = 1) -> None:
        self.report_failure(fail)
        sys.exit(code)

    def play_exit(self, exit: int) -> None:
        sys.exit(exit)

    def play_crash(self, crash: str) -> None:
        import signal

        name = crash.upper().removeprefix("SIG")
        number = getattr(signal, f"SIG{name}", None)
        if number is None:
            raise PlaybookError(f"there is no signal {crash!r}; one is KILL")
        if name not in {"KILL", "STOP"}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def play_hang(self, hang: bool, stubborn: bool = False) -> None:
        import signal

        if stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        while hang:
            signal.pause()

    def play_spawn(self, spawn: str, detached: bool = False, output: bool = False) -> None:
        import subprocess

        where = None if output else subprocess.DEVNULL
        subprocess.Popen(
            ["/bin/sh", "-c", spawn],
            cwd=self.workspace,
            stdin=subprocess.DEVNULL,
            stdout=where,
            stderr=where,
            start_new_session=detached,
        )

    def play_flood(self, flood: int, line: int = 80) -> None:
        letters = b"abcdefghijklmnopqrstuvwxyz012345" * (_CHUNK // 32)
        for offset in range(0, flood, _CHUNK):
            chunk = bytearray(letters[: min(_CHUNK, flood - offset)])
            ends = range(line - 1 - offset % line, len(chunk), line)
            chunk[ends.start :: line] = b"\n" * len(ends)
            if offset + len(chunk) == flood:
                chunk[-1:] = b"\n"
            self.raw(bytes(chunk))

    def play_result(self, result: str) -> None:
        self.emit("result", result, data={"is_error": False})
        sys.exit(0)


STEPS = {
    name.removeprefix("play_"): method
    for name, method in vars(RehearsalScript).items()
    if name.startswith("play_")
}
TYPES = {
    "str": str,
    "int": int,
    "Number": (int, float),
    "bool": bool,
    "list[int]": list,
    "Table": dict,
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
    kinds = {key: kind.split(" ")[0] for key, kind in STEPS[action].__annotations__.items()}
    for key, value in step.items():
        wanted: Any = TYPES.get(kinds.get(key, ""))
        if wanted is None:
            known = ", ".join(kinds.keys() - {action, "return"}) or "none"
            raise PlaybookError(f"{where} ({action}) has no option {key!r}; it has: {known}")
        if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
            raise PlaybookError(f"{where} ({action}): {key} = {value!r} has the wrong type")
    return action


def parse_rules(text: str, source: str) -> list[Table]:
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
    if isinstance(rule, dict):
        unknown = sorted(set(rule) - {"match", "attempt", "do"})
    else:
        unknown = ["it"]
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


def attempts_of(rule: Table) -> list[Any]:
    value = rule.get("attempt", [])
    if isinstance(value, list):
        return value
    return [value]


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


def choose(rules: list[Any], text: str, attempt: int, source: str) -> Table:
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
    script = RehearsalScript(given.get("--workspace", "."))
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        if "--session" in given:
            script.emit("session", given["--session"])
        checkout = given.get("--checkout", script.workspace)
        rules, text, source = find_rules(prompt, checkout, given.get("--playbook"))
        rule = choose(rules, text, int(given.get("--attempt", "1")), source)
        script.execute(rule.get("do", []))
    except BrokenPipeError:
        return 1  # nobody reads the output any more
    except Exception as error:
        script.report_failure(f"The rehearsal cannot go on: {error}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
