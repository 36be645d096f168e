"""Commands that start work, each made of its spec's schema: `run`, those of patterns, `start`."""

import difflib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from kapelle.cli.command import LightCommand
from kapelle.cli.config import current, root
from kapelle.cli.format import one_line, paint, table
from kapelle.cli.options import FollowToEnd, Json
from kapelle.cli.output import document, say
from kapelle.cli.request import begin, is_collecting
from kapelle.cli.runs import start_run
from kapelle.cli.spec_options import (
    Option,
    Params,
    Schema,
    Spec,
    absolute_directory,
    options_of,
    parameters_of,
    schemas,
    spec_of,
    spell,
)
from kapelle.cli.values import key_values
from kapelle.client.http import Connection
from kapelle.domain.errors import InvalidInput, KapelleError, NotFound
from kapelle.domain.options import KEY

Pattern = dict[str, Any]
Words = list[str] | None

_Every = Annotated[
    str | None,
    typer.Option(
        "--every",
        metavar="DURATION",
        help="As a schedule: at once, then again so long after each success.",
    ),
]
_FOREGROUND: dict[str, Any] = {
    "resume": Annotated[
        Words, typer.Option(metavar="TOKEN", help="Go on with a run that asked; needs --answer.")
    ],
    "answer": Annotated[
        Words, typer.Option(metavar="TEXT", help="With --resume: what it wanted to know.")
    ],
    "progress": Annotated[
        bool, typer.Option("--progress", help="Print one JSON line per iteration on stderr.")
    ],
}
_DETACH = Annotated[
    bool, typer.Option("--detach", help="Print its id and leave it in the background.")
]
_VAR = Annotated[
    Words, typer.Option("--var", metavar="NAME=VALUE", help="A variable of the file; repeatable.")
]
_DEFINITION = re.compile(r"^@(?:\w+\.)*pattern\(\s*([\"'])([\w-]{1,64})\1", re.MULTILINE)
_MOST_READ = 200_000


def run_command(_name: str = "run") -> Callable[..., None]:
    """`kapelle run`."""
    schema = schemas()["task"]
    options = options_of(schema)

    def run(**params: Any) -> None:
        from kapelle.cli.follow import show_new
        from kapelle.cli.submit import repeat

        spec = task_spec(params)
        if params["every"] is not None:
            repeat(spec, params["every"], params["follow"], params["as_json"])
            return
        client = Connection()
        try:
            task = begin(client, "/tasks", spec)
        except KapelleError as error:
            spell(error, options)
            raise
        show_new(client, task, params["follow"], params["as_json"])

    last = {"every": _Every, "follow": FollowToEnd, "as_json": Json}
    return _command(run, [*parameters_of(options), *_plain(last)], schema)


def task_spec(params: Params) -> Spec:
    """The task that the options of `kapelle run` ask for."""
    options = options_of(schemas()["task"])
    return {
        **spec_of(options, params, "run"),
        "directory": absolute_directory(params["directory"]),
    }


def pattern_command(name: str) -> Callable[..., None]:
    """The command of a built-in pattern."""
    schema = schemas()[name]
    facts = schema[KEY]
    own, shared = _split(schema)
    foreground = facts.get("foreground", False)

    def start(**params: Any) -> None:
        if foreground:
            from kapelle.cli.foreground import perform

            perform(name, params, lambda: pattern_spec(name, params), [*own, *shared])
            return
        follow, as_json = params["follow"], params["as_json"]
        with _spelled([*own, *shared]):
            start_run(name, pattern_spec(name, params), follow=follow, as_json=as_json)

    middle = [*_file_parameters(facts), *(_plain(_FOREGROUND) if foreground else ())]
    last = {"detach": _DETACH} if foreground else {"follow": FollowToEnd}
    parameters = [
        *parameters_of(own), *middle, *parameters_of(shared), *_plain({**last, "as_json": Json}),
    ]  # fmt: skip
    return _command(start, parameters, schema)


