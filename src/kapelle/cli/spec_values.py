"""The specification that was typed: values of options and arguments as the API takes them."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kapelle.cli import values
from kapelle.cli.config import current
from kapelle.cli.spec_options import SpecOption
from kapelle.cli.usage_errors import RUN_COMMANDS
from kapelle.cli.values import read_prompt, read_prompts
from kapelle.domain.errors import InvalidInput

Params = Mapping[str, Any]
SpecFields = dict[str, Any]

# How a single value of a kind is read; a text of another kind is taken as it is.
_READERS: dict[str, Callable[[Any, str], Any]] = {
    "agent": values.agent,
    "any": values.json_or_text,
    "directory": lambda path, _flag: absolute_directory(path),
    "json_file": lambda text, flag: values.json_object(values.not_empty(text, flag), flag),
    "number": values.number,
    "object": values.json_or_text,
    "text": values.not_empty,
    "usd": values.usd,
}
# How all values of a repeatable option are read together.
_COLLECTION_READERS: dict[str, Callable[[Any, str], Any]] = {
    "environment": values.environment,
    "list": values.texts_or_objects,
    "names": values.listed,
    "pairs": values.pairs,
    "servers": values.mcp_servers,
}
_LIST_MARK = re.compile(r"^\s*[-*]\s")


def read_spec(options: Sequence[SpecOption], params: Params, command: str = "") -> SpecFields:
    """Return the fields that were typed; the daemon knows the defaults of the others.

    With the name of a command its arguments are read too, last, for they may come from stdin.
    """
    spec: SpecFields = {}
    for option in options:
        if not option.is_argument:
            _set_field(spec, option, _read_option(option, params))
    if command:
        for option in options:
            if option.is_argument:
                _read_argument(spec, option, params, command)
    for option in options:
        if option.key in spec:
            for key, value in option.facts.get("implies", {}).items():
                spec.setdefault(key, value)
    return spec


def _set_field(spec: SpecFields, option: SpecOption, value: Any) -> None:
    """Put a value at the path of its field; None is left out."""
    if value is None:
        return
    *outer, last = option.path
    fields = spec
    for name in outer:
        fields = fields.setdefault(name, {})
    fields[last] = value
    for name, implied in option.facts.get("group", {}).items():
        fields.setdefault(name, implied)


def _read_option(option: SpecOption, params: Params) -> Any:
    """Return the value of a field by its option or one of its flags; None if none was typed.

    Raises InvalidInput if they contradict each other.
    """
    typed = params.get(option.param_name)
    if option.kind == "prompts":
        return typed or None
    file = params.get(option.file_param)
    if file is not None:
        typed = [*(typed or ()), *_read_lines(file, option.facts["file"][0])]
    value_by_name: dict[str, Any] = {}
    value = convert(option, typed, params)
    if value is not None:
        value_by_name[option.flag] = value
    for name, fixed_value, _ in option.facts.get("flags", ()):
        if params.get(option.flag_param(name)):
            value_by_name[name] = fixed_value
    if len({str(value) for value in value_by_name.values()}) > 1:
        raise InvalidInput(
            f"{' and '.join(value_by_name)} exclude each other.", hint="Leave one of them out."
        )
    return next(iter(value_by_name.values()), None)


def _read_lines(file: Path, flag: str) -> list[str]:
    """Return the lines of a file without list marks and without empty lines."""
    text = read_prompt(None, file, "Write one in each line.", flag)
    lines = [_LIST_MARK.sub("", line).strip() for line in text.splitlines()]
    return [line for line in lines if line]


def convert(option: SpecOption, typed: Any, params: Params) -> Any:
    """Return what was typed for an option as the value of its field; None where nothing was."""
    if option.kind == "check":
        return _read_checks(option, typed, params)
    if typed is None or (option.is_repeatable and not typed):
        return None
    if option.kind in _COLLECTION_READERS:
        return _COLLECTION_READERS[option.kind](typed, option.flag)
    if option.kind == "moment":
        return values.future_time(typed, option.flag, params.get("timezone"))
    if option.kind == "duration":
        return values.duration_s(typed, option.flag, least=option.limits.get("minimum"))
    if option.is_repeatable:
        return [_read_value(option, text) for text in typed]
    return _read_value(option, typed)


def _read_value(option: SpecOption, typed: Any) -> Any:
    value = typed
    if option.kind in _READERS:
        value = _READERS[option.kind](typed, option.flag)
    if not option.choices:
        return value
    same = (choice for choice in option.choices if choice.lower() == value.lower())
    return values.choice(option.flag, next(same, value), option.choices)


def _read_checks(option: SpecOption, commands: Sequence[str] | None, params: Params) -> Any:
    limit = params.get(option.timeout_param)
    timeout_s = None
    if limit is not None:
        timeout_s = values.duration_s(limit, option.facts["timeout"][0])
    return [_read_check(option, text, timeout_s) for text in commands or ()] or None


def _read_check(option: SpecOption, text: str, timeout_s: float | None) -> Any:
    """Return a check: a command, the name of a built-in check, or an object."""
    if not text.strip():
        raise InvalidInput(
            f"{option.flag} is empty.",
            hint=f'Write a command, for example {option.flag} "make test".',
        )
    check = _object_or_text(text)
    if timeout_s is None:
        return check
    if isinstance(check, str):
        field = "kind" if check in option.check_kinds else "command"
        check = {field: check}
    return {**check, "timeout_s": timeout_s}


def _read_argument(spec: SpecFields, option: SpecOption, params: Params, command: str) -> None:
    """Read a prompt or a list of prompts into the specification, from stdin if need be."""
    typed = params.get(option.param_name)
    file = params.get(option.file_param)
    if typed is None and file is None and spec.get("interactive"):
        spec[option.key] = ""  # the person types it in the terminal
        return
    if option.is_repeatable:
        texts = [*(typed or ()), *(params.get(option.more_param) or ())]
        spec[option.key] = _read_list(option, texts, command)
        return
    steps = option.facts.get("before", "")
    later_steps = spec.get(steps)
    steps_hint = f'Write --{steps.removesuffix("s")} "what to do", or leave it out.'
    if later_steps and typed is None and file is None:
        spec[steps] = read_prompts(later_steps, steps_hint, 1)
        return
    if typed in RUN_COMMANDS and command != "run":
        raise InvalidInput(
            f"{typed!r} is the name of a command, not a {option.key}.",
            hint=f"Write `kapelle runs {typed}`, or `kapelle runs list --pattern {command}`.",
        )
    if typed is None and file is None:
        typed = _ask_for_prompt(spec, option, params)
    text = read_prompt(typed, file, _prompt_hint(option, command), option.key)
    if later_steps:
        spec[steps] = [text, *read_prompts(later_steps, steps_hint, 2)]
    else:
        spec[option.key] = text


def _prompt_hint(option: SpecOption, command: str) -> str:
    hint = f'Write `kapelle {command} "what to do"`'
    file = option.facts.get("file")
    if file:
        return f"{hint}, `{file[0]} FILE`, or pipe it in with `-`."
    return f"{hint}."


def _ask_for_prompt(spec: SpecFields, option: SpecOption, params: Params) -> str | None:
    """Ask the person for a prompt, if the field allows it and somebody is there to answer."""
    question = option.facts.get("ask")
    if not question:
        return None
    from kapelle.cli.interaction import can_ask, read_line

    if not can_ask():
        return None
    answer = read_line(question) or ""
    if params.get("follow") and not params.get("as_json"):
        for name, value in option.facts.get("asked", {}).items():
            spec.setdefault(name, value)
    return answer


def _read_list(option: SpecOption, texts: list[str], command: str) -> list[Any]:
    """Return the prompts of a list; the daemon knows how many there may be."""
    more = option.facts["more"][0]
    example = f'Write `kapelle {command} "design it" {more} "implement it"`.'
    values.refuse((not texts and option.is_required, f"There are no {option.key}.", example))
    return read_prompts([_object_or_text(text) for text in texts], example, 1)


def _object_or_text(text: str) -> Any:
    """Return the JSON object that a text is, else the text."""
    with suppress(ValueError):
        if text.lstrip().startswith("{"):
            return json.loads(text)
    return text


def absolute_directory(directory: Path | None) -> str:
    """Return a directory as an absolute path; raises InvalidInput if it does not exist here."""
    path = Path()
    if directory is not None:
        path = Path(values.not_empty(str(directory), "--directory"))
    absolute = os.path.abspath(path if path.is_absolute() else current() / path)
    # With a URL the daemon may run on another machine.
    if not os.path.isdir(absolute) and not os.environ.get("KAPELLE_URL"):
        raise InvalidInput(f"{directory} is not a directory.", hint="Use -C with one that exists.")
    return absolute
