"""Any command line as an agent: a template from the settings, judged by its exit code.

Where its output is JSON, dotted paths such as `message.content.0.text` say what is where in it.
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
# How a JSON document begins that takes several lines, and what in a line changes how deep it is.
_OPENS = re.compile(r'\{\s*(?:"|$)|\[\s*(?:[\[{]|$)')
# A string that the line does not close is taken to the end of the line, possessively: otherwise the
# search would begin again at each quotation mark in it, which is quadratic.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_LARGEST = 1 << 26


class CommandAgent(AgentAdapter):
    """Runs settings.command, placeholders filled in; the prompt goes to stdin if none takes it."""

    access = Access(needed=False)
    restraint = "what a command template may do is up to its command"

    def __init__(self, name: str, settings: AgentSettings) -> None:
        super().__init__(name, settings)
        self.reads_whole_output = settings.output != "text"
        if settings.output == "json":
            self.begins_with = b"{["
        else:
            self.begins_with = b""
        self._held: list[str] = []  # of a document that takes several lines
        self._depth = self._size = 0
        used = _placeholders(settings.command)
        read = settings.read
        by_stdin = not used & _CARRIES_PROMPT
        by_events = settings.output == "events"
        by_json = settings.output == "json"
        self.capabilities = Capabilities(
            resume="session" in used and (by_events or (by_json and bool(read.session))),
            model="model" in used,
            system_prompt=by_stdin or bool(used & {"system", "combined"}),
            usage=by_events or (by_json and bool(read.input_tokens or read.output_tokens)),
            cost=by_events or (by_json and bool(read.cost_usd)),
            terminal=True,
        )

    @property
    def asked_for(self) -> str:
        return next(iter(self.settings.command), "")

    def installed(self) -> str | None:
        # A relative program belongs to the workspace, which is known only when it runs.
        if _is_relative(self.asked_for):
            return self.asked_for
        return super().installed()

    def command(self, request: AgentRequest) -> AgentCommand:
        self.executable()
        template = request.settings.command
        values = _values(request)
        argv = _filled(template, values) + request.settings.extra_args
        self._check(argv, request)
        used = _placeholders(template)
        if request.interactive:
            if not used & _CARRIES_PROMPT:
                self.refuse_prompt(request)
            return AgentCommand(argv, dict(request.settings.env))
        stdin = None
        if not used & _CARRIES_PROMPT:
            stdin = values["prompt" if "system" in used else "combined"].encode("utf-8", "replace")
        return AgentCommand(argv, dict(request.settings.env), stdin)

    def parse(self, line: str) -> list[AgentEvent]:
        match self.settings.output:
            case "events":
                return [_without_refund(event) for event in parse_event(line)]
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
        """Success is a clean exit, no error, and the answer where the settings say that it is."""
        read = self.settings.read
        if read.result:
            said = summary.result
        else:
            said = summary.tail.strip() or None
        if exit.kind != "exited" or (exit.code != 0 and not summary.error):
            return AgentVerdict(False, self.exit_sentence(exit, tail), said, summary.claimed)
        if summary.error:
            return AgentVerdict(False, summary.error.text, said, "failure")
        if said is None:
            place = read.result or read.text
            return AgentVerdict(
                False, f"The agent exited with code 0, and {place} was never there."
            )
        return AgentVerdict(True, result=said, claimed="success")

    def _parse_json(self, line: str) -> list[AgentEvent]:
        """What a line says, or the document over several lines that ends with it.

        Nothing inside a document stands alone at the beginning of a line: what was held is none.
        """
        inside = bool(self._held) and not line.startswith(('{"', "[{"))
        if inside:
            document = None
        else:
            document = json_document(line)
        if document is None and (self._held or _OPENS.match(line)):
            self._held.append(line)
            self._size += len(line)
            steps = {"{": 1, "[": 1, "}": -1, "]": -1}
            self._depth += sum(steps.get(mark, 0) for mark in _BRACKET.findall(line))
            if self._depth > 0 and self._size < _LARGEST:
                return []
            document = json_document("\n".join(self._held))
        self._held = []
        self._depth = 0
        self._size = 0
        if document is None:
            return []
        return json_events(document, self.settings.read)

    def _check(self, argv: list[str], request: AgentRequest) -> None:
        read = request.settings.read
        key = f"agents.{self.name}.command"
        if request.settings.output == "json" and not read.text and not read.result:
            text = f"The agent {self.name} prints JSON, and nothing says where its answer is in it."
            hint = f"kapelle config set agents.{self.name}.read.result path.of.the.answer"
            raise AgentMisconfigured(text, hint=hint, remedy="")
        hint = f"Use {{prompt_file}} in {key}, or no placeholder, for stdin."
        for argument in argv:
            self.require_argument(argument, "the prompt", hint)
            if not argument or "\0" in argument:
                raise AgentMisconfigured(f"{key} makes an argument that is empty or has a NUL.")
        place = request.workspace / argv[0] if _is_relative(argv[0]) else argv[0]
        if not self.on_path(str(place), request.settings.env):
            raise self.not_found(argv[0])


def _without_refund(event: AgentEvent) -> AgentEvent:
    """The event; usage in it can raise what was counted before, but never lower it.

    Anything in such an agent can print events, so budgets must not depend on the last one.
    """
    if event.kind != "usage":
        return event
    return replace(event, data={**event.data, "at_least": True})


def _values(request: AgentRequest) -> dict[str, str]:
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
    return {name for argument in template for name in _PLACEHOLDER.findall(argument)}


def _filled(template: list[str], values: dict[str, str]) -> list[str]:
    """The template with its values; what has no value goes, with the option it belongs to."""
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
    """The events that a document holds."""
    kinds: tuple[EventKind, ...] = ("session", "model", "text")
    found = [AgentEvent(kind, text_at(document, getattr(read, kind))) for kind in kinds]
    events = [event for event in found if event.text]
    names = ("input_tokens", "output_tokens", "cached_tokens", "cost_usd")
    counts = {name: number_at(document, getattr(read, name)) for name in names}
    if used := {name: number for name, number in counts.items() if number is not None}:
        # Whatever reports what it used has had an answer of a model.
        events.append(AgentEvent("usage", data={**used, "turns": 1}))
    return events + _outcome(document, read)


def _outcome(document: object, read: ReadJson) -> list[AgentEvent]:
    result = text_at(document, read.result)
    # A flag may stand where a message would: then the answer is the message.
    wrong = value_at(document, read.error)
    if wrong is True:
        message = result or _UNNAMED
    else:
        message = text_at(document, read.error)
    if wrong:
        events = [AgentEvent("error", text=message)]
    else:
        events = []
    if value_at(document, read.result) is not None:
        events.append(AgentEvent("result", text=result, data={"is_error": True} if wrong else {}))
    return events


def json_document(line: str) -> dict[str, Any] | list[Any] | None:
    """The JSON object or array that a line holds, or None for anything else."""
    if not line.lstrip().startswith("["):
        return json_object(line) or None
    found = json_object(f'{{"array": {line}}}').get("array")
    if isinstance(found, list):
        return found
    return None


def value_at(document: object, path: str | None) -> object:
    """What is there: names lead into objects, numbers into arrays, from the end if negative."""
    if not path:
        return None
    found = document
    for step in path.split("."):
        if isinstance(found, dict):
            found = found.get(step)
        elif isinstance(found, list) and step.removeprefix("-").isdecimal():
            # A number of thousands of digits is no index, and int refuses it.
            if len(step) < 20:
                index = int(step)
            else:
                index = len(found)
            if -len(found) <= index < len(found):
                found = found[index]
            else:
                found = None
        else:
            return None
    return found


def text_at(document: object, path: str | None) -> str:
    """The text there; anything else that says something is written as JSON."""
    found = value_at(document, path)
    if isinstance(found, str):
        return found
    if not found and number_at(document, path) is None:
        return ""
    try:
        return json.dumps(found, ensure_ascii=False)
    except RecursionError:
        return ""


def number_at(document: object, path: str | None) -> float | None:
    found = value_at(document, path)
    if isinstance(found, int | float) and not isinstance(found, bool):
        return found
    return None
