"""Commands that start work: `kapelle run`, the built-in patterns, and patterns of a repository.

Each is built from the schema of its specification.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kapelle.cli import help_page, parser
from kapelle.cli.field_errors import name_options
from kapelle.cli.ids import run_path, template_path
from kapelle.cli.parser import CliCommand, CliOption
from kapelle.cli.schema import Schema, schemas
from kapelle.cli.spec_options import SpecOption, options_of, params_of
from kapelle.cli.spec_values import Params, SpecFields, absolute_directory, read_spec
from kapelle.cli.types import FILE
from kapelle.cli.values import duration_s, pairs, refuse
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Conflict
from kapelle.domain.options import KEY

if TYPE_CHECKING:
    from kapelle.client.records import RunJson

_TASK = "run"
_ANSWER_EXAMPLE = 'Write `--resume TOKEN --answer "…"`.'


@dataclass(frozen=True)
class WorkStarter:
    """A kind of work that a command starts: a task, or a run of a pattern.

    A pattern that is not built in belongs to a repository or a package: only the daemon knows its
    specification.
    """

    name: str
    schema: Schema
    is_built_in: bool = True

    @classmethod
    def built_in(cls, name: str) -> "WorkStarter":
        """Return what `kapelle run` or the command of a built-in pattern starts."""
        return cls(name, schemas()["task" if name == _TASK else name])

    @property
    def command_name(self) -> str:
        """The words behind `kapelle` that start this work."""
        if self.is_built_in:
            return self.name
        return f"start {self.name}"

    @property
    def options(self) -> list[SpecOption]:
        return options_of(self.schema)

    def build_command(self) -> CliCommand:
        """Build the command; options that every pattern has stand behind those of its own."""
        facts = self.schema[KEY]
        common = schemas()["pattern"]["properties"] if self.name != _TASK else {}
        own = [option for option in self.options if option.key not in common]
        shared = [option for option in self.options if option.key in common]
        params = [
            *params_of(own),
            *_question_options(facts),
            *self._file_options(facts),
            *params_of(shared),
            *([_every_option()] if self.name == _TASK else []),
            parser.follow_option(),
            parser.json_option(),
        ]
        texts = [facts["summary"], facts.get("about")]
        return CliCommand(
            self.name,
            params=params,
            callback=partial(_start, self),
            help="\n\n".join(text for text in texts if text),
            examples=facts.get("examples", ()),
        )

    def _file_options(self, facts: Schema) -> list[click.Parameter]:
        """Return the options that read the whole specification from a file."""
        if not self.is_built_in:
            help = "File with the specification (.json, .yaml or .toml)."
            return [_spec_file_option(["--spec"], help)]
        if "file" not in facts:
            return []
        *names, help = facts["file"]
        variable = CliOption(
            ["var", "--var"], multiple=True, metavar="NAME=VALUE", group=help_page.INPUT,
            help="Variable of the file.",
        )  # fmt: skip
        return [_spec_file_option(names, help), variable]

    def request(self, params: Params) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of the request that starts the work."""
        with name_options(self.options):
            spec = self.spec(params)
        if self.name == _TASK:
            return "/tasks", spec
        return "/runs", {"pattern": self.name, "spec": spec}

    def spec(self, params: Params) -> SpecFields:
        """Return the specification that was typed; options replace fields of a file."""
        file = params.get("whole_file")
        variables = pairs(params.get("var") or (), "--var")
        no_file = "--var is for the steps of a file."
        refuse((variables and file is None, no_file, "Add -F FILE."))
        if file is None:
            typed = read_spec(self.options, params, self.command_name)
            return self._with_directory(typed, params)
        self._refuse_arguments(params)
        typed = read_spec(self.options, params)
        if self.is_built_in:
            from kapelle.cli.pattern_file import read_pattern_file

            return read_pattern_file(self.name, file, variables, typed)
        from kapelle.cli.spec_file import read_typed_file

        return self._with_directory({**read_typed_file(file), **typed}, params)

    def _refuse_arguments(self, params: Params) -> None:
        """Raise InvalidInput if prompts were typed beside a file."""
        for option in self.options:
            is_twice = option.is_argument and params.get(option.param_name)
            words = f"The {option.key} were given twice, as prompts and as a file."
            refuse((is_twice, words, "Leave the file out, or put the prompts into it."))

    def _with_directory(self, spec: SpecFields, params: Params) -> SpecFields:
        """Return the specification with its directory: its own, its template's, or the present."""
        directory = None
        if "template" in spec and "directory" not in spec:
            template = DaemonConnection().get(template_path(spec["template"]))
            directory = template["directory"]
        if not directory:
            directory = absolute_directory(params["directory"])
        return {"directory": directory, **spec}


