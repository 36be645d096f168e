"""Any command line as an agent: a template in the settings, judged by its exit code.

If the output is JSON, the settings name the fields by dotted paths: `message.content.0.text`.
"""

import json
import re
from dataclasses import replace
from typing import Any

from kapelle.agents.base import (
    Access,
    AgentAdapter,
    AgentCommand,
    AgentRequest,
    AgentVerdict,
    Capabilities,
    Summary,
)
from kapelle.agents.events import AgentEvent, EventKind, json_object, parse_event
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings
from kapelle.settings.models import ReadJson

_PLACEHOLDER = re.compile(r"\{(prompt|system|combined|model|workspace|prompt_file|session)\}")
_CARRIES_PROMPT = frozenset({"prompt", "combined", "prompt_file"})
_UNNAMED = "It reported an error without a message."
# The first line of a JSON document of several lines, and the tokens that change its depth.
_OPENS = re.compile(r'\{\s*(?:"|$)|\[\s*(?:[\[{]|$)')
# A string without its closing quotation mark matches to the end of the line, possessively:
# otherwise the search would start again at each quotation mark in it, which takes quadratic time.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_LARGEST = 1 << 26


class CommandAgent(AgentAdapter):
    """Runs settings.command with its placeholders filled in.

    The prompt goes to stdin if no placeholder takes it.
    """

    access = Access(needed=False)
    restraint = "Kapelle cannot limit the permissions of a command template"

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        self.reads_whole_output = settings.output != "text"
        if settings.output == "json":
            self.begins_with = b"{["
        self._lines: list[str] = []  # the lines so far of a document of several lines
        self._depth = 0  # of nested brackets at the end of these lines
        self._size = 0
        self.capabilities = _capabilities(settings)

    @property
    def asked_for(self) -> str:
        return next(iter(self.settings.command), "")

    def installed(self) -> str | None:
        # A relative program lies in the workspace, which is known only when it starts.
        if _is_relative(self.asked_for):
            return self.asked_for
        return super().installed()

    def command(self, request: AgentRequest) -> AgentCommand:
        self.executable()
        template = request.settings.command
        values = _values(request)
        argv = _fill(template, values) + request.settings.extra_args
        self._check(argv, request)
        placeholders = _placeholders(template)
        takes_prompt = bool(placeholders & _CARRIES_PROMPT)
        if request.interactive:
            if not takes_prompt:
                self.refuse_prompt(request)
            return AgentCommand(argv, dict(request.settings.env))
        stdin = None
        if not takes_prompt:
            text = values["prompt" if "system" in placeholders else "combined"]
            stdin = text.encode("utf-8", "replace")
        return AgentCommand(argv, dict(request.settings.env), stdin)

    def parse(self, line: str) -> list[AgentEvent]:
        match self.settings.output:
            case "events":
                return [_raise_only(event) for event in parse_event(line)]
            case "json":
                return self._parse_json(line)
            case "text":
                return [AgentEvent("text", text=line.rstrip("\r\n"))]

    def judge(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        if self.settings.output == "events":
            return super().judge(summary, exit, tail)
        if self.settings.output == "json":
            return self._judge_json(summary, exit, tail)
        if exit.kind != "exited":
            return AgentVerdict(False, self.exit_sentence(exit, tail))
        result = summary.tail.strip() or None
        if exit.code != 0:
            return AgentVerdict(False, self.exit_sentence(exit, tail), result, "failure")
        return AgentVerdict(True, result=result, claimed="success")

    def _judge_json(self, summary: Summary, exit: Exit, tail: str) -> AgentVerdict:
        """Call it a success if the exit is clean, there is no error, and the answer was printed."""
        read = self.settings.read
        if read.result:
            answer = summary.result
        else:
            answer = summary.tail.strip() or None
        if exit.kind != "exited" or (exit.code != 0 and not summary.error):
            return AgentVerdict(False, self.exit_sentence(exit, tail), answer, summary.claimed)
        if summary.error:
            return AgentVerdict(False, summary.error.text, answer, "failure")
        if answer is None:
            path = read.result or read.text
            reason = f"The agent exited with code 0 without printing {path}."
            return AgentVerdict(False, reason)
        return AgentVerdict(True, result=answer, claimed="success")

    def _parse_json(self, line: str) -> list[AgentEvent]:
        """Return the events of a line, or of the document of several lines that it completes.

        A line inside such a document never begins with an object or array at its very start. If a
        line does, the lines before it were no document.
        """
        document = None
        is_inside = bool(self._lines) and not line.startswith(('{"', "[{"))
        if not is_inside:
            document = json_document(line)
        if document is None and (self._lines or _OPENS.match(line)):
            self._lines.append(line)
            self._size += len(line)
            steps = {"{": 1, "[": 1, "}": -1, "]": -1}
            self._depth += sum(steps.get(mark, 0) for mark in _BRACKET.findall(line))
            if self._depth > 0 and self._size < _LARGEST:
                return []
            document = json_document("\n".join(self._lines))
        self._lines = []
        self._depth = 0
        self._size = 0
        if document is None:
            return []
        return json_events(document, self.settings.read)

    def _check(self, argv: list[str], request: AgentRequest) -> None:
        read = request.settings.read
        key = f"agents.{self.name}.command"
        if request.settings.output == "json" and not read.text and not read.result:
            text = f"The agent {self.name} prints JSON, but no setting names the answer's field."
            hint = f"kapelle config set agents.{self.name}.read.result path.of.the.answer"
            raise AgentMisconfigured(text, hint=hint, remedy="")
        hint = f"Use {{prompt_file}} in {key}; without a placeholder the prompt goes to stdin."
        for argument in argv:
            self.require_argument(argument, "the prompt", hint)
            if not argument or "\0" in argument:
                text = f"{key} results in an argument that is empty or has a NUL."
                raise AgentMisconfigured(text)
        program = argv[0]
        if _is_relative(program):
            program = str(request.workspace / program)
        if not self.on_path(program, request.settings.env):
            raise self.not_found(argv[0])


def _capabilities(settings: AgentSettings) -> Capabilities:
    """Return the capabilities by the placeholders and the fields that the settings name."""
    placeholders = _placeholders(settings.command)
    read = settings.read
    if settings.output == "events":
        has_session = has_usage = has_cost = True
    elif settings.output == "json":
        has_session = bool(read.session)
        has_usage = bool(read.input_tokens or read.output_tokens)
        has_cost = bool(read.cost_usd)
    else:
        has_session = has_usage = has_cost = False
    by_stdin = not placeholders & _CARRIES_PROMPT
    return Capabilities(
        resume="session" in placeholders and has_session,
        model="model" in placeholders,
        system_prompt=by_stdin or bool(placeholders & {"system", "combined"}),
        usage=has_usage,
        cost=has_cost,
        terminal=True,
    )


def _raise_only(event: AgentEvent) -> AgentEvent:
    """Return the event so that its usage may raise a sum, but never lower it.

    Any code that such an agent runs can print events, and must not reset a budget.
    """
    if event.kind != "usage":
        return event
    return replace(event, data={**event.data, "at_least": True})


def _values(request: AgentRequest) -> dict[str, str]:
    """Return the values of the placeholders."""
    system = request.system_prompt or ""
    return {
        "prompt": request.prompt,
        "system": system,
        "combined": f"{system}\n\n{request.prompt}" if system else request.prompt,
        "model": request.chosen_model or "",
        "workspace": str(request.workspace),
        "prompt_file": str(request.prompt_file),
        "session": request.session_id or "",
    }


def _placeholders(template: list[str]) -> set[str]:
    """Return the names of the placeholders in a template."""
    names: set[str] = set()
    for argument in template:
        names.update(_PLACEHOLDER.findall(argument))
    return names


def _fill(template: list[str], values: dict[str, str]) -> list[str]:
    """Return the template with its values; drop an argument without value, with its option."""
    argv: list[str] = []
    for argument in template:
        if any(not values[name] for name in _PLACEHOLDER.findall(argument)):
            if _PLACEHOLDER.fullmatch(argument) and len(argv) > 1 and argv[-1].startswith("-"):
                argv.pop()
            continue
        argv.append(_PLACEHOLDER.sub(lambda match: values[match[1]], argument))
    return argv


def _is_relative(program: str) -> bool:
    return "/" in program and not program.startswith("/")


def json_events(document: object, read: ReadJson) -> list[AgentEvent]:
    """Return the events that a document holds."""
    kinds: tuple[EventKind, ...] = ("session", "model", "text")
    events = []
    for kind in kinds:
        text = text_at(document, getattr(read, kind))
        if text:
            events.append(AgentEvent(kind, text))
    usage: dict[str, float] = {}
    for name in ("input_tokens", "output_tokens", "cached_tokens", "cost_usd"):
        number = number_at(document, getattr(read, name))
        if number is not None:
            usage[name] = number
    if usage:
        # A document with usage is the answer of a model.
        events.append(AgentEvent("usage", data={**usage, "turns": 1}))
    return events + _outcome(document, read)


def _outcome(document: object, read: ReadJson) -> list[AgentEvent]:
    """Return the error and the result that a document holds."""
    result = text_at(document, read.result)
    error = value_at(document, read.error)
    events = []
    if error:
        message = text_at(document, read.error)
        if error is True:
            # The field of the error is a mere flag: the answer is the message.
            message = result or _UNNAMED
        events.append(AgentEvent("error", text=message))
    if value_at(document, read.result) is not None:
        data = {"is_error": True} if error else {}
        events.append(AgentEvent("result", text=result, data=data))
    return events


def json_document(line: str) -> dict[str, Any] | list[Any] | None:
    """Return the JSON object or array that a line holds, or None."""
    if not line.lstrip().startswith("["):
        return json_object(line) or None
    array = json_object(f'{{"array": {line}}}').get("array")
    if isinstance(array, list):
        return array
    return None


def value_at(document: object, path: str | None) -> object:
    """Return the value at a dotted path, or None.

    Names lead into objects, numbers into arrays; a negative number counts from the end.
    """
    if not path:
        return None
    value = document
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list):
            value = _item_at(value, step)
        else:
            return None
    return value


def _item_at(items: list[Any], step: str) -> object:
    """Return the item that a step of a path names, or None."""
    # int() refuses a number of thousands of digits, which is no index anyway.
    if not step.removeprefix("-").isdecimal() or len(step) >= 20:
        return None
    index = int(step)
    if -len(items) <= index < len(items):
        return items[index]
    return None


def text_at(document: object, path: str | None) -> str:
    """Return the text at a path; any other value that is not empty as JSON."""
    value = value_at(document, path)
    if isinstance(value, str):
        return value
    if not value and number_at(document, path) is None:
        return ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return ""


def number_at(document: object, path: str | None) -> float | None:
    """Return the number at a path, or None."""
    value = value_at(document, path)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return None
