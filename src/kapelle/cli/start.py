"""Commands that start work, each made of its spec's schema: `run`, those of patterns, `start`."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kapelle.cli.command import FollowToEnd, Json, command_of, flag, option, suggestion
from kapelle.cli.config import current
from kapelle.cli.format import one_line, table
from kapelle.cli.ids import completing
from kapelle.cli.output import document, say
from kapelle.cli.prompt import read_prompt, read_prompts
from kapelle.cli.request import begin, is_collecting
from kapelle.cli.spec_options import (
    Option,
    Params,
    Schema,
    Spec,
    absolute_directory,
    options_of,
    parameters,
    parameters_of,
    schemas,
    spec_of,
    spelled,
    with_parameters,
)
from kapelle.cli.values import duration_s, pairs
from kapelle.client.http import Connection
from kapelle.domain.errors import InvalidInput, NotFound
from kapelle.domain.options import KEY

Pattern = dict[str, Any]
Words = list[str] | None

_EVERY = Annotated[
    str | None,
    option("DURATION", "As a schedule: at once, then again so long after each success.", "--every"),
]
_FOREGROUND: dict[str, Any] = {
    "resume": Annotated[Words, option("TOKEN", "Go on with a run that asked; needs --answer.")],
    "answer": Annotated[Words, option("TEXT", "With --resume: what it wanted to know.")],
    "progress": Annotated[
        bool, flag("Follow it: one JSON line per iteration on stderr.", "--progress")
    ],
}
_VAR = Annotated[Words, option("NAME=VALUE", "A variable of the file; repeatable.", "--var")]


def work_command(name: str) -> Callable[..., None]:
    """`kapelle run`, or the command of a built-in pattern."""
    schema = _schema(name)
    facts = schema[KEY]
    own, shared = _split(options_of(schema)) if name != "run" else (options_of(schema), [])
    last: dict[str, Any] = {"follow": FollowToEnd, "as_json": Json}
    middle: dict[str, Any] = {}
    if facts.get("foreground"):
        middle = dict(_FOREGROUND)
    elif name == "run":
        last = {"every": _EVERY, **last}
    if "file" in facts:
        *names, help = facts["file"]
        file = typer.Option(*names, metavar="FILE", help=help)
        middle |= {"whole_file": Annotated[Path | None, file], "var": _VAR}

    def start(**params: Any) -> None:
        options = [*own, *shared]
        with spelled(options):
            if facts.get("foreground"):
                from kapelle.cli.foreground import perform

                perform(name, params, lambda: work_spec(name, params), options)
            elif params.get("every") is not None:
                _repeat(work_spec(name, params), params)
            elif name == "run":
                _start("/tasks", work_spec(name, params), params, options)
            else:
                body = {"pattern": name, "spec": work_spec(name, params)}
                _start("/runs", body, params, options)

    made = [
        *parameters_of(own), *parameters(middle), *parameters_of(shared), *parameters(last)
    ]  # fmt: skip
    return with_parameters(start, made, schema)


def work_spec(name: str, params: Params) -> Spec:
    """The task or the run that the options of a command ask for."""
    schema = _schema(name)
    options = options_of(schema)
    if "file" in schema[KEY]:
        variables = pairs(params["var"] or [], "--var")
        if params["whole_file"] is not None:
            from kapelle.cli.spec_file import read_spec_file

            _require_no_arguments(options, params)
            return read_spec_file(name, params["whole_file"], variables, spec_of(options, params))
        if variables:
            raise InvalidInput("--var is for the steps of a file.", hint="Add -F FILE.")
    return {
        "directory": absolute_directory(params["directory"]), **spec_of(options, params, name)
    }  # fmt: skip


def _schema(name: str) -> Schema:
    return schemas()["task" if name == "run" else name]


def _require_no_arguments(options: Sequence[Option], params: Params) -> None:
    for given in options:
        if params.get(given.name) and "argument" in given.about:
            raise InvalidInput(
                f"The {given.key} were given twice, as prompts and as a file.",
                hint="Leave -F out, or put the prompts into the file.",
            )


def _start(path: str, body: dict[str, Any], params: Params, options: Sequence[Option]) -> None:
    from kapelle.cli.follow import show_new

    client = Connection()
    show_new(client, begin(client, path, body, options), params["follow"], params["as_json"])


def _repeat(spec: Spec, params: Params) -> None:
    """Create a schedule that does it again and again, and print the schedule's id."""
    from kapelle.cli.schedules import send

    if params["follow"]:
        raise InvalidInput(
            "--every and --follow exclude each other: it may go on for ever.",
            hint="`kapelle schedule status ID` shows how it gets on.",
        )
    every_s = duration_s(params["every"], "--every", least=1)
    send({"kind": "task", "spec": spec, "every_s": every_s}, params["as_json"])


