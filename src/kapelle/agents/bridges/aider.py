"""Run aider, which prints text and always exits with 0, and print Kapelle's events.

    python -I -m kapelle.agents.bridges.aider --session FILE --logs DIR [--from FILE] -- aider …

The session is aider's chat history, a file outside the workspace. --from names the history to
continue: the session itself, or another one, which is copied. aider's other files go into --logs.
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
    end = sys.argv.index("--")
    arguments = sys.argv[1:end]
    command = sys.argv[end + 1 :]
    paths = {name: Path(path) for name, path in zip(arguments[::2], arguments[1::2], strict=True)}
    session = paths["--session"]
    logs = paths["--logs"]
    origin = paths.get("--from")
    _open_session(session, origin)
    command += _file_options(session, logs, resume=origin is not None)
    repository = _find_repository()
    if repository is None:
        # Otherwise aider creates a repository.
        command.append("--no-git")
    reader = AiderReader(emit, logs / "aider.events.jsonl", logs / "aider.model.log")
    env = os.environ | _identity(os.environ)
    try:
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)  # the code of a shell for a program that it cannot start
    # SIGTERM ends aider, whose last output must still be read.
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    _follow(process, reader, repository or Path.cwd())
    code = process.wait()
    reader.end(code)
    sys.stdout.flush()
    if reader.wants_login:
        sys.exit(1)
    if code < 0:
        # aider was killed by a signal: end by the same one, without a core dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _open_session(session: Path, origin: Path | None) -> None:
    """Create the session or copy it from its origin; exit if the origin is missing."""
    if origin and not origin.is_file():
        emit("error", f"The chat history {origin} is missing.", "session_lost")
        sys.exit(1)
    if origin and origin != session:
        shutil.copyfile(origin, session)
    session.touch(mode=0o600)
    emit("session", str(session))


def _find_repository() -> Path | None:
    """Return the root of the repository around the working directory, or None."""
    for directory in (Path.cwd(), *Path.cwd().parents):
        if (directory / ".git").exists():
            return directory
    return None


def _follow(process: subprocess.Popen[bytes], reader: AiderReader, root: Path) -> None:
    """Read aider's output until it ends."""
    for line in _lines(process):
        banner_was_over = reader.banner_is_over
        reader.read(line.decode("utf-8", "replace").rstrip("\r"))
        if reader.banner_is_over and not banner_was_over:
            _hide_caches(root)
        if reader.wants_login:
            process.terminate()
    _hide_caches(root)


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield lines until aider ends, even if another process still holds its output open."""
    assert process.stdout is not None
    output = process.stdout.fileno()
    rest = b""
    is_over = False
    while not is_over:
        # Polled before reading, so that the last read gets all that aider has written.
        is_over = process.poll() is not None
        timeout_s = 0.0 if is_over else _LOOK_S
        while select.select([output], [], [], timeout_s)[0]:
            chunk = os.read(output, _CHUNK)
            if not chunk:
                is_over = True
                break
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
    if rest:
        yield rest


def _file_options(session: Path, logs: Path, resume: bool) -> list[str]:
    """Return the options that put aider's files outside of the workspace."""
    argv = ["--chat-history-file", str(session)]
    argv += ["--input-history-file", str(logs / "aider.input")]
    argv += ["--llm-history-file", str(logs / "aider.model.log")]
    argv += ["--analytics-log", str(logs / "aider.events.jsonl")]
    if resume:
        argv.append("--restore-chat-history")
    return argv


def _identity(env: Mapping[str, str]) -> dict[str, str]:
    """Return variables with a name for git.

    Without a name aider writes "Your Name" into the repository's settings.
    """
    count = int(env.get("GIT_CONFIG_COUNT") or 0)
    identity = {"user.name": "Kapelle", "user.email": "kapelle@localhost"}
    variables = {"GIT_CONFIG_COUNT": str(count + len(identity))}
    for number, (key, value) in enumerate(identity.items(), count):
        variables[f"GIT_CONFIG_KEY_{number}"] = key
        variables[f"GIT_CONFIG_VALUE_{number}"] = value
    return variables


def _hide_caches(root: Path) -> None:
    """Keep aider's cache, whose place in the repository cannot be changed, out of commits."""
    for cache in root.glob(".aider.tags.cache.v*"):
        ignore_file = cache / ".gitignore"
        if cache.is_dir() and not ignore_file.exists():
            ignore_file.write_text("*\n", encoding="utf-8")


