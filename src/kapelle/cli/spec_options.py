"""The fields of a specification as options and arguments of a command, made from its JSON schema.

A new field of a specification is an option without further code: what is special about it stands
in its metadata (domain/options.py).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from keyword import iskeyword
from typing import Any

import click

from kapelle.cli import help_page
from kapelle.cli.ids import complete
from kapelle.cli.parser import CliArgument, CliOption, complete_choice
from kapelle.cli.schema import Schema, kind_of, resolve
from kapelle.cli.text import one_line
from kapelle.cli.types import FILE, Number
from kapelle.domain.options import KEY
from kapelle.domain.times import format_duration

_METAVARS = {
    "any": "VALUE",
    "boolean": "",
    "integer": "NUMBER",
    "number": "NUMBER",
    "object": "JSON",
    "pairs": "NAME=VALUE",
}
# Kinds that take several values, and read all of them together.
COLLECTIONS = frozenset({"environment", "list", "names", "pairs", "servers"})
_REPEATABLE = frozenset({"check", "prompts", *COLLECTIONS})
# Parameters that commands have besides those of the fields.
_RESERVED = frozenset(
    {"follow", "as_json", "every", "whole_file", "var", "resume", "answer", "progress"}
)
# The groups of fields on help pages; other fields stand under "Options".
_GROUPS = {
    help_page.INPUT: "title project template continue_from fork_session context tags interactive",
    help_page.AGENT: "agent model fallback_agents system_prompt env tools read_only mcp coordinate"
    " browser",
    help_page.WORKSPACE: "directory workspace base workspaces",
    help_page.START: "priority depends_on deps_policy",
    help_page.LIMITS: "budget_usd timeout_s task_timeout_s max_turns max_seconds max_agent_calls"
    " max_iterations max_failures max_workers max_depth max_attempts retry patience cycles"
    " max_subgoals max_task_retries max_questions worker_turns verifier_turns limits"
    " retry_delay_s eval_timeout_s convergence cooldown_s",
    help_page.CHECKS: "checks until eval direction eval_mode eval_prompt eval_schema judge"
    " judge_model target verify success_criteria playwright prove confirm",
    help_page.DELIVERY: "deliver push merge",
}
_GROUP_OF_FIELD = {}
for _group, _names in _GROUPS.items():
    _GROUP_OF_FIELD.update(dict.fromkeys(_names.split(), _group))


class SpecOption:
    """One field of a specification as an option or an argument.

    facts is the field's metadata; limits is the shape of one value.
    """

    def __init__(
        self, path: tuple[str, ...], shape: Schema, shared: Schema, *, is_required: bool
    ) -> None:
        self.path = path
        self.is_required = is_required
        self.default = shape.get("default")
        self.facts: Mapping[str, Any] = shape.get(KEY, {})
        outer = resolve(shape, shared)
        is_list = outer.get("type") == "array"
        if is_list:
            self.limits = resolve(outer.get("items", {}), shared)
        else:
            self.limits = outer
        self.kind: str = self.facts.get("kind") or kind_of(self.limits)
        self.is_repeatable = is_list or self.kind in _REPEATABLE
        self.choices = tuple(
            str(value) for value in self.limits.get("enum", ()) if value is not None
        )
        # The author of a pattern may be a stranger: no control characters in the help.
        self.help = one_line(self.facts.get("help") or shape.get("description") or "")
        self.check_kinds: Sequence[str] = ()
        if self.kind == "check":
            kinds = resolve(self.limits["properties"]["kind"], shared)
            self.check_kinds = kinds.get("enum", ())[1:]
        self.names = self._find_names()

    def _find_names(self) -> tuple[str, ...]:
        names: tuple[str, ...] = tuple(self.facts.get("names", ()))
        if any(name.startswith("--") for name in names):
            return names
        name = self.path[-1].replace("_", "-")
        is_on_by_default = self.kind == "boolean" and self.default
        if is_on_by_default and "flags" not in self.facts:
            return (*names, f"--{name}/--no-{name}")
        return (*names, f"--{name}")

    @property
    def key(self) -> str:
        return self.path[0]

    @property
    def param_name(self) -> str:
        """The name of the parameter, which must be an identifier and different from the others."""
        name = re.sub(r"\W", "_", "_".join(self.path))
        if iskeyword(name) or name in _RESERVED:
            return f"{name}_"
        return name

    @property
    def file_param(self) -> str:
        return f"{self.param_name}_file"

    @property
    def more_param(self) -> str:
        return f"{self.param_name}_more"

    @property
    def timeout_param(self) -> str:
        return f"{self.param_name}_timeout"

    def flag_param(self, flag: str) -> str:
        """Return the parameter of one of the flags that set the field to a fixed value."""
        return f"{self.param_name}_{flag.strip('-').replace('-', '_')}"

    @property
    def is_argument(self) -> bool:
        return "argument" in self.facts

    @property
    def flag(self) -> str:
        """The long name of the option."""
        name = next((name for name in self.names if name.startswith("--")), self.names[0])
        return name.partition("/")[0]

    @property
    def spelling(self) -> str:
        """The option or argument as an error names it."""
        flags = self.facts.get("flags")
        if flags and self.kind != "boolean":
            return " or ".join(name for name, _, _ in flags)
        names = [self.facts.get("argument") or self.flag, *self.facts.get("more", ())[:1]]
        return " or ".join(names)

    @property
    def metavar(self) -> str:
        if metavar := self.facts.get("metavar"):
            return str(metavar)
        if self.choices:
            return one_line("|".join(self.choices))
        if self.kind == "object" and self.is_repeatable:
            return "TEXT|JSON"  # a step or a check may be given as a text
        return _METAVARS.get(self.kind, self.kind.upper())

    @property
    def group(self) -> str:
        """The group of the option on the help page."""
        return _GROUP_OF_FIELD.get(self.key, help_page.OPTIONS)

    @property
    def default_text(self) -> str:
        """The default as the help shows it; empty if there is none worth showing."""
        default = self.default
        if default in (None, [], {}, False, ""):
            return ""
        if self.kind == "boolean":
            return "on"
        if self.kind == "duration":
            return format_duration(float(default))
        if isinstance(default, dict):
            return " ".join(f"{name}={value}" for name, value in default.items())
        return str(default)

    @property
    def help_text(self) -> str:
        """The help as a sentence."""
        words = self.help.rstrip(".")
        if not words:
            return ""
        return f"{words[0].upper()}{words[1:]}."

    def params(self) -> list[click.Parameter]:
        """Return the options and arguments of the command by which the field is set."""
        if self.is_argument:
            return self._arguments()
        params: list[click.Parameter] = [
            CliOption([self.flag_param(name), name], is_flag=True, default=None, help=text,
                   group=self.group)
            for name, _, text in self.facts.get("flags", ())
        ]  # fmt: skip
        if not self.facts.get("hidden"):
            params.append(self._option())
        if file := self.facts.get("file"):
            params.append(_file_option(self.file_param, file, self.group))
        if timeout := self.facts.get("timeout"):
            name, text = timeout
            params.append(
                CliOption(
                    [self.timeout_param, name], metavar="DURATION", help=text, group=self.group
                )
            )
        return params

    def _option(self) -> CliOption:
        settings: dict[str, Any] = {}
        if self.kind == "boolean" and not self.is_repeatable:
            settings |= {"is_flag": True}
        elif self.kind == "integer":
            settings |= {
                "type": Number(self.limits.get("minimum"), self.limits.get("maximum")),
                "metavar": self.metavar,
            }
        else:
            settings |= {"type": FILE if self.kind == "directory" else str}
            settings |= {"metavar": self.metavar or None}
        if noun := self.facts.get("complete"):
            settings |= {"shell_complete": complete(noun)}
        elif self.choices:
            settings |= {"shell_complete": complete_choice(self.choices)}
        return CliOption(
            [self.param_name, *self.names],
            multiple=self.is_repeatable,
            # Only what was typed is sent; the daemon knows the defaults.
            default=None,
            default_text=self.default_text,
            help=self.help_text,
            group=self.group,
            notes=["required"] if self.is_required and self.kind != "directory" else [],
            **settings,
        )

    def _arguments(self) -> list[click.Parameter]:
        metavar = self.facts["argument"]
        params: list[click.Parameter] = [
            CliArgument(
                [self.param_name],
                metavar=metavar,
                help=self.facts["help"],
                required=False,
                nargs=-1 if self.is_repeatable else 1,
            )
        ]
        if more := self.facts.get("more"):
            name, text = more
            params.append(
                CliOption([self.more_param, name], multiple=True, metavar=metavar, help=text,
                       group=help_page.INPUT)
            )  # fmt: skip
        if file := self.facts.get("file"):
            params.append(_file_option(self.file_param, file, help_page.INPUT))
        return params


def _file_option(name: str, facts: Sequence[str], group: str) -> CliOption:
    flag, text = facts
    return CliOption([name, flag], type=FILE, metavar="FILE", help=text, group=group)


def options_of(schema: Schema) -> list[SpecOption]:
    """Return the fields of a schema as options, in its order.

    An object that is marked as a group has no option; its fields have.
    """
    shared = schema.get("$defs", {})
    required = set(schema.get("required", ()))
    options: list[SpecOption] = []
    for key, shape in schema.get("properties", {}).items():
        facts = shape.get(KEY, {})
        if "group" not in facts:
            options.append(SpecOption((key,), shape, shared, is_required=key in required))
            continue
        for name, part in resolve(shape, shared)["properties"].items():
            part_facts = {**part.get(KEY, {}), "group": facts["group"]}
            inner = {**part, KEY: part_facts}
            options.append(SpecOption((key, name), inner, shared, is_required=False))
    return options


def params_of(options: Iterable[SpecOption]) -> list[click.Parameter]:
    """Return the parameters of a command for these fields, arguments first."""
    params: list[click.Parameter] = []
    for option in sorted(options, key=lambda option: not option.is_argument):
        params += option.params()
    return params
