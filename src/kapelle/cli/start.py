"""Commands that start work, each made of its spec's schema: `run`, those of patterns, `start`."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from kapelle.cli.command import (
    FollowToEnd,
    JsonFlag,
    argument,
    command_of,
    flag,
    option,
    suggestion,
)
from kapelle.cli.config import current
from kapelle.cli.format import one_line
from kapelle.cli.ids import completing, run_path, template_path
from kapelle.cli.output import document, say, write
from kapelle.cli.pages import columns
from kapelle.cli.spec_options import (
    Params,
    Schema,
    SpecFields,
    SpecOption,
    absolute_directory,
    built_in,
    options_of,
    schemas,
    spec_of,
    spelled,
    with_parameters,
)
from kapelle.cli.values import duration_s, pairs, read_bytes, refuse
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Conflict, InvalidInput, NotFound
from kapelle.domain.options import KEY
from kapelle.domain.report import RunFields

PatternFields = dict[str, Any]
Words = list[str] | None

_MAX_SPEC_BYTES = 16_000_000
_EVERY = Annotated[
    str | None,
    option("DURATION", "As a schedule: at once, then again so long after each success.", "--every"),
]
_QUESTIONS: dict[str, Any] = {
    "resume": Annotated[
        str | None, option("TOKEN", "Go on with a run that asked; needs --answer.")
    ],
    "answer": Annotated[Words, option("TEXT", "With --resume: what it wanted to know.")],
    "progress": Annotated[
        bool, flag("Follow it: one JSON line per iteration on stderr.", "--progress")
    ],
}
_SPEC = option("FILE", "Read what it takes from .json, .yaml or .toml.", "--spec")
_VAR = Annotated[Words, option("NAME=VALUE", "A variable of the file; repeatable.", "--var")]


@dataclass(frozen=True)
class Starter:
    """What a command starts: a task, or a run of a pattern; the schema tells what it takes."""

    name: str
    schema: Schema
    is_own: bool = False  # of a repository or a package, so that only the daemon knows its spec

    @classmethod
    def of(cls, name: str) -> "Starter":
        """What `kapelle run` or the command of a built-in pattern starts."""
        return cls(name, schemas()["task" if name == "run" else name])

    @property
    def typed(self) -> str:
        if self.is_own:
            return f"start {self.name}"
        return self.name

    @property
    def options(self) -> list[SpecOption]:
        return options_of(self.schema)

    def command(self) -> Callable[..., None]:
        """The command as Typer takes it, with the options that every pattern has at the end."""
        facts = self.schema[KEY]
        if self.name != "run":
            common = schemas()["pattern"]["properties"]
        else:
            common = {}
        own = [option for option in self.options if option.key not in common]
        shared = [option for option in self.options if option.key in common]
        if facts.get("foreground"):
            middle: dict[str, Any] = dict(_QUESTIONS)
        else:
            middle = {}
        if self.is_own:
            middle["whole_file"] = Annotated[Path | None, _SPEC]
        elif "file" in facts:
            *names, help = facts["file"]
            middle |= {"whole_file": Annotated[Path | None, option("FILE", help, *names)]}
            middle |= {"var": _VAR}
        if self.name == "run":
            last: dict[str, Any] = {"every": _EVERY}
        else:
            last = {}
        last |= {"follow": FollowToEnd, "as_json": JsonFlag}

        def start(**params: Any) -> None:
            _start(self, params)

        return with_parameters(start, self.schema, own, middle, shared, last)

    def order(self, params: Params) -> tuple[str, dict[str, Any]]:
        """The path of the API and the body that the options ask for."""
        with spelled(self.options):
            spec = self.spec(params)
        if self.name == "run":
            return "/tasks", spec
        return "/runs", {"pattern": self.name, "spec": spec}

    def spec(self, params: Params) -> SpecFields:
        """The task or the run that the options ask for; over what a file says, if one is given."""
        file = params.get("whole_file")
        variables = pairs(params.get("var") or [], "--var")
        no_file = "--var is for the steps of a file."
        refuse((variables and file is None, no_file, "Add -F FILE."))
        given = spec_of(self.options, params, "" if file else self.typed)
        for one in self.options if file else ():
            twice = f"The {one.key} were given twice, as prompts and as a file."
            hint = "Leave the file out, or put the prompts into it."
            refuse((params.get(one.name) and "argument" in one.about, twice, hint))
        if file and not self.is_own:
            from kapelle.cli.spec_file import read_spec_file

            return read_spec_file(self.name, file, variables, given)
        spec = {**(read_spec(file) if file else {}), **given}
        if "template" in spec and "directory" not in spec:
            found = DaemonConnection().get(template_path(spec["template"]))["directory"]
            spec |= {"directory": found} if found else {}
        return {"directory": absolute_directory(params["directory"]), **spec}


def work_command(name: str) -> Callable[..., None]:
    """`kapelle run`, or the command of a built-in pattern."""
    return Starter.of(name).command()


def _start(starter: Starter, params: Params) -> None:
    from kapelle.cli.follow import show_new
    from kapelle.cli.relocation import say_if_moved

    client = DaemonConnection()
    how = dict[str, Any]()
    with spelled(starter.options):
        if params.get("every") is not None:
            _repeat(starter.spec(params), params)
            return
        if params.get("resume") is not None or params.get("answer"):
            begun, how["tail"] = _answered(client, params, starter.options), 0
        else:
            path, body = starter.order(params)
            say_if_moved(client)
            begun = client.create(path, body)
    to_end = bool(params["follow"] or params.get("progress"))
    if begun.get("interactive"):
        from kapelle.cli.attach import attach_to, is_at_terminal

        if is_at_terminal() and not params["as_json"]:
            attach_to(client, begun)
            return
        to_end = False  # who cannot type cannot end what is in a terminal
    how |= {"iterations": params.get("progress"), "asks": not params.get("ask_non_interactive")}
    show_new(client, begun, to_end, params["as_json"], **how)


_EXAMPLE = 'Write `--resume TOKEN --answer "…"`.'
# What may stand beside --resume; everything else is settled when a run is started.
_BESIDE = frozenset({*_QUESTIONS, "follow", "as_json", "ask", "ask_non_interactive"})


def _answered(client: DaemonConnection, params: Params, options: Sequence[SpecOption]) -> RunFields:
    """A run whose questions were answered: that of the token first, then the others in order."""
    token = (params["resume"] or "").strip()
    answers = params["answer"] or []
    arguments = {option.name for option in options if option.about.get("argument")}
    changed = [
        f"The {name}" if name in arguments else f"--{name.replace('_', '-')}"
        for name, value in params.items()
        if value and name not in _BESIDE
    ]
    rule = "Leave out everything but --resume, --answer and how it is shown."
    refuse(
        (not token, "--answer needs to know which question.", _EXAMPLE),
        (not answers, "--resume needs an answer.", _EXAMPLE),
        (changed, f"{''.join(changed[:1])} cannot be changed when a run goes on.", rule),
    )
    run_id, asks, _ = token.partition(":")
    run: RunFields = client.get(run_path(run_id))
    others = [question["token"] for question in run["questions"]]
    order = list(dict.fromkeys([token, *others] if asks else others))
    if len(answers) > len(order):  # nothing is an answer to what is asked only after this
        if others:
            many = f"{len(others)} of these, not {len(answers)}"
        else:
            many = "nothing"
        raise Conflict(
            f"{run['id']} is {run['status']} and asks {many}.",
            hint=f"`kapelle runs status {run['id']}` shows what it asks.",
        )
    for question, answer in zip(order, answers, strict=False):
        run = client.post(run_path(run_id, "answer"), {"answer": answer, "token": question})
    return run


def _repeat(spec: SpecFields, params: Params) -> None:
    """Create a schedule that does it again and again, and print the schedule's id."""
    from kapelle.cli.schedules import send

    both = "--every and --follow exclude each other: it may go on for ever."
    refuse((params["follow"], both, "`kapelle schedule status ID` shows how it gets on."))
    every_s = duration_s(params["every"], "--every", least=1)
    send({"kind": "task", "spec": spec, "every_s": every_s}, params["as_json"])