class AiderReader:
    """Reads aider's output and logs, line by line, and prints them as events.

    Answers and usage come from the logs, where they are complete and exact. Errors are in the
    output only: the model's text ends with a "Tokens:" line, and aider's own messages follow it.
    """

    def __init__(self, emit: Callable[..., None], events: Path, answers: Path) -> None:
        self._emit = emit
        # Start at the end of the file, because an earlier attempt may have written to it.
        self._events = LogReader(events, size(str(events)))
        self._answers = HistoryReader(answers)
        self._waiting: deque[JsonObject] = deque()  # analytics events that are not printed yet
        self._cached_tokens: deque[int] = deque()  # of answers whose usage is not printed yet
        self._output: deque[str] = deque(maxlen=500)
        self._answer = ""
        self._answer_count = 0
        self._message_count = 0
        self._is_answered = False
        self._is_complete = False
        self.banner_is_over = False
        self.wants_login = False

    def read(self, line: str) -> None:
        """Take one line of the output; the events logged before it are printed first."""
        self._read_events()
        if tokens := _TOKENS.match(line):
            self._output.clear()
            self._cached_tokens.append(_count(tokens[1]))
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
            edit = _EDITED.match(line)
            if edit:
                self._emit("tool_call", name="edit", data={"path": edit[1]})

    def _read_banner(self, line: str) -> None:
        model = _MODEL.match(line)
        if model:
            self._emit("model", model[1])
        self.wants_login = self.wants_login or line == _LOGIN
        self.banner_is_over = line.startswith("Repo-map: ")
        if self.banner_is_over:
            self._output.clear()
        elif _PRICE_TABLE not in line:
            self._output.append(line)

    def end(self, code: int) -> None:
        """Print the result or the error.

        Success is an answer to the last message, whose edits aider has applied.
        """
        self._read_events(is_over=True)
        self._emit_answers(is_over=True)
        words = self._last_words()
        if self.wants_login:
            self._emit("error", "No model is set and there is no API key.", "authentication")
        elif code != 0 or not self._is_complete:
            # Without last words the error output explains the end.
            if words and code >= 0:
                self._emit_described("error", words)
        elif any(map(_TOO_LONG.match, self._output)):
            self._emit("error", "\n".join(words.split("\n\n")[:2]), "context_overflow")
        elif any(map(_GAVE_UP.match, self._output)):
            self._emit("error", f"aider gave up after its corrections: {words}", "task")
        elif not self._is_answered or not self._answer.strip():
            self._emit_described("error", words or "The model gave no answer.")
        else:
            self._emit("result", self._answer)

    def _last_words(self) -> str:
        """Return aider's last messages, from the provider's last error on if there is one."""
        words = list(self._output)
        errors = [number for number, line in enumerate(words) if _ERROR.match(line)]
        if errors:
            return "\n".join(words[errors[-1] :]).split("\n\n")[0].strip()[:_LONGEST]
        return "\n".join(words).strip()[-_LONGEST:]

    def _emit_described(self, kind: str, text: str) -> None:
        """Print an error or a notice with the type of the provider's error, if it names one."""
        data = {}
        match = _ERROR.match(text)
        if match:
            # RateLimitError becomes rate_limit_error, as providers write it.
            data["type"] = _HUMP.sub("_", match[1]).lower()
        self._emit(kind, text, data=data)

    def _read_events(self, is_over: bool = False) -> None:
        """Print the new events of aider's analytics, which it only logs."""
        self._waiting.extend(map(json_object, _new_lines(self._events)))
        while self._waiting:
            event = self._waiting[0].text("event")
            # The output line with the cached tokens of this message may not be read yet.
            if event == "message_send" and not (is_over or self._cached_tokens):
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
        """Print the complete answers; the newest, too, once its message is known to be sent."""
        answers = self._answers.take_complete()
        if is_over or self._answer_count + len(answers) < self._message_count:
            newest = self._answers.take_newest()
            if newest or not is_over:
                answers.append(newest)
        for answer in answers:
            self._answer = answer
            self._answer_count += 1
            if answer.strip():
                self._emit("text", answer)

    def _emit_usage(self, properties: JsonObject) -> None:
        cached_tokens = self._cached_tokens.popleft() if self._cached_tokens else 0
        output_tokens = properties.get("completion_tokens")
        if not output_tokens:
            # The provider refused the request, whose tokens aider has only estimated.
            return
        cost = {}
        if properties.get("cost"):
            # aider reports 0 for a model whose price it does not know.
            cost["cost_usd"] = properties["cost"]
        input_tokens = properties.get("prompt_tokens", 0)
        event = usage(input_tokens, output_tokens, cached_tokens, turns=1, **cost)
        self._emit("usage", data=event.data)


def _new_lines(log: LogReader) -> Iterator[str]:
    """Yield the lines that the log has got since the last call."""
    while lines := log.lines():
        yield from (line.text for line in lines)


class HistoryReader:
    """Reads the model's answers in aider's log of its conversation with the model."""

    def __init__(self, path: Path) -> None:
        self._log = LogReader(path, size(str(path)))
        self._lines: list[str] | None = None

    def take_complete(self) -> list[str]:
        """Return the new answers that are complete, because another entry follows them."""
        answers = []
        for line in _new_lines(self._log):
            heading = _HEADING.fullmatch(line)
            if heading:
                answers.append(self.take_newest())
                self._lines = [] if heading[1] == "LLM RESPONSE" else None
            elif self._lines is not None and line.startswith("ASSISTANT "):
                self._lines.append(line.removeprefix("ASSISTANT "))
        return [answer for answer in answers if answer.strip()]

    def take_newest(self) -> str:
        """Return the lines so far of the newest answer, once."""
        answer = "\n".join(self._lines or ())
        self._lines = None
        return answer


def _count(figure: str | None) -> int:
    """Return the number that 850, 1.2k or 3M stands for; 0 for no figure."""
    if not figure:
        return 0
    return round(float(figure.rstrip("kM")) * _UNITS.get(figure[-1], 1))


if __name__ == "__main__":
    main()
