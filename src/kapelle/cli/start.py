"""Commands that start work, each made of its spec's schema: `run`, those of patterns, `start`."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from kapelle.cli.command import FollowToEnd, Json, argument, command_of, flag, option, suggestion
from kapelle.cli.config import current
from kapelle.cli.format import one_line, table
from kapelle.cli.ids import completing, run_path, template_path
from kapelle.cli.outcome import Run
from kapelle.cli.output import data, document, say, write
from kapelle.cli.prompt import read_bytes, read_prompt, read_prompts
from kapelle.cli.spec_options import (
    Option,
    Params,
    Schema,
    Spec,
    absolute_directory,
    options_of,
    schemas,
    spec_of,
    spelled,
    with_parameters,
)
from kapelle.cli.values import duration_s, not_empty, pairs, refuse
from kapelle.client.http import Connection
from kapelle.domain.errors import Conflict, InvalidInput, KapelleError, NotFound
from kapelle.domain.options import KEY

Pattern = dict[str, Any]
Words = list[str] | None

_MAX_SPEC_BYTES = 16_000_000
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


def begin(client: Connection, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Start a task or a run, and return it; what is refused of a file is told with its lines."""
    try:
        started: dict[str, Any] = client.create(path, body)
    except KapelleError as error:
        from kapelle.cli.spec_file import SpecFile

        spec = body.get("spec")
        if isinstance(spec, SpecFile):
            spec.locate(error)
        raise
    return started


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
        file = Annotated[Path | None, option("FILE", help, *names)]
        middle |= {"whole_file": file, "var": _VAR}

    def start(**params: Any) -> None:
        options = [*own, *shared]
        with spelled(options):
            if facts.get("foreground"):
                _perform(name, params, options)
            elif params.get("every") is not None:
                _repeat(work_spec(name, params), params)
            else:
                _start(*order(name, params)[:2], params)

    return with_parameters(start, schema, own, middle, shared, last)


def order(name: str, params: Params) -> tuple[str, dict[str, Any], Sequence[Option]]:
    """What a command is to start: the path of the API, the body, and the options that made it."""
    pattern = None
    if name == "start":
        pattern = _named(params["words"][0], absolute_directory(params["directory"]))
    shape = pattern["spec_schema"] if pattern else _schema(name)
    options = [_by_key(option) if pattern else option for option in options_of(shape)]
    with spelled(options):
        spec = start_spec(params, pattern) if pattern else work_spec(name, params)
    if name == "run":
        return "/tasks", spec, options
    return "/runs", {"pattern": pattern["name"] if pattern else name, "spec": spec}, options


def work_spec(name: str, params: Params) -> Spec:
    """The task or the run that the options of a command ask for."""
    schema = _schema(name)
    options = options_of(schema)
    if "file" in schema[KEY]:
        variables = pairs(params["var"] or [], "--var")
        if params["whole_file"] is not None:
            from kapelle.cli.spec_file import read_spec_file

            for given in options:
                if params.get(given.name) and "argument" in given.about:
                    raise InvalidInput(
                        f"The {given.key} were given twice, as prompts and as a file.",
                        hint="Leave -F out, or put the prompts into the file.",
                    )
            return read_spec_file(name, params["whole_file"], variables, spec_of(options, params))
        if variables:
            raise InvalidInput("--var is for the steps of a file.", hint="Add -F FILE.")
    spec = spec_of(options, params, name)
    if "template" in spec and "directory" not in spec:
        found = Connection().get(template_path(spec["template"]))["directory"]
        spec |= {"directory": found} if found else {}
    return {"directory": absolute_directory(params["directory"]), **spec}


def _schema(name: str) -> Schema:
    return schemas()["task" if name == "run" else name]


def _start(path: str, body: dict[str, Any], params: Params) -> None:
    from kapelle.cli.follow import show_new

    client = Connection()
    begun = begin(client, path, body)
    if body.get("interactive") and not params["as_json"]:
        from kapelle.cli.attach import attach_to, is_at_terminal

        if is_at_terminal():
            attach_to(client, begun)
            return
    # Who cannot type cannot end what is in a terminal.
    to_end = params["follow"] and not body.get("interactive")
    show_new(client, begun, to_end, params["as_json"])


def _perform(name: str, params: Params, options: Sequence[Option]) -> None:
    """Start a run of a pattern in the foreground, or answer what one asked, and show it."""
    from kapelle.cli.follow import show_new, watch

    client, seen = Connection(), 0
    if params["resume"] or params["answer"]:
        run, seen = _answered(client, params, options)
    else:
        run = begin(client, *order(name, params)[:2])
    if not params["follow"] and not params["progress"]:
        show_new(client, run, to_end=False, as_json=params["as_json"])
        return
    if not params["as_json"]:
        data(run["id"])
        sys.stdout.flush()
    watch(client, run, params, seen)


_EXAMPLE = 'Write `--resume TOKEN --answer "…"`.'
# What may stand beside --resume; everything else is settled when a run is started.
_BESIDE = frozenset(
    {"resume", "answer", "progress", "follow", "as_json", "ask", "ask_non_interactive"}
)