def pattern_spec(name: str, params: Params) -> Spec:
    """The run that the options of a pattern's command ask for."""
    schema = schemas()[name]
    options = options_of(schema)
    if "file" in schema[KEY]:
        variables = key_values(params["var"] or [], "--var")
        if params["whole_file"] is not None:
            return _from_file(options, params, variables)
        if variables:
            raise InvalidInput("--var is for the steps of a file.", hint="Add -F FILE.")
    directory = absolute_directory(params["directory"])
    return {**spec_of(options, params, name), "directory": directory}


def _from_file(options: Sequence[Option], params: Params, variables: dict[str, str]) -> Spec:
    for option in options:
        if params.get(option.name) and option.about.get("argument"):
            raise InvalidInput(
                f"The {option.key} were given twice, as prompts and as a file.",
                hint="Leave -F out, or put the prompts into the file.",
            )
    from kapelle.cli.pipeline_file import read_pipeline

    return read_pipeline(params["whole_file"], variables, spec_of(options, params))


def _split(schema: Schema) -> tuple[list[Option], list[Option]]:
    """The options of a pattern's own, and those that every pattern has."""
    common = schemas()["pattern"]["properties"]
    options = options_of(schema)
    own = [option for option in options if option.key not in common]
    return own, [option for option in options if option.key in common]


class _spelled:
    """Lets an error of the daemon name options where it names fields."""

    def __init__(self, options: Sequence[Option]) -> None:
        self._options = options

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, KapelleError):
            spell(error, self._options)


def _file_parameters(facts: dict[str, Any]) -> Iterator[inspect.Parameter]:
    if "file" in facts:
        *names, help = facts["file"]
        file = Annotated[Path | None, typer.Option(*names, metavar="FILE", help=help)]
        yield from _plain({"whole_file": file, "var": _VAR})


def _plain(annotations: dict[str, Any]) -> Iterator[inspect.Parameter]:
    for name, annotation in annotations.items():
        default = False if annotation.__origin__ is bool else None
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )


def _command(
    function: Callable[..., None], parameters: Sequence[inspect.Parameter], schema: Schema
) -> Callable[..., None]:
    facts = schema[KEY]
    function.__doc__ = "\n\n".join(filter(None, [facts["summary"], facts.get("about")]))
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {item.name: item.annotation for item in parameters}
    return function


def _complete_pattern(incomplete: str) -> list[tuple[str, str]]:
    """Names for the shell; without a directory, so that a TAB runs no file of a repository."""
    try:
        known = Connection(autostart=False).get("/patterns", timeout=2)
        found = {item["name"]: item["summary"] for item in known if item["origin"]}
        found = {**dict(_written(current())), **found}
    except Exception:
        # A completion must never disturb the line that is being typed.
        return []
    return [
        (name, one_line(summary, 60))
        for name, summary in sorted(found.items())
        if name.startswith(incomplete)
    ]


def _written(directory: Path) -> Iterator[tuple[str, str]]:
    """The names in the repository's files of patterns as they stand there, and their files."""
    top = root(directory)
    for parent in (directory, *directory.parents):
        place = parent / ".kapelle" / "patterns"
        if os.path.isdir(place) or parent == top:
            break
    for path in sorted(place.glob("*.py")):
        with suppress(OSError):
            found = _DEFINITION.finditer(_beginning(path))
            yield from ((match[2], path.name) for match in found)


def _beginning(path: Path) -> str:
    if not os.path.isfile(path):
        return ""  # a pipe would be waited for
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_READ)


# The options of a pattern are known only when its schema is, so they are taken as they come.
start = typer.Typer(add_completion=False, rich_markup_mode=None)


def _start(**params: Any) -> None:
    context, words = params["ctx"], params["words"]
    if not words:
        _without_a_name(context, params)
        return
    client = Connection()
    pattern = _named(_patterns(client, params["directory"]), words[0])
    if params["show_help"]:
        sys.stdout.writelines(f"{line}\n" for line in pattern_help(pattern))
        return
    with _spelled(options_of(pattern["spec_schema"])):
        spec = start_spec(params, pattern)
        follow, as_json = params["follow"], params["as_json"]
        start_run(pattern["name"], spec, follow=follow, as_json=as_json)


