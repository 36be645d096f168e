"""What agents and commands said: summaries of output and of the log that some agents keep beside it
(the side log), what was used and what that costs, and what a command says that is a check."""

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
from kapelle.agents.summary import completed_by, cost_usd, price_of, summarise
from kapelle.domain.specs import CheckSpec
from kapelle.domain.task import CheckResult, Usage
from kapelle.runner.output import read_lines, read_tail
from kapelle.runner.process_dir import ProcessEnd
from kapelle.runner.shim.files import ERR, OUT, size
from kapelle.settings import Settings

SHOWN_OUTPUT = 20_000
# So much of the output of a failed check is told in the history.
_TOLD_LINES = 30
_TOLD = 4000
_TAIL = 10_000
_LAST_BYTES = 1 << 18
# A search for a side log ends after so many names.
_MOST_NAMES = 100_000
_MOST_MATCHES = 1_000
_ESCAPED = re.compile(r"\[([*?[])\]")  # by glob.escape


def read_output(agent: AgentAdapter, process_dir: Path, side_log: "SideLog | None") -> Summary:
    """Return the summary of an agent's output, completed by the agent's side log."""
    if agent.reads_whole_output:
        last_bytes = None
    else:
        last_bytes = _LAST_BYTES
    summary = summarise(agent, read_lines(process_dir / OUT, last_bytes))
    return with_side_log(agent, side_log, summary)


def with_side_log(agent: AgentAdapter, side_log: "SideLog | None", summary: Summary) -> Summary:
    """Complete the summary of an output by the agent's side log, if it keeps one."""
    if side_log is None:
        return summary
    return completed_by(summary, summarise(agent, side_log.lines(summary.session_id)))


def output_tail(process_dir: Path) -> str:
    """The end of what an agent printed, on both streams, as text."""
    printed = read_tail(process_dir / OUT, _TAIL)
    return f"{printed}\n{read_tail(process_dir / ERR, _TAIL // 2)}".strip()


def attempt_usage(
    summary: Summary, before: Mapping[str, float], model: str | None, settings: Settings
) -> Usage | None:
    """The usage of one attempt alone, with its price; before is what its session had counted."""
    if summary.usage is None:
        return None
    counts = summary.usage.model_dump()
    for name in summary.of_session:
        if counts[name] is not None:
            counts[name] = max(0, counts[name] - before.get(name, 0))
    usage = Usage.model_validate(counts)
    if usage.cost_usd is not None:
        return usage
    price = price_of(summary.model or model or "", settings.prices)
    if price:
        return usage.model_copy(update={"cost_usd": cost_usd(usage, price)})
    return usage


def session_counters(summary: Summary) -> dict[str, float]:
    """The session's counters as they stand, for the attempt that goes on with it."""
    if summary.usage is None:
        return {}
    counts = summary.usage.model_dump()
    return {name: counts[name] for name in summary.of_session if counts[name] is not None}


def highest_usage(one: Usage | None, other: Usage | None) -> Usage | None:
    """The larger figure of each kind."""
    if one is None or other is None:
        return one or other
    counts = one.model_dump()
    others = other.model_dump()
    for name, value in others.items():
        if value is not None:
            counts[name] = max(value, counts[name] or 0)
    return Usage.model_validate(counts)


def total_usage(parts: Iterable[Usage | None]) -> Usage | None:
    """The sum of what is known; its cost is unknown where that of any part is."""
    known = [part for part in parts if part is not None]
    if len(known) < 2:
        return known[0] if known else None
    counts = [part.model_dump() for part in known]
    columns = {name: [count[name] for count in counts] for name in Usage.model_fields}
    return Usage(**{name: None if None in some else sum(some) for name, some in columns.items()})


class SideLog(BaseModel):
    """Where an agent keeps a log of its own, and the offset at which this attempt begins there.

    It is stored in the database and never in a file: the agent could write that.
    """

    pattern: str
    session_id: str | None  # of the resumed session, unless that is forked
    begin: int = 0

    @classmethod
    def of_row(cls, row: Mapping[Any, Any]) -> "SideLog | None":
        """Return what is stored with an attempt or a process."""
        if row["side_log"]:
            return cls.model_validate(row["side_log"])
        return None

    def find(self, session_id: str | None = None) -> Path | None:
        """Return the newest file that matches; None without one, or without a known session."""
        session = session_id or self.session_id
        if session is None and "{session}" in self.pattern:
            return None
        return newest_match(self.pattern.replace("{session}", glob.escape(session or "")))

    def after_present(self) -> "SideLog":
        """Return the same log, beginning behind what the resumed session has left there."""
        if self.session_id:
            path = self.find()
        else:
            path = None
        if path:
            return self.model_copy(update={"begin": size(str(path))})
        return self

    def lines(self, session_id: str | None) -> Iterator[str]:
        """Yield the lines that are about this attempt."""
        if path := self.find(session_id):
            yield from read_lines(path, max(0, size(str(path)) - self.begin))


def newest_match(pattern: str) -> Path | None:
    """Return the last file, by name, that matches a glob pattern.

    Unlike glob, ** follows no links, and the search ends after a number of names: agents write
    the directories that are searched.
    """
    names_left = itertools.repeat(None, _MOST_NAMES)
    found = _matches(Path("/"), Path(pattern).parts[1:], names_left)
    return max(itertools.islice(found, _MOST_MATCHES), default=None)


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
    """What the history tells of a check; of one that failed, also the end of its output."""
    facts = result.model_dump(include={"name", "duration_s", "exit_code"})
    if result.proved is False:
        facts["proof"] = result.proof
    if not result.passed:
        facts["output"] = "\n".join(result.output.strip().split("\n")[-_TOLD_LINES:])[-_TOLD:]
    return facts


def check_result(check: CheckSpec, ended: ProcessEnd, output: str) -> CheckResult:
    """What a command says that is a check: it passed if it succeeded."""
    if ended.succeeded:
        text = output
    else:
        text = f"{output}\n[{ended.describe_end(check.timeout_s)}]".lstrip()
    return CheckResult(
        name=check.label,
        passed=ended.succeeded,
        output=text,
        duration_s=round(ended.duration_s, 3),
        command=check.command,
        exit_code=ended.exit.code,
        out_sha256=ended.out_sha256,
        err_sha256=ended.err_sha256,
    )