def _split(options: Sequence[Option]) -> tuple[list[Option], list[Option]]:
    """The options of a pattern's own, and those that every pattern has."""
    common = schemas()["pattern"]["properties"]
    own = [option for option in options if option.key not in common]
    return own, [option for option in options if option.key in common]


_WORDS = typer.Argument(
    metavar="PATTERN [--KEY VALUE]",
    help="The pattern's name and what it takes.",
    autocompletion=completing("patterns"),
    show_default=False,
)
_SPEC = typer.Option(metavar="FILE", help="Read what it takes from .json, .yaml or .toml.")
_HELP = typer.Option("--help", "-h", help="Show this help, or that of the pattern before it.")
_ABOUT = {
    "summary": "Start a run of any pattern, your own too.",
    "about": "Without a pattern it lists them. `kapelle start PATTERN --help` shows what"
    " one takes: its keys are options, those that are on or off stand alone, lists are"
    " repeatable, and objects are JSON texts.",
}


def start_command(name: str = "start") -> Any:
    """`kapelle start`; a pattern's own options are known only when its schema is."""

    def start(**params: Any) -> None:
        words = params["words"]
        if not words:
            _without_a_name(params)
            return
        directory = absolute_directory(params["directory"])
        pattern = _named(_patterns(Connection(), directory), words[0], directory)
        if params["show_help"]:
            sys.stdout.write(pattern_help(pattern) + "\n")
            return
        options = [*map(_by_key, options_of(pattern["spec_schema"]))]
        with spelled(options):
            body = {"pattern": pattern["name"], "spec": start_spec(params, pattern)}
            _start("/runs", body, params, options)

    first = {"words": Annotated[Words, _WORDS], "spec": Annotated[Path | None, _SPEC]}
    last = {"follow": FollowToEnd, "as_json": Json, "show_help": Annotated[bool, _HELP]}
    shared = parameters_of(options_of(schemas()["pattern"]))
    made = with_parameters(start, [*parameters(first), *shared, *parameters(last)], {KEY: _ABOUT})
    settings = {"ignore_unknown_options": True}
    return command_of(made, name, add_help_option=False, context_settings=settings)


def _without_a_name(params: Params) -> None:
    if params["show_help"]:
        sys.stdout.write(_help_of(start_command(), "kapelle start") + "\n")
        return
    if is_collecting():
        raise InvalidInput(
            "The pattern's name is missing.", hint="`kapelle start` lists the patterns."
        )
    known = _patterns(Connection(), absolute_directory(params["directory"]))
    if params["as_json"]:
        document(known)
        return
    here = f"{current()}/"
    rows = [
        [one_line(item["name"]), one_line(item["origin"].removeprefix(here)),
         ("" if item["trusted"] else "(not trusted) ") + one_line(item["summary"])]
        for item in known
    ]  # fmt: skip
    lines = table(["PATTERN", "FROM", "WHAT IT DOES"], rows)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
    say("`kapelle start PATTERN --help` shows what one takes.")


def _patterns(client: Connection, directory: str) -> list[Pattern]:
    found: list[Pattern] = client.get("/patterns", {"directory": directory})
    return found


def _named(known: list[Pattern], name: str, directory: str) -> Pattern:
    for pattern in known:
        if pattern["name"] == name:
            if not pattern["trusted"]:
                from kapelle.settings.trust import refusal

                text = f"{pattern['origin']} is not trusted, so nothing of {name!r} is known."
                raise refusal(text, directory)
            return pattern
    if name.startswith("-"):
        raise InvalidInput(
            f"{name} stands where the pattern's name should.",
            hint="Write `kapelle start PATTERN --key value`; `kapelle start` lists the patterns.",
        )
    names = [pattern["name"] for pattern in known]
    hint = suggestion(name, names, 0.5).strip() or f"There are {', '.join(names)}."
    raise NotFound(f"There is no pattern {name!r}.", hint=hint)


