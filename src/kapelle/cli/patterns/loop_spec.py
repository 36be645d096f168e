"""From the options of `kapelle loop` to its specification; contradictions are refused here."""

import json
import math
from pathlib import Path
from typing import Any

from kapelle.cli.patterns.direction import direction
from kapelle.cli.patterns.spec import (
    Options,
    Spec,
    conditions,
    only_given,
    shared_spec,
    steps_of,
)
from kapelle.cli.prompt import read_prompt, ways
from kapelle.cli.values import choice, duration_s, optional_duration_s, optional_text, texts
from kapelle.domain.errors import InvalidInput

_AS_GIVEN = ("max_iterations", "max_failures", "convergence")
_TEXTS = ("eval_prompt", "judge", "judge_model")
_JUDGING = ("eval_prompt", "eval_schema", "judge", "judge_model")
_ENDS = (
    'Add --until "make test", or --eval COMMAND with --minimize or --maximize, or --judge AGENT.'
)
_STEP = 'Write --step "what to do", or leave it out.'
_SCHEMA = 'It is an object, such as {"type": "object", "properties": {…}}.'


def loop_spec(options: Options) -> Spec:
    """The loop asked for."""
    towards, mode = direction(options), _mode(options)
    _require_one_way(options, towards, mode)
    spec = {
        **_work(options),
        **{name: options[name] for name in _AS_GIVEN},
        **texts(options, _TEXTS),
        "until": conditions(options["until"] or [], "--until"),
        "eval": optional_text(options["score"], "--eval"),
        "direction": towards,
        "eval_mode": "agent" if mode == "agent" else None,
        "eval_schema": options["eval_schema"] and _schema(options["eval_schema"]),
        "eval_timeout_s": optional_duration_s(options["eval_timeout"], "--eval-timeout"),
        "target": _target(options["target"]),
        "cooldown_s": _cooldown(options["cooldown"]),
        "checkpoint": options["checkpoint"] or None,
    }
    return {**only_given(spec), **shared_spec(options)}


def _work(options: Options) -> Spec:
    """What every iteration does: a prompt alone, or steps, of which the prompt is the first."""
    prompt, file = options["prompt"], options["prompt_file"]
    alone = prompt is None and file is None
    steps = steps_of(options["step"] or [], _STEP, 1 if alone else 2)
    if steps and alone:
        return {"steps": steps}
    prompt = read_prompt(prompt, file, ways("loop"))
    return {"steps": [prompt, *steps]} if steps else {"prompt": prompt}


def _mode(options: Options) -> str:
    """Who decides; options that only a judge has need no --eval-mode beside them."""
    mode = choice("--eval-mode", options["eval_mode"], ("shell", "agent"))
    judging = next((name for name in _JUDGING if options[name] is not None), None)
    if judging and mode == "shell":
        option = "--" + judging.replace("_", "-")
        raise InvalidInput(
            f"{option} is for a judge, and --eval-mode shell has none.",
            hint="Write --eval-mode agent, or leave --eval-mode out.",
        )
    return mode or ("agent" if judging else "shell")


def _require_one_way(options: Options, towards: str | None, mode: str) -> None:
    """Refuse what contradicts itself, with what to type instead."""
    until, score = options["until"], options["score"]
    match mode, bool(until), score is not None, towards is not None:
        case "agent", _, True, _:
            problem = "A judge decides, so there is no command for --eval."
            hint = "Leave --eval out and tell the judge what counts with --eval-prompt."
        case "agent", True, _, _:
            problem = "Either --until decides or a judge does."
            hint = "Leave --until out, or the options of the judge."
        case _, True, True, _:
            problem = "--until and --eval exclude each other: try again, or make a number better."
            hint = "Leave one of them out."
        case _, True, _, True:
            problem = "--until passes or not, so there is no number to make better."
            hint = "Leave the direction out, or write --eval COMMAND instead of --until."
        case _, _, True, False:
            problem = "--eval prints a number, and nothing says which way it is to go."
            hint = "Add --minimize or --maximize."
        case "shell", False, False, True:
            problem = "There is no number to make better."
            hint = "Add --eval COMMAND, which prints it in its last line."
        case "shell", False, False, False:
            problem, hint = "Nothing says when the loop is to end.", _ENDS
        case _ if options["target"] is not None and towards is None:
            problem = "--target is a number to reach, and nothing says from which side."
            hint = "Add --minimize or --maximize, with --eval or a judge."
        case _:
            return
    raise InvalidInput(problem, hint=hint)


def _target(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(
            f"--target is not a number: {text!r}.", hint="Write --target 100 or --target 0.95."
        )
    return number


def _cooldown(text: str | None) -> float | None:
    return None if text is None else duration_s(text, "--cooldown", none=True) or None


def _schema(file: Path) -> dict[str, Any]:
    """The JSON schema in a file."""
    try:
        schema = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(
            f"--eval-schema {file} cannot be read: {error.strerror}.", hint="Check its name."
        ) from None
    except ValueError as error:
        raise InvalidInput(f"--eval-schema {file} is not JSON: {error}.", hint=_SCHEMA) from None
    if not isinstance(schema, dict) or not schema:
        raise InvalidInput(f"--eval-schema {file} is not a schema.", hint=_SCHEMA)
    return schema