_WORDS = argument(
    "PATTERN [OPTIONS]",
    "The pattern's name and what it takes.",
    autocompletion=completing("patterns"),
)
_HELP = flag("Show this help, or that of the pattern before it.", "--help", "-h")
_ABOUT = {
    "summary": "Start a run of any pattern, your own too.",
    "about": "Without a pattern it lists them. `kapelle start PATTERN --help` shows what one takes."
    " Of your own, the fields of its spec are options: those that are on or off stand alone, lists"
    " are repeatable, and objects are JSON texts.",
}


def start_command(name: str = "start") -> Any:
    """`kapelle start`; what stands behind a pattern's name is for the command of that pattern."""

    def start(**params: Any) -> None:
        if params["words"]:
            starter, words = _starter(params)
            command = command_of(starter.command(), starter.typed)
            with command.make_context(f"kapelle start {starter.name}", words) as context:
                command.invoke(context)
        elif params["show_help"]:
            command = start_command()
            context = command.make_context("kapelle start", [], resilient_parsing=True)
            sys.stdout.write(command.get_help(context) + "\n")
        else:
            _list_patterns(params)

    where = [option for option in options_of(schemas()["pattern"]) if option.key == "directory"]
    last = {"as_json": JsonFlag, "show_help": Annotated[bool, _HELP]}
    made = with_parameters(start, {KEY: _ABOUT}, {"words": Annotated[Words, _WORDS]}, where, last)
    settings = {"ignore_unknown_options": True}
    return command_of(made, name, add_help_option=False, context_settings=settings)


