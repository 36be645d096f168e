"""Summaries of the output of agents and commands, with usage, cost and check results.

Some agents keep a log of their own beside their output: the side log.
"""

import fnmatch
import glob
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kapelle.agents.base import AgentAdapter, Summary
from kapelle.agents.summary import complete_summary, compute_cost, find_price, summarise
from kapelle.domain.specs import CheckSpec
from kapelle.domain.task import CheckResult, Usage
from kapelle.runner.output import read_lines, read_tail
from kapelle.runner.process_dir import ProcessEnd
from kapelle.runner.shim.files import ERR, OUT, size
from kapelle.settings import Settings

MAX_OUTPUT = 20_000
# Limits of a failed check's output in the history.
_HISTORY_LINES = 30
_HISTORY_LETTERS = 4000
_TAIL = 10_000
_LAST_BYTES = 1 << 18
# Limits of the search for a side log, since agents write the directories.
_MOST_NAMES = 100_000
_MOST_MATCHES = 1_000
_ESCAPED = re.compile(r"\[([*?[])\]")  # by glob.escape


def read_output(agent: AgentAdapter, process_dir: Path, side_log: "SideLog | None") -> Summary:
    """Return the summary of an agent's output, completed with the agent's side log."""
    if agent.reads_whole_output:
        last_bytes = None
    else:
        last_bytes = _LAST_BYTES
    summary = summarise(agent, read_lines(process_dir / OUT, last_bytes))
    return with_side_log(agent, side_log, summary)


def with_side_log(agent: AgentAdapter, side_log: "SideLog | None", summary: Summary) -> Summary:
    """Complete the summary of an output with the agent's side log, if there is one."""
    if side_log is None:
        return summary
    return complete_summary(summary, summarise(agent, side_log.lines(summary.session_id)))


def output_tail(process_dir: Path) -> str:
    """Return the end of both output streams of an agent as text."""
    output = read_tail(process_dir / OUT, _TAIL)
    return f"{output}\n{read_tail(process_dir / ERR, _TAIL // 2)}".strip()


def attempt_usage(
    summary: Summary, before: Mapping[str, float], model: str | None, settings: Settings
) -> Usage | None:
    """Return the usage and the price of one attempt alone.

    before holds the counters of its session at the start of the attempt.
    """
    if summary.usage is None:
        return None
    counts = summary.usage.model_dump()
    for name in summary.of_session:
        if counts[name] is not None:
            counts[name] = max(0, counts[name] - before.get(name, 0))
    usage = Usage.model_validate(counts)
    if usage.cost_usd is not None:
        return usage
    price = find_price(summary.model or model or "", settings.prices)
    if price:
        return usage.model_copy(update={"cost_usd": compute_cost(usage, price)})
    return usage


def session_counters(summary: Summary) -> dict[str, float]:
    """Return the session's current counters, for the attempt that resumes the session."""
    if summary.usage is None:
        return {}
    counts = summary.usage.model_dump()
    return {name: counts[name] for name in summary.of_session if counts[name] is not None}


def highest_usage(one: Usage | None, other: Usage | None) -> Usage | None:
    """Return the larger figure of each kind."""
    if one is None or other is None:
        return one or other
    counts = one.model_dump()
    others = other.model_dump()
    for name, value in others.items():
        if value is not None:
            counts[name] = max(value, counts[name] or 0)
    return Usage.model_validate(counts)


def total_usage(parts: Iterable[Usage | None]) -> Usage | None:
    """Return the sum of all known usage; the cost is unknown if the cost of any part is."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    total: dict[str, Any] = present[0].model_dump()
    for part in present[1:]:
        for name, value in part.model_dump().items():
            if total[name] is None or value is None:
                total[name] = None
            else:
                total[name] += value
    return Usage.model_validate(total)


class SideLog(BaseModel):
    """Where an agent keeps a log of its own, and the offset at which this attempt begins.

    The place is stored in the database and never in a file, which the agent could change.
    """

    pattern: str
    session_id: str | None  # of the resumed session, unless that is forked
    begin: int = 0

    @classmethod
    def of_row(cls, row: Mapping[Any, Any]) -> "SideLog | None":
        """Return the side log that is stored with an attempt or a process."""
        if row["side_log"]:
            return cls.model_validate(row["side_log"])
        return None

    def find(self, session_id: str | None = None) -> Path | None:
        """Return the newest matching file; None without a match or without a known session."""
        session = session_id or self.session_id
        if session is None and "{session}" in self.pattern:
            return None
        return newest_match(self.pattern.replace("{session}", glob.escape(session or "")))

    def after_present(self) -> "SideLog":
        """Return the log, beginning after the lines of the resumed session."""
        if self.session_id:
            path = self.find()
        else:
            path = None
        if path:
            return self.model_copy(update={"begin": size(str(path))})
        return self

    def lines(self, session_id: str | None) -> Iterator[str]:
        """Yield the lines that belong to this attempt."""
        if path := self.find(session_id):
            yield from read_lines(path, max(0, size(str(path)) - self.begin))


def newest_match(pattern: str) -> Path | None:
    """Return the last file, by name, that matches a glob pattern.

    Unlike glob, ** follows no links. The search ends after a number of names, because agents write
    the directories that are searched.
    """
    names_left = itertools.repeat(None, _MOST_NAMES)
    matches = _matches(Path("/"), Path(pattern).parts[1:], names_left)
    return max(itertools.islice(matches, _MOST_MATCHES), default=None)


def _matches(place: Path, parts: Sequence[str], names_left: Iterator[None]) -> Iterator[Path]:
    """Yield the files below a directory that match the parts of a pattern."""
    if not parts:
        if place.is_file() and not place.is_symlink():
            yield place
        return
    first = parts[0]
    rest = parts[1:]
    if not glob.has_magic(_ESCAPED.sub("", first)):
        yield from _matches(place / _ESCAPED.sub(r"\1", first), rest, names_left)
        return
    if first == "**":
        yield from _matches(place, rest, names_left)
    with suppress(OSError), os.scandir(place) as entries:
        for entry, _ in zip(entries, names_left, strict=False):
            if first != "**" and fnmatch.fnmatchcase(entry.name, first):
                yield from _matches(Path(entry.path), rest, names_left)
            elif first == "**" and entry.is_dir(follow_symlinks=False):
                yield from _matches(Path(entry.path), parts, names_left)


def check_facts(result: CheckResult) -> dict[str, Any]:
    """Return a check's event data; for a failed check with the end of its output."""
    facts = result.model_dump(include={"name", "duration_s", "exit_code"})
    if result.proved is False:
        facts["proof"] = result.proof
    if not result.passed:
        facts["output"] = "\n".join(result.output.strip().split("\n")[-_HISTORY_LINES:])[
            -_HISTORY_LETTERS:
        ]
    return facts


def check_result(check: CheckSpec, end: ProcessEnd, output: str) -> CheckResult:
    """Return the result of a check whose command has ended: it passed if that succeeded."""
    if end.succeeded:
        text = output
    else:
        text = f"{output}\n[{end.describe_end(check.timeout_s)}]".lstrip()
    return CheckResult(
        name=check.label,
        passed=end.succeeded,
        output=text,
        duration_s=round(end.duration_s, 3),
        command=check.command,
        exit_code=end.exit.code,
        out_sha256=end.out_sha256,
        err_sha256=end.err_sha256,
    )
