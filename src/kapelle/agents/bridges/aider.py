"""Runs aider, which prints text and exits with 0 whatever happens, and prints Kapelle's events.

    python -I -m kapelle.agents.bridges.aider --session FILE --logs DIR [--from FILE] -- aider …

The session is aider's chat history, a file outside the workspace. --from names the one to go on
with: the session itself, or another of which it becomes a copy. Everything else that aider notes
goes into --logs.
"""

from __future__ import annotations

import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kapelle.agents.bridges.base import emit
from kapelle.agents.events import JsonObject, json_object, usage
from kapelle.runner.output import LogReader
from kapelle.runner.shim.files import size

_MODEL = re.compile(r"(?:Main model|Model): (\S+) with .+ edit format")
_TOKENS = re.compile(
    r"Tokens: \S+ sent(?:, \S+ cache write)?(?:, (\S+) cache hit)?, \S+ received\."
)
_RETRY = re.compile(r"Retrying in [\d.]+ seconds\.\.\.")
_EDITED = re.compile(r"Applied edit to (.+)")
_GAVE_UP = re.compile(r"Only \d+ reflections allowed, stopping\.")
_TOO_LONG = re.compile(r"Model \S+ has hit a token limit!")
_MALFORMED = "The LLM did not conform to the edit format."
_LOGIN = "OpenRouter provides free and paid access to many LLMs."
_PRICE_TABLE = "model_prices_and_context_window.json"
_UNITS = {"k": 1000, "M": 1_000_000}
_LONGEST = 4000
_CHUNK = 1 << 16
_LOOK_S = 0.5
_HEADING = re.compile(r"(TO LLM|LLM RESPONSE) \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_ERROR = re.compile(r"litellm\.(?:exceptions\.)?(\w+): ")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def main() -> None:
    own = sys.argv[1 : (end := sys.argv.index("--"))]
    command = sys.argv[end + 1 :]
    given = {name: Path(value) for name, value in zip(own[::2], own[1::2], strict=True)}
    session = given["--session"]
    logs = given["--logs"]
    origin = given.get("--from")
    if origin and not origin.is_file():
        emit("error", f"Its chat history {origin} is gone.", "session_lost")
        sys.exit(1)
    if origin and origin != session:
        shutil.copyfile(origin, session)
    session.touch(mode=0o600)
    emit("session", str(session))
    # The root of the repository around; without one aider would make one.
    places = (Path.cwd(), *Path.cwd().parents)
    repository = next((place for place in places if (place / ".git").exists()), None)
    command += _files(session, logs, resume=origin is not None)
    command += [] if repository else ["--no-git"]
    report = AiderReader(emit, logs / "aider.events.jsonl", logs / "aider.model.log")
    env = os.environ | _identity(os.environ)
    try:
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)  # what a shell says of a program that it cannot start
    # Whoever ends this means aider, whose last words are still to be told.
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    _follow(process, report, repository or Path.cwd())
    code = process.wait()
    report.end(code)
    sys.stdout.flush()
    if code < 0 and not report.wants_login:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(1 if report.wants_login else code)


def _follow(process: subprocess.Popen[bytes], report: AiderReader, root: Path) -> None:
    for line in _lines(process):
        banner_was_over = report.banner_is_over
        report.read(line.decode("utf-8", "replace").rstrip("\r"))
        if report.banner_is_over and not banner_was_over:
            _hide_caches(root)
        if report.wants_login:
            process.terminate()
    _hide_caches(root)


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Each line without its end, until aider is gone, whoever else holds its output."""
    assert process.stdout is not None
    output = process.stdout.fileno()
    rest = b""
    is_over = False
    while not is_over:
        # Asked before the reading: what it wrote until its end is then all there.
        is_over = process.poll() is not None
        while select.select([output], [], [], 0 if is_over else _LOOK_S)[0]:
            if not (chunk := os.read(output, _CHUNK)):
                is_over = True
                break
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
    if rest:
        yield rest


def _files(session: Path, logs: Path, resume: bool) -> list[str]:
    """Options that keep aider's own files out of the workspace and let us read them."""
    return [
        *("--chat-history-file", str(session)),
        *("--input-history-file", str(logs / "aider.input")),
        *("--llm-history-file", str(logs / "aider.model.log")),
        *("--analytics-log", str(logs / "aider.events.jsonl")),
        *(["--restore-chat-history"] if resume else []),
    ]


