"""Follow a script as a real process, with the standard library only, run with python -I -S.

The prompt comes on stdin. The playbook is TOML: rules, each with steps. Events go to stdout, one
JSON object per line. docs/rehearsal.md shows every step.
"""

from __future__ import annotations

import os
import sys
import time
from json import dumps

# Importing typing takes a third of the start time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Number = float
    Table = dict[str, Any]

_CHUNK = 1 << 20


class PlaybookError(Exception):
    """The playbook cannot be followed as it is written."""


class RehearsalScript:
    """Executes steps in a workspace.

    The method play_say is the step `say`. Its parameters are the fields of the step, of the types
    in TYPES. SystemExit ends the script.
    """

    def __init__(self, workspace: str) -> None:
        self.workspace = os.path.realpath(workspace)
        self.line_is_open = False

    def execute(self, steps: list[Table]) -> None:
        for number, step in enumerate(steps, 1):
            STEPS[action_of(step, f"step {number}")](self, **step)
        self.emit("result", "The script was followed to its end.", data={"is_error": False})

    def emit(self, kind: str, text: str = "", name: str = "", data: Table | None = None) -> None:
        event = {"kind": kind, "text": text, "name": name, "data": data}
        line = dumps({key: value for key, value in event.items() if value})
        # Only an event at the start of a line is read.
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

    def write_file(self, relative: str, content: str, mode: str) -> None:
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
        self.write_file(write, content, "w")

    def play_append(self, append: str, content: str = "") -> None:
        self.write_file(append, content, "a")

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
        code = subprocess.run(command, cwd=self.workspace, stdin=subprocess.DEVNULL).returncode
        self.line_is_open = True
        if code not in (ok_codes or [0]):
            self.report_failure(f"the command {run!r} ended with code {code}")
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

        target = None if output else subprocess.DEVNULL
        subprocess.Popen(
            ["/bin/sh", "-c", spawn],
            cwd=self.workspace,
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            start_new_session=detached,
        )

    def play_flood(self, flood: int, line: int = 80) -> None:
        """Print so many bytes, in lines of so many bytes."""
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
    """Return the name of a step's action; raise PlaybookError unless the step is well formed."""
    if not isinstance(step, dict) or not step:
        raise PlaybookError(f"{where} is not a table such as {{say = 'text'}}")
    # A tool step may have a field "result", which alone is a step, too.
    action = "tool" if "tool" in step else next((key for key in step if key in STEPS), None)
    if action is None:
        raise unknown_action(step, where)
    annotations = STEPS[action].__annotations__
    kinds = {key: kind.split(" ")[0] for key, kind in annotations.items()}
    for key, value in step.items():
        expected: Any = TYPES.get(kinds.get(key, ""))
        if expected is None:
            options = ", ".join(kinds.keys() - {action, "return"}) or "none"
            raise PlaybookError(f"{where} ({action}) has no option {key!r}; it has: {options}")
        is_wrong_bool = isinstance(value, bool) and expected is not bool
        if is_wrong_bool or not isinstance(value, expected):
            raise PlaybookError(f"{where} ({action}): {key} = {value!r} has the wrong type")
    return action


def unknown_action(step: Table, where: str) -> PlaybookError:
    """Return the error that a step has no known action, with the nearest name."""
    import difflib

    word = next(iter(step))
    text = f"{where} has no known action: {word!r} is none"
    matches = difflib.get_close_matches(word, STEPS, 1)
    if matches:
        text += f", did you mean {matches[0]!r}?"
    return PlaybookError(text)


def parse_rules(text: str, source: str) -> list[Table]:
    """Return the rules of a playbook, after all of them have been checked."""
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
    """Raise PlaybookError unless a rule is well formed."""
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
    """Return the numbers of attempts for which a rule holds; empty for all."""
    value = rule.get("attempt", [])
    if isinstance(value, list):
        return value
    return [value]


def find_rules(prompt: str, checkout: str, playbook: str | None) -> tuple[list[Any], str, str]:
    """Return the rules to follow, the text they are matched with, and their source."""
    if "```rehearsal" in prompt:
        import re

        block = re.compile(r"^```rehearsal[ \t]*\r?\n(.*?)^```[ \t]*\r?$", re.DOTALL | re.MULTILINE)
        text = "\n".join(block.findall(prompt))
        # The text of a rule must not match the rule itself.
        return parse_rules(text, "the prompt"), block.sub("", prompt), "the prompt"
    path = os.path.join(checkout, playbook or ".kapelle/playbook.toml")
    try:
        with open(path, encoding="utf-8") as file:
            return parse_rules(file.read(), path), prompt, path
    except FileNotFoundError:
        if playbook:
            raise PlaybookError(f"there is no playbook {path}") from None
    first_line = prompt.strip().partition("\n")[0].strip()
    steps = [
        {"say": f"A real agent would now work on: {first_line[:200]}"},
        {"result": "This was a rehearsal without a playbook: nothing was changed."},
    ]
    return [{"do": steps}], prompt, "the built-in script"


def choose(rules: list[Any], text: str, attempt: int, source: str) -> Table:
    """Return the first rule that matches; raise PlaybookError if none does."""
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
    # Importing argparse takes half of the start time.
    options = dict(zip(arguments[::2], arguments[1::2], strict=False))
    script = RehearsalScript(options.get("--workspace", "."))
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        if "--session" in options:
            script.emit("session", options["--session"])
        checkout = options.get("--checkout", script.workspace)
        rules, text, source = find_rules(prompt, checkout, options.get("--playbook"))
        rule = choose(rules, text, int(options.get("--attempt", "1")), source)
        script.execute(rule.get("do", []))
    except BrokenPipeError:
        return 1  # the reader of the output has ended
    except Exception as error:
        script.report_failure(f"The rehearsal cannot continue: {error}.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
