"""The help of a pattern, made of its schema."""

from collections.abc import Iterator
from typing import Any

from kapelle.cli.format import one_line, paint, table
from kapelle.cli.patterns.options import SHARED
from kapelle.cli.patterns.schema_options import SchemaOption, options_of

# Fields that the options of `kapelle start` itself are for, some under a shorter name.
_COVERED = frozenset(
    {*SHARED, "fallback_agents", "workspace", "task_timeout_s", "budget_usd"}
)  # fmt: skip


def pattern_help(pattern: dict[str, Any]) -> Iterator[str]:
    """The lines that tell what a pattern takes."""
    name = pattern["name"]
    yield f"Usage: kapelle start {name} [OPTIONS]"
    yield ""
    yield f"  {one_line(pattern['summary'])}"
    yield "  " + paint("From " + one_line(pattern["origin"]), "dim")
    options = [item for item in options_of(pattern["spec_schema"]).values() if _is_own(item)]
    if options:
        yield ""
        rows = [[_name(item), _about(item)] for item in options]
        yield from table(["OPTION", ""], rows, indent=2)
    yield ""
    yield "  `kapelle start --help` shows what all patterns take: --agent, -C, --budget …"


def _is_own(option: SchemaOption) -> bool:
    return option.key not in _COVERED


def _name(option: SchemaOption) -> str:
    return f"{option.flag} {option.metavar}".rstrip()


def _about(option: SchemaOption) -> str:
    facts = []
    if option.required:
        facts.append("required")
    elif option.default not in (None, [], {}, False):
        facts.append(f"default {option.default}")
    if option.repeatable:
        facts.append("repeatable")
    note = f"({', '.join(facts)})" if facts else ""
    return one_line(" ".join(filter(None, [option.help, note])))
