"""`kapelle usage` and `kapelle report`."""

from typing import Any

from kapelle.cli.command import CommandOutput, option
from kapelle.cli.format import clean, cost, one_line
from kapelle.cli.ids import completing
from kapelle.cli.output import say
from kapelle.cli.pages import RepositoryOption, repository_filter
from kapelle.cli.values import choice, not_empty, optional, since
from kapelle.client.http import DaemonConnection
from kapelle.domain.text import format_count

PROPERTIES = ("agent", "model", "project", "task", "run", "template", "outcome", "day")
_COUNTERS = ("attempts", "input_tokens", "cached_tokens", "output_tokens", "turns")
_HEADER = ("ATTEMPTS", "INPUT", "CACHED", "OUTPUT", "TURNS", "COST")
_LONGEST_KEY = 60


def usage(
    by: str = option("|".join(PROPERTIES), "What to add up by; a day is UTC's.", default="agent"),
    across: str | None = option(
        "PROPERTY", "A second one: a row for each pair, such as agent and day."
    ),
    start: str | None = option("WHEN", "From 7d or 12h ago, or 2026-11-01, on.", "--since"),
    until: str | None = option("WHEN", "Up to then; a day is included."),
    agent: str | None = option("NAME", "Only this agent's."),
    model: str | None = option("NAME", "Only this model's."),
    project: str | None = option("NAME", "Only this project's."),
    repository: RepositoryOption = None,
    task: str | None = option("ID", "Only this task's.", autocompletion=completing("tasks")),
    run: str | None = option("ID", "Only this run's and those inside it."),
) -> CommandOutput:
    """Show what was used: tokens, turns and money.

    Cached tokens are among the input tokens. A cost that nobody knows is shown as unknown, not as
    zero; prices of your own go into [prices] of the configuration.
    """
    given = {"agent": agent, "model": model, "project": project, "task": task, "run": run}
    filters = {n: not_empty(text, f"--{n}") for n, text in given.items() if text is not None}
    times = {"since": since(start, "--since"), "until": since(until, "--until")}
    query = {"by": choice("--by", by.lower(), PROPERTIES), **filters, **times}
    query["repository"] = repository_filter(repository)
    if across is not None:
        query["across"] = choice("--across", across.lower(), PROPERTIES)
    yield (report := DaemonConnection().get("/usage", query))
    if report["rows"]:
        yield from lines(report)
    else:
        say("Nothing was used: there are no such attempts.")
    if silent := report["total"]["unreported"]:
        say(f"{format_count(silent, 'attempt')} told nothing about usage.")


def report(
    start: str = option(
        "WHEN", "From 12h or 7d ago, or 2026-11-01T18:00, on.", "--since", default="24h"
    ),
    until: str | None = option("WHEN", "Up to then; a day is included."),
    project: str | None = option("NAME", "Only this project's."),
    repository: RepositoryOption = None,
) -> CommandOutput:
    """Tell what was asked for, done, proven and spent, and what needs you.

    It is Markdown: `kapelle report --since 12h > night.md`. What was not verified is said to be so,
    and whatever failed has its reason and what to type next.
    """
    times = {"since": since(start, "--since"), "until": since(until, "--until")}
    query = {**times, "project": optional(not_empty, project, "--project")}
    query["repository"] = repository_filter(repository)
    yield (found := DaemonConnection().get("/report", query))
    yield from clean(found["markdown"]).splitlines()


def lines(report: dict[str, Any]) -> list[str]:
    """The table, with a total below where there is more than one row."""
    from kapelle.cli.format import paint, table

    names = [name for name in (report["by"], report["across"]) if name]
    rows = [[*_keys(names, row), *_cells(row)] for row in report["rows"]]
    several = len(rows) > 1
    if several:
        rows.append(["total", *[""] * (len(names) - 1), *_cells(report["total"])])
    header = [*(name.upper() for name in names), *_HEADER]
    shown = table(header, rows, right=range(len(names), len(header) - 1))
    if several:
        return [*shown[:-1], paint(shown[-1], "bold")]
    return shown


def _keys(names: list[str], row: dict[str, Any]) -> list[str]:
    found = []
    for name, key in zip(names, (row["key"], row["across"]), strict=False):
        if name == "task" and row["title"]:
            title = f" {row['title']}"
        else:
            title = ""
        if name == "model":
            nothing = "(unknown)"
        else:
            nothing = "(none)"
        found.append(nothing if key is None else one_line(f"{key}{title}", _LONGEST_KEY))
    return found


def _cells(row: dict[str, Any]) -> list[str]:
    # Whoever told nothing may have used much.
    silent = row["unreported"] and not row["input_tokens"] and not row["output_tokens"]
    attempts, *others = (f"{row[name]:,}" for name in _COUNTERS)
    if silent:
        used = ["-"] * len(others)
    else:
        used = others
    return [attempts, *used, cost(row["cost_usd"], row["unknown_cost"] + row["unreported"])]
