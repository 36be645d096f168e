"""`kapelle usage` and `kapelle report`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kapelle.cli.figures import format_cost
from kapelle.cli.ids import complete
from kapelle.cli.layout import format_table, paint
from kapelle.cli.pages import repository_filter, repository_option
from kapelle.cli.parser import command, complete_choice, option, reports
from kapelle.cli.result import Result
from kapelle.cli.text import clean, one_line
from kapelle.cli.values import choice, not_empty, optional, since
from kapelle.client.http import DaemonConnection
from kapelle.domain.text import format_count

if TYPE_CHECKING:
    from kapelle.client.records import UsageReportJson, UsageRowJson, UsageSumJson

PROPERTIES = ("agent", "model", "project", "task", "run", "template", "outcome", "day")
_HEADER = ("ATTEMPTS", "INPUT", "CACHED", "OUTPUT", "TURNS", "COST")
_LONGEST_KEY = 60

_until_option = option(
    "--until", metavar="TIME", help="End of the period; the whole of a day is included."
)


@command("usage", "kapelle usage --since 7d", "kapelle usage --by model --across day")
@option(
    "--by",
    metavar="|".join(PROPERTIES),
    default="agent",
    help="Property to add up by; a day is one of UTC.",
    shell_complete=complete_choice(PROPERTIES),
)
@option(
    "--across",
    metavar="PROPERTY",
    help="Second property: one row for each pair, such as agent and day.",
    shell_complete=complete_choice(PROPERTIES),
)
@option(
    "--since",
    "start",
    metavar="TIME",
    help="Beginning of the period: 7d or 12h ago, or a date such as 2026-11-01.",
)
@_until_option
@option("--agent", metavar="NAME", help="Agent to consider.")
@option("--model", metavar="NAME", help="Model to consider.")
@option("--project", metavar="NAME", help="Project to consider.")
@repository_option
@option("--task", metavar="ID", help="Task to consider.", shell_complete=complete("tasks"))
@option("--run", metavar="ID", help="Run to consider, with the runs inside it.")
@reports
def usage(
    by: str,
    across: str | None,
    start: str | None,
    until: str | None,
    agent: str | None,
    model: str | None,
    project: str | None,
    repository: str | None,
    task: str | None,
    run: str | None,
) -> Result:
    """Show used tokens, turns and money.

    Cached tokens are among the input tokens. An unknown cost is shown as unknown, not as zero; your
    own prices go into [prices] of the configuration.
    """
    filters = {"agent": agent, "model": model, "project": project, "task": task, "run": run}
    for name, text in filters.items():
        optional(not_empty, text, f"--{name}")
    query = {
        **{name: text for name, text in filters.items() if text is not None},
        "by": choice("--by", by.lower(), PROPERTIES),
        "since": since(start, "--since"),
        "until": since(until, "--until"),
        "repository": repository_filter(repository),
    }
    if across is not None:
        query["across"] = choice("--across", across.lower(), PROPERTIES)
    answer = DaemonConnection().get("/usage", query)
    lines = usage_lines(answer) if answer["rows"] else []
    return Result(answer, lines, _usage_remarks(answer))


def _usage_remarks(answer: "UsageReportJson") -> Iterator[str]:
    if not answer["rows"]:
        yield "Nothing was used: there are no such attempts."
    silent = answer["total"]["unreported"]
    if silent:
        yield f"{format_count(silent, 'attempt')} reported no usage."


@command("report", "kapelle report --since 12h > night.md")
@option(
    "--since",
    "start",
    metavar="TIME",
    default="24h",
    help="Beginning of the period: 12h or 7d ago, or a time such as 2026-11-01T18:00.",
)
@_until_option
@option("--project", metavar="NAME", help="Project to report about.")
@repository_option
@reports
def report(start: str, until: str | None, project: str | None, repository: str | None) -> Result:
    """Report what was done, verified and spent, and what needs you.

    The report is Markdown. It marks unverified work, and gives the reason and the next command of
    everything that failed.
    """
    query = {
        "since": since(start, "--since"),
        "until": since(until, "--until"),
        "project": optional(not_empty, project, "--project"),
        "repository": repository_filter(repository),
    }
    answer = DaemonConnection().get("/report", query)
    return Result(answer, clean(answer["markdown"]).splitlines())


def usage_lines(report: "UsageReportJson") -> list[str]:
    """Return the table of a usage report, with a total below if it has several rows."""
    names = [name for name in (report["by"], report["across"]) if name]
    rows = [[*_key_cells(names, row), *_number_cells(row)] for row in report["rows"]]
    has_total = len(rows) > 1
    if has_total:
        blanks = [""] * (len(names) - 1)
        rows.append(["total", *blanks, *_number_cells(report["total"])])
    header = [*(name.upper() for name in names), *_HEADER]
    lines = format_table(header, rows, right=range(len(names), len(header) - 1))
    if has_total:
        lines[-1] = paint(lines[-1], "bold")
    return lines


def _key_cells(names: Sequence[str], row: "UsageRowJson") -> list[str]:
    """Return the properties that a row is about."""
    cells = []
    for name, key in zip(names, (row["key"], row["across"]), strict=False):
        if key is None:
            cells.append("(unknown)" if name == "model" else "(none)")
        elif name == "task" and row["title"]:
            cells.append(one_line(f"{key} {row['title']}", _LONGEST_KEY))
        else:
            cells.append(one_line(str(key), _LONGEST_KEY))
    return cells


def _number_cells(row: "UsageRowJson | UsageSumJson") -> list[str]:
    counts = (row["input_tokens"], row["cached_tokens"], row["output_tokens"], row["turns"])
    cells = [f"{count:,}" for count in counts]
    # An agent that reported nothing may have used much.
    is_silent = row["unreported"] and not row["input_tokens"] and not row["output_tokens"]
    if is_silent:
        cells = ["-"] * len(cells)
    return [
        f"{row['attempts']:,}",
        *cells,
        format_cost(row["cost_usd"], row["unknown_cost"] + row["unreported"]),
    ]