def starter_of(name: str, arguments: list[str]) -> tuple[Starter, list[str]]:
    """What the command of this name starts, and what its own command takes."""
    if name != "start":
        return Starter.of(name), arguments
    params = start_command().make_context("kapelle start", arguments).params
    no_name = "The pattern's name is missing."
    refuse((not params["words"], no_name, "`kapelle start` lists the patterns."))
    return _starter(params)


def _starter(params: Params) -> tuple[Starter, list[str]]:
    """The pattern that was named, and what was typed besides its name."""
    name, *words = params["words"]
    directory = params["directory"]
    words += ["-C", str(directory)] if directory else []
    words += ["--json"] if params["as_json"] else []
    words += ["--help"] if params["show_help"] else []
    if name in built_in():
        return Starter.of(name), words
    pattern = _named(name, absolute_directory(directory))
    schema = pattern["spec_schema"]
    about = {
        "summary": one_line(pattern["summary"]),
        "about": f"From {one_line(pattern['origin'])}",
    }
    return Starter(name, {**schema, KEY: {**schema.get(KEY, {}), **about}}, is_own=True), words


def _list_patterns(params: Params) -> None:
    query = {"directory": absolute_directory(params["directory"])}
    known = DaemonConnection().get("/patterns", query)
    if params["as_json"]:
        document(known)
        return
    here = f"{current()}/"
    write(columns("PATTERN,FROM,WHAT IT DOES", lambda one: [
        one["name"], one["origin"].removeprefix(here),
        ("" if one["trusted"] else "(not trusted) ") + one["summary"],
    ])(known))  # fmt: skip
    sys.stdout.flush()
    say("`kapelle start PATTERN --help` shows what one takes.")


def _named(name: str, directory: str) -> PatternFields:
    known: list[PatternFields] = DaemonConnection().get("/patterns", {"directory": directory})
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
            hint="Write `kapelle start PATTERN --option`; `kapelle start` lists the patterns.",
        )
    names = [pattern["name"] for pattern in known]
    hint = suggestion(name, names, 0.5).strip() or f"There are {', '.join(names)}."
    raise NotFound(f"There is no pattern {name!r}.", hint=hint)


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