def _identity(env: Mapping[str, str]) -> dict[str, str]:
    """A name for git: aider writes "Your Name" into the repository's settings if it finds none."""
    count = int(env.get("GIT_CONFIG_COUNT") or 0)
    added = {"user.name": "Kapelle", "user.email": "kapelle@localhost"}
    variables = {"GIT_CONFIG_COUNT": str(count + len(added))}
    for number, (key, value) in enumerate(added.items(), count):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    return variables


def _hide_caches(root: Path) -> None:
    """Keep its map of the repository, which it insists to store there, out of commits."""
    for cache in root.glob(".aider.tags.cache.v*"):
        mark = cache / ".gitignore"
        if cache.is_dir() and not mark.exists():
            mark.write_text("*\n", encoding="utf-8")


class AiderReader:
    """Reads what aider prints and logs, line by line, and prints it as events.

    Its answers and its usage come from its logs, where they are whole and exact. What goes wrong is
    only in its output: there it speaks itself after the last "Tokens:" line, and the model before.
    """

    def __init__(self, emit: Callable[..., None], events: Path, answers: Path) -> None:
        self._emit = emit
        # What comes from now on: an earlier attempt may have left some.
        self._events, self._answers = LogReader(events, size(str(events))), HistoryReader(answers)
        self._waiting: deque[JsonObject] = deque()
        self._cached: deque[int] = deque()
        self._output: deque[str] = deque(maxlen=500)
        self._answer = ""
        self._answer_count = self._message_count = 0
        self._is_answered = self._is_complete = False
        self.banner_is_over = self.wants_login = False

    def read(self, line: str) -> None:
        """One line of its output; what was logged before it is printed before it."""
        self._read_events()
        if found := _TOKENS.match(line):
            self._output.clear()
            self._cached.append(_count(found[1]))
        elif _RETRY.match(line):
            self._emit_described("notice", self._last_words())
            self._output.clear()
        elif line == _MALFORMED:
            self._emit("notice", line)
            self._output.append(line)
        elif not self.banner_is_over:
            self._read_banner(line)
        elif _PRICE_TABLE not in line:
            self._output.append(line)
            if found := _EDITED.match(line):
                self._emit("tool_call", name="edit", data={"path": found[1]})

    def _read_banner(self, line: str) -> None:
        if found := _MODEL.match(line):
            self._emit("model", found[1])
        self.wants_login = self.wants_login or line == _LOGIN
        self.banner_is_over = line.startswith("Repo-map: ")
        if self.banner_is_over:
            self._output.clear()
        elif _PRICE_TABLE not in line:
            self._output.append(line)

    def end(self, code: int) -> None:
        """Print how it ended; success is a last message that was answered and acted upon."""
        self._read_events(is_over=True)
        self._emit_answers(is_over=True)
        said = self._last_words()
        if self.wants_login:
            self._emit("error", "No model is set and there is no API key.", "authentication")
        elif code != 0 or not self._is_complete:
            # If it said nothing here, its error output tells more than we could.
            if said and code >= 0:
                self._emit_described("error", said)
        elif any(map(_TOO_LONG.match, self._output)):
            self._emit("error", "\n".join(said.split("\n\n")[:2]), "context_overflow")
        elif any(map(_GAVE_UP.match, self._output)):
            self._emit("error", f"aider gave up after its corrections: {said}", "task")
        elif not self._is_answered or not self._answer.strip():
            self._emit_described("error", said or "The model gave no answer.")
        else:
            self._emit("result", self._answer)

    def _last_words(self) -> str:
        """Its own last words, from the provider's error on if there is one."""
        words = list(self._output)
        errors = [number for number, line in enumerate(words) if _ERROR.match(line)]
        if errors:
            return "\n".join(words[errors[-1] :]).split("\n\n")[0].strip()[:_LONGEST]
        return "\n".join(words).strip()[-_LONGEST:]

    def _emit_described(self, kind: str, text: str) -> None:
        found = _ERROR.match(text)
        # RateLimitError becomes rate_limit_error, as providers write it.
        if found:
            data = {"type": _HUMP.sub("_", found[1]).lower()}
        else:
            data = {}
        self._emit(kind, text, data=data)

    def _read_events(self, is_over: bool = False) -> None:
        # Its analytics, which it sends to nobody.
        self._waiting.extend(map(json_object, _new_lines(self._events)))
        while self._waiting:
            # It logs this after the line that tells of cached tokens.
            event = self._waiting[0].text("event")
            if event == "message_send" and not (is_over or self._cached):
                return
            self._apply(event, self._waiting.popleft().mapping("properties"))

    def _apply(self, event: str, properties: JsonObject) -> None:
        match event:
            case "message_send_starting":
                self._is_answered = False
            case "message_send":
                self._is_answered = True
                self._message_count += 1
                self._emit_answers()
                self._emit_usage(properties)
            case "exit":
                self._is_complete = properties.get("reason") == "Completed --message-file"

    def _emit_answers(self, is_over: bool = False) -> None:
        """All that are whole: the newest too, unless its message is yet to be learned of."""
        answers = self._answers.new()
        if is_over or self._answer_count + len(answers) < self._message_count:
            newest = self._answers.last()
            answers += [newest] if newest or not is_over else []
        for self._answer in answers:
            self._answer_count += 1
            if self._answer.strip():
                self._emit("text", self._answer)

    def _emit_usage(self, properties: JsonObject) -> None:
        if self._cached:
            cached = self._cached.popleft()
        else:
            cached = 0
        # It also counts, by its own estimate, what the provider refused to read.
        if not properties.get("completion_tokens"):
            return
        sent = properties.get("prompt_tokens", 0)
        received = properties["completion_tokens"]
        # Where it knows no price it says 0.
        if properties.get("cost"):
            cost = {"cost_usd": properties["cost"]}
        else:
            cost = {}
        self._emit("usage", data=usage(sent, received, cached, turns=1, **cost).data)


def _new_lines(log: LogReader) -> Iterator[str]:
    while lines := log.lines():
        yield from (line.text for line in lines)


class HistoryReader:
    """Its conversation with the model, of which only the model's part is read."""

    def __init__(self, path: Path) -> None:
        self._log = LogReader(path, size(str(path)))
        self._lines: list[str] | None = None

    def new(self) -> list[str]:
        """Answers that something follows, so that they are whole."""
        found = []
        for line in _new_lines(self._log):
            if heading := _HEADING.fullmatch(line):
                found.append(self.last())
                if heading[1] == "LLM RESPONSE":
                    self._lines = []
                else:
                    self._lines = None
            elif self._lines is not None and line.startswith("ASSISTANT "):
                self._lines.append(line.removeprefix("ASSISTANT "))
        return [answer for answer in found if answer.strip()]

    def last(self) -> str:
        """What there is of the newest answer, which new() has not returned yet; only once."""
        answer = "\n".join(self._lines or ())
        self._lines = None
        return answer


def _count(figure: str | None) -> int:
    """The number behind 850, 1.2k or 3M."""
    if not figure:
        return 0
    return round(float(figure.rstrip("kM")) * _UNITS.get(figure[-1], 1))


if __name__ == "__main__":
    main()