def _spec_file_option(names: Sequence[str], help: str) -> CliOption:
    return CliOption(
        ["whole_file", *names], type=FILE, metavar="FILE", help=help, group=help_page.INPUT
    )


def _every_option() -> CliOption:
    return CliOption(
        ["every", "--every"],
        metavar="DURATION",
        help="Interval of a schedule that starts the task now, and again after each success.",
        group=help_page.START,
    )


def _question_options(facts: Schema) -> list[click.Parameter]:
    """Return the options of a pattern that asks its questions where it is followed."""
    if not facts.get("foreground"):
        return []
    return [
        CliOption(["resume", "--resume"], metavar="TOKEN", group=help_page.INPUT,
               help="Token of a question, to go on with the run that asked it; needs --answer."),
        CliOption(["answer", "--answer"], metavar="TEXT", multiple=True, group=help_page.INPUT,
               help="Answer to a question of the run; with --resume."),
        CliOption(["progress", "--progress"], is_flag=True, group=help_page.OUTPUT,
               help="Follow the run, with one JSON line per iteration on stderr."),
    ]  # fmt: skip


def _start(starter: WorkStarter, **params: Any) -> int:
    """Start the work of a command, and follow it if that was asked for."""
    from kapelle.cli.follow import show_start
    from kapelle.cli.relocation import say_if_moved

    client = DaemonConnection()
    settings: dict[str, Any] = {}
    with name_options(starter.options):
        if params.get("every") is not None:
            return _start_repeatedly(starter.spec(params), params)
        if params.get("resume") is not None or params.get("answer"):
            item: Any = _answer_run(client, params, starter.options)
            settings["tail"] = 0
        else:
            path, body = starter.request(params)
            say_if_moved(client)
            item = client.create(path, body)
    is_followed = bool(params["follow"] or params.get("progress"))
    if item.get("interactive"):
        from kapelle.cli.attach import attach_to, is_at_terminal

        if is_at_terminal() and not params["as_json"]:
            return attach_to(client, item)
        is_followed = False  # without a terminal nobody could type in the agent's
    settings |= {
        "iterations": params.get("progress"),
        "asks": not params.get("ask_non_interactive"),
    }
    return show_start(client, item, is_followed, params["as_json"], **settings)


def _answer_run(
    client: DaemonConnection, params: Params, options: Sequence[SpecOption]
) -> "RunJson":
    """Answer questions of a run, first that of the token, then the others; return the run."""
    token = (params["resume"] or "").strip()
    answers = params["answer"] or ()
    extra = _find_extra(params, options)
    rule = "Leave out everything but --resume, --answer and the options of the output."
    refuse(
        (not token, "--answer needs the token of a question.", _ANSWER_EXAMPLE),
        (not answers, "--resume needs an answer.", _ANSWER_EXAMPLE),
        (extra, f"{extra} cannot be changed when a run goes on.", rule),
    )
    run_id, is_question, _ = token.partition(":")
    run: RunJson = client.get(run_path(run_id))
    open_tokens = [question["token"] for question in run["questions"]]
    tokens = open_tokens
    if is_question:
        tokens = list(dict.fromkeys([token, *open_tokens]))
    if len(answers) > len(tokens):  # an answer cannot be for a question that comes only after it
        number = "no question"
        if open_tokens:
            number = f"{len(open_tokens)} of these, not {len(answers)}"
        raise Conflict(
            f"{run['id']} is {run['status']} and asks {number}.",
            hint=f"`kapelle runs status {run['id']}` shows what it asks.",
        )
    for question_token, answer in zip(tokens, answers, strict=False):
        body = {"answer": answer, "token": question_token}
        run = client.post(run_path(run_id, "answer"), body)
    return run


# Parameters that may stand beside --resume; everything else is settled when a run starts.
_BESIDE_RESUME = frozenset(
    {"resume", "answer", "progress", "follow", "as_json", "ask", "ask_non_interactive"}
)


def _find_extra(params: Params, options: Sequence[SpecOption]) -> str:
    """Return the first option or argument that may not stand beside --resume; empty if none."""
    arguments = {option.param_name for option in options if option.is_argument}
    for name, value in params.items():
        if value and name not in _BESIDE_RESUME:
            if name in arguments:
                return f"The {name}"
            return f"--{name.replace('_', '-')}"
    return ""


def _start_repeatedly(spec: SpecFields, params: Params) -> int:
    """Create a schedule that starts the task again and again, and print the schedule's id."""
    from kapelle.cli.schedules import create_schedule

    words = "--every and --follow exclude each other: it may go on for ever."
    hint = "`kapelle schedule status ID` shows its state."
    refuse((params["follow"], words, hint))
    every_s = duration_s(params["every"], "--every", least=1)
    return create_schedule({"kind": "task", "spec": spec, "every_s": every_s}, params["as_json"])


run = WorkStarter.built_in(_TASK).build_command()