def _answered(client: Connection, params: Params, options: Sequence[Option]) -> tuple[Run, int]:
    """The run whose questions were answered, and the number of its last event before that."""
    from kapelle.cli.follow import history

    tokens = [not_empty(text.strip(), "--resume") for text in params["resume"] or ()]
    answers = list(params["answer"] or ())
    arguments = {option.name for option in options if option.about.get("argument")}
    changed = [
        f"The {name}" if name in arguments else f"--{name.replace('_', '-')}"
        for name, value in params.items()
        if value and name not in _BESIDE
    ]
    rule = "Leave out everything but --resume, --answer and how it is shown."
    many = f"There are {len(tokens)} tokens and {len(answers)} answers."
    run_ids = {token.partition(":")[0] for token in tokens}
    refuse(
        (not tokens, "--answer needs to know which question.", _EXAMPLE),
        (not answers, "--resume needs an answer.", _EXAMPLE),
        (changed, f"{''.join(changed[:1])} cannot be changed when a run goes on.", rule),
        (len(tokens) > len(answers), many, "Write an --answer for every --resume."),
        (len(run_ids) > 1, "The tokens belong to different runs.", "Go on with one at a time."),
    )
    (run_id,) = run_ids
    run: Run = client.get(run_path(run_id))
    seen = max((event["seq"] for event in history(client, run["id"])), default=0)
    for token, answer in _matched(run, tokens, answers):
        run = client.post(run_path(run_id, "answer"), {"answer": answer, "token": token})
    return run, seen


def _matched(run: Run, tokens: list[str], answers: list[str]) -> list[tuple[str, str]]:
    """Which question each answer is for: those of the tokens first, then the others in order."""
    named = [token for token in tokens if ":" in token]
    others = [question["token"] for question in run["questions"]]
    order = [*named, *(token for token in others if token not in named)]
    if len(answers) > len(order):
        asked = len(run["questions"])
        many = f"{asked} of these, not {len(answers)}" if asked else "nothing"
        raise Conflict(
            f"{run['id']} is {run['status']} and asks {many}.",
            hint=f"`kapelle runs status {run['id']}` shows what it asks.",
        )
    return list(zip(order, answers, strict=False))


def _repeat(spec: Spec, params: Params) -> None:
    """Create a schedule that does it again and again, and print the schedule's id."""
    from kapelle.cli.schedules import send

    both = "--every and --follow exclude each other: it may go on for ever."
    refuse((params["follow"], both, "`kapelle schedule status ID` shows how it gets on."))
    every_s = duration_s(params["every"], "--every", least=1)
    send({"kind": "task", "spec": spec, "every_s": every_s}, params["as_json"])


def _split(options: Sequence[Option]) -> tuple[list[Option], list[Option]]:
    """The options of a pattern's own, and those that every pattern has."""
    common = schemas()["pattern"]["properties"]
    own = [option for option in options if option.key not in common]
    return own, [option for option in options if option.key in common]


_WORDS = argument(
    "PATTERN [--KEY VALUE]",
    "The pattern's name and what it takes.",
    autocompletion=completing("patterns"),
)
_SPEC = option("FILE", "Read what it takes from .json, .yaml or .toml.")
_HELP = flag("Show this help, or that of the pattern before it.", "--help", "-h")
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
        if params["show_help"]:
            pattern = _named(words[0], absolute_directory(params["directory"]))
            sys.stdout.write(pattern_help(pattern) + "\n")
            return
        path, body, options = order(name, params)
        with spelled(options):
            _start(path, body, params)

    first = {"words": Annotated[Words, _WORDS], "spec": Annotated[Path | None, _SPEC]}
    last = {"follow": FollowToEnd, "as_json": Json, "show_help": Annotated[bool, _HELP]}
    shared = options_of(schemas()["pattern"])
    made = with_parameters(start, {KEY: _ABOUT}, first, shared, last)
    settings = {"ignore_unknown_options": True}
    return command_of(made, name, add_help_option=False, context_settings=settings)


def _without_a_name(params: Params) -> None:
    if params["show_help"]:
        sys.stdout.write(_help_of(start_command(), "kapelle start") + "\n")
        return
    query = {"directory": absolute_directory(params["directory"])}
    known = Connection().get("/patterns", query)
    if params["as_json"]:
        document(known)
        return
    here = f"{current()}/"
    rows = [
        [one_line(item["name"]), one_line(item["origin"].removeprefix(here)),
         ("" if item["trusted"] else "(not trusted) ") + one_line(item["summary"])]
        for item in known
    ]  # fmt: skip
    write(table(["PATTERN", "FROM", "WHAT IT DOES"], rows))
    sys.stdout.flush()
    say("`kapelle start PATTERN --help` shows what one takes.")


def _named(name: str, directory: str) -> Pattern:
    known: list[Pattern] = Connection().get("/patterns", {"directory": directory})
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
    shared = [replace(option, hidden=True) for option in shared]
    made = with_parameters(lambda **_: None, {KEY: about}, own, shared)
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
    return str(command.get_help(command.make_context(path, [], resilient_parsing=True)))


def read_spec(file: Path) -> dict[str, Any]:
    """What the file holds; an error names the file and, where it is known, the line."""
    import tomllib

    import yaml

    parsers: dict[str, Callable[[str], Any]] = {
        ".json": json.loads, ".toml": tomllib.loads, ".yaml": yaml.safe_load, ".yml": yaml.safe_load
    }  # fmt: skip
    suffix = file.suffix.lower()
    if suffix not in parsers:
        raise InvalidInput(
            f"--spec {file} is of no kind that is known.", hint="Use .json, .yaml or .toml."
        )
    try:
        spec = parsers[suffix](read_bytes(file, f"--spec {file}", _MAX_SPEC_BYTES).decode())
    except (ValueError, yaml.YAMLError) as error:
        kind = {".yml": "YAML"}.get(suffix, suffix[1:].upper())
        raise InvalidInput(f"{file} is not {kind}: {' '.join(str(error).split())}.") from None
    if not isinstance(spec, dict) or not all(isinstance(key, str) for key in spec):
        raise InvalidInput(
            f"--spec {file} holds no fields.", hint="Give every field a name: prompt, agent …"
        )
    return spec