def _start_parameters() -> list[inspect.Parameter]:
    first = {
        "ctx": typer.Context,
        "words": Annotated[
            Words,
            typer.Argument(
                metavar="PATTERN [--KEY VALUE]",
                help="The pattern's name and what it takes.",
                autocompletion=_complete_pattern,
                show_default=False,
            ),
        ],
        "spec": Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="Read what it takes from .json, .yaml or .toml."),
        ],
    }
    show_help = Annotated[
        bool,
        typer.Option("--help", "-h", help="Show this help, or that of the pattern before it."),
    ]
    last = {"follow": FollowToEnd, "as_json": Json, "show_help": show_help}
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=first.pop("ctx"))
    shared = parameters_of(options_of(schemas()["pattern"]))
    return [context, *_plain(first), *shared, *_plain(last)]


_command(
    _start,
    _start_parameters(),
    {
        KEY: {
            "summary": "Start a run of any pattern, your own too.",
            "about": "Without a pattern it lists them. `kapelle start PATTERN --help` shows what"
            " one takes: its keys are options, those that are on or off stand alone, lists are"
            " repeatable, and objects are JSON texts.",
        }
    },
)
start.command(
    "start",
    cls=LightCommand,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
)(_start)


def _without_a_name(context: typer.Context, params: Params) -> None:
    if params["show_help"]:
        sys.stdout.write(context.get_help() + "\n")
        return
    if is_collecting():
        raise InvalidInput(
            "The pattern's name is missing.", hint="`kapelle start` lists the patterns."
        )
    known = _patterns(Connection(), params["directory"])
    if params["as_json"]:
        document(known)
        return
    here = f"{current()}/"
    rows = [
        [one_line(item["name"]), one_line(item["origin"].removeprefix(here)),
         one_line(item["summary"])]
        for item in known
    ]  # fmt: skip
    lines = table(["PATTERN", "FROM", "WHAT IT DOES"], rows)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
    say("`kapelle start PATTERN --help` shows what one takes.")


def _patterns(client: Connection, directory: Path | None) -> list[Pattern]:
    found: list[Pattern] = client.get("/patterns", {"directory": absolute_directory(directory)})
    return found


def _named(known: list[Pattern], name: str) -> Pattern:
    for pattern in known:
        if pattern["name"] == name:
            return pattern
    if name.startswith("-"):
        raise InvalidInput(
            f"{name} stands where the pattern's name should.",
            hint="Write `kapelle start PATTERN --key value`; `kapelle start` lists the patterns.",
        )
    names = [pattern["name"] for pattern in known]
    close = difflib.get_close_matches(name, names, n=2, cutoff=0.5)
    hint = f"Did you mean {' or '.join(close)}?" if close else f"There are {', '.join(names)}."
    raise NotFound(f"There is no pattern {name!r}.", hint=hint)


def start_spec(params: Params, pattern: Pattern) -> Spec:
    """What the pattern is asked for: the file, over it the shared options, over them its own."""
    options = options_of(pattern["spec_schema"])
    own = words_spec((params["words"] or [])[1:], options)
    read: Spec = {}
    if params["spec"] is not None:
        read = read_spec(params["spec"])
    spec = {**read, **spec_of(options_of(schemas()["pattern"]), params), **own}
    spec.setdefault("directory", absolute_directory(None))
    missing = [_raw(option) for option in options if option.required and option.key not in spec]
    if missing:
        name = pattern["name"]
        raise InvalidInput(
            f"{name} needs {' and '.join(missing)}.",
            hint=f"`kapelle start {name} --help` shows what it takes.",
        )
    return spec


def _raw(option: Option) -> str:
    """The option that every field has, whatever else it is called."""
    return "--" + option.key.replace("_", "-")