def start_spec(params: Params, pattern: Pattern) -> Spec:
    """What the pattern is asked for: the file, over it the shared options, over them its own."""
    name, words = pattern["name"], params["words"][1:]
    options = options_of(pattern["spec_schema"])
    own = _own_command(pattern).make_context(f"kapelle start {name}", words).params
    spec = read_spec(params["spec"]) if params["spec"] is not None else {}
    spec |= spec_of(options_of(schemas()["pattern"]), params)
    spec |= _with_stdin(spec_of([*map(_by_key, options)], own), options)
    spec.setdefault("directory", absolute_directory(None))
    missing = [_by_key(option) for option in options if option.required and option.key not in spec]
    if missing:
        raise InvalidInput(
            f"{name} needs {' and '.join(option.flag for option in missing)}.",
            hint=f"`kapelle start {name} --help` shows what it takes.",
        )
    return spec


def _with_stdin(spec: Spec, options: Sequence[Option]) -> Spec:
    """The spec with what stands on stdin where - was given for a prompt, or for one of several."""
    prompts = [item for item in options if item.kind == "prompts" or "argument" in item.about]
    for key in (item.key for item in prompts):
        given = spec.get(key)
        if isinstance(given, list):
            spec[key] = read_prompts(given, "Write what each step does.", 1)
        elif given is not None:
            spec[key] = read_prompt(given, None, "Write what to do.", key)
    return spec


def _own_command(pattern: Pattern) -> Any:
    """The command of what stands behind a pattern's name."""
    own, shared = _split([_by_key(option) for option in options_of(pattern["spec_schema"])])
    about = {
        "summary": one_line(pattern["summary"]),
        "about": f"From {one_line(pattern['origin'])}",
    }
    made = with_parameters(
        lambda **_: None, [*parameters_of(own), *parameters_of(shared, hidden=True)], {KEY: about}
    )
    epilog = "`kapelle start --help` shows what all patterns take: --agent, -C, --budget …"
    return command_of(made, pattern["name"], add_help_option=False, epilog=epilog)


def _by_key(option: Option) -> Option:
    """The option as `kapelle start` takes it: by the name of its field too, never an argument."""
    key = "--" + "-".join(option.path).replace("_", "-")
    others = [name for name in option.names if name != key]
    kept = ("flags", "group", "implies", "timeout", "file", "complete")
    is_prompts = option.kind == "prompts"
    words = option.description if is_prompts else option.help
    return replace(
        option,
        names=(*others, f"{key}/--no-{key[2:]}" if option.kind == "boolean" else key),
        kind="object" if is_prompts else option.kind,
        help=one_line(f"{words.rstrip('.')} (required)" if option.required else words),
        about={
            "metavar": one_line(option.metavar),
            **{fact: value for fact, value in option.about.items() if fact in kept},
        },
    )


def pattern_help(pattern: Pattern) -> str:
    """What a pattern takes besides what all patterns do."""
    return _help_of(_own_command(pattern), f"kapelle start {pattern['name']}")


def _help_of(command: Any, path: str) -> str:
    text: str = command.get_help(command.make_context(path, [], resilient_parsing=True))
    return text


def read_spec(file: Path) -> dict[str, Any]:
    """What the file holds; an error names the file and, where it is known, the line."""
    try:
        spec = _parsed(file.suffix.lower(), file.read_text(encoding="utf-8"), file)
    except OSError as error:
        raise InvalidInput(f"--spec {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"--spec {file} is not UTF-8 text.") from None
    if not isinstance(spec, dict) or not all(isinstance(key, str) for key in spec):
        raise InvalidInput(
            f"--spec {file} holds no fields.", hint="Give every field a name: prompt, agent …"
        )
    return spec


def _parsed(suffix: str, text: str, file: Path) -> Any:
    import tomllib

    import yaml

    kinds: dict[str, tuple[str, Callable[[str], Any]]] = {
        ".json": ("JSON", json.loads), ".toml": ("TOML", tomllib.loads),
        ".yaml": ("YAML", yaml.safe_load), ".yml": ("YAML", yaml.safe_load),
    }  # fmt: skip
    if suffix not in kinds:
        raise InvalidInput(
            f"--spec {file} is of no kind that is known.", hint="Use .json, .yaml or .toml."
        )
    name, parse = kinds[suffix]
    try:
        return parse(text)
    except (ValueError, yaml.YAMLError) as error:
        raise InvalidInput(f"{file} is not {name}: {' '.join(str(error).split())}.") from None