def words_spec(words: Sequence[str], options: Sequence[Option]) -> Spec:
    """The spec that --key value, --key=value, --flag and bare arguments ask for."""
    typed: dict[str, Any] = {}
    known = {option.name: option for option in options}
    for option, text in _pairs(words, options):
        if option.repeatable:
            typed.setdefault(option.name, []).append(text)
        elif option.name in typed:
            raise InvalidInput(f"{_raw(option)} was given twice.", hint="It takes a single value.")
        else:
            typed[option.name] = text
    spec: Spec = {}
    for name, text in typed.items():
        option = known[name]
        value = text if option.kind == "prompts" else option.value(text, {})
        place = spec
        for part in option.path[:-1]:
            place = place.setdefault(part, {})
        place[option.path[-1]] = value
        for key, implied in option.about.get("implies", {}).items():
            spec.setdefault(key, implied)
    return spec


def _pairs(words: Sequence[str], options: Sequence[Option]) -> Iterator[tuple[Option, str]]:
    rest = iter(words)
    arguments = [option for option in options if option.about.get("argument")]
    for word in rest:
        if not word.startswith("-") and arguments:
            yield arguments[0], word
            continue
        if not word.startswith("--"):
            raise InvalidInput(
                f"{word!r} belongs to no option.", hint="Write --key value for every field."
            )
        flag, given, value = word.partition("=")
        option, negated = _option_named(flag, options)
        if given:
            yield option, value
        elif option.kind == "boolean" and not option.repeatable:
            yield option, "false" if negated else "true"
        else:
            value = next(rest, "")
            if not value:
                raise InvalidInput(f"{flag} needs a value.", hint=f"Write {flag} {option.metavar}.")
            yield option, value


def _option_named(flag: str, options: Sequence[Option]) -> tuple[Option, bool]:
    """The option of this name; --no-x is a flag that is off."""
    known = {_raw(option): option for option in options}
    known |= {name: option for option in options for name in option.names}
    if flag in known:
        return known[flag], False
    positive = known.get("--" + flag.removeprefix("--no-"))
    if flag.startswith("--no-") and positive and positive.kind == "boolean":
        return positive, True
    close = difflib.get_close_matches(flag, known, n=2, cutoff=0.6)
    hint = "`kapelle start PATTERN --help` shows what it takes."
    raise InvalidInput(
        f"There is no option {flag}.", hint=f"Did you mean {' or '.join(close)}?" if close else hint
    )


def pattern_help(pattern: Pattern) -> Iterator[str]:
    """The lines that tell what a pattern takes."""
    name = pattern["name"]
    yield f"Usage: kapelle start {name} [OPTIONS]"
    yield ""
    yield f"  {one_line(pattern['summary'])}"
    yield "  " + paint("From " + one_line(pattern["origin"]), "dim")
    own, _ = _split(pattern["spec_schema"])
    if own:
        yield ""
        rows = [[f"{', '.join(item.names)} {item.metavar}".rstrip(), _about(item)] for item in own]
        yield from table(["OPTION", ""], rows, indent=2)
    yield ""
    yield "  `kapelle start --help` shows what all patterns take: --agent, -C, --budget …"


def _about(option: Option) -> str:
    facts = []
    if option.required:
        facts.append("required")
    elif option.default not in (None, [], {}, False):
        facts.append(f"default {option.default}")
    if option.repeatable:
        facts.append("repeatable")
    note = f"({', '.join(facts)})" if facts else ""
    return one_line(" ".join(filter(None, [option.help, note])))


_KINDS = {".json": "JSON", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML"}


def read_spec(file: Path) -> dict[str, Any]:
    """What the file holds; an error names the file and, where it is known, the line."""
    kind = _KINDS.get(file.suffix.lower())
    if kind is None:
        raise InvalidInput(
            f"--spec {file} is of no kind that is known.", hint="Use .json, .yaml or .toml."
        )
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--spec {file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"--spec {file} is not UTF-8 text.") from None
    spec = _parsed(kind, text, file)
    if not isinstance(spec, dict) or not all(isinstance(key, str) for key in spec):
        raise InvalidInput(
            f"--spec {file} holds no fields.", hint="Give every field a name: prompt, agent …"
        )
    return spec


def _parsed(kind: str, text: str, file: Path) -> Any:
    try:
        if kind == "JSON":
            return json.loads(text)
        if kind == "TOML":
            import tomllib

            return tomllib.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{file} is not {kind}: {error}.") from None
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{file} is not YAML: {' '.join(str(error).split())}.") from None
