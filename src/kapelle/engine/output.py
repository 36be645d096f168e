"""What agents and commands said: summaries of output and of the log that some agents keep beside it
(the side log), what was used and what that costs, and what a command says that is a check."""

import glob
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kapelle.agents.base import Agent, Summary
from kapelle.agents.summary import completed_by, cost_usd, price_of, summarise
from kapelle.domain.specs import CheckSpec
from kapelle.domain.task import CheckResult, Usage
from kapelle.runner.output import lines_of, tail_text
from kapelle.runner.process_dir import Ended
from kapelle.runner.shim.files import ERR, OUT
from kapelle.settings import Settings

SHOWN_OUTPUT = 20_000
# So much of the output of a failed check is told in the history.
_TOLD_LINES = 30
_TOLD = 4000
_NOTE = "side_log.json"
_TAIL = 10_000
_LAST_BYTES = 1 << 18


def read_output(agent: Agent, process_dir: Path) -> Summary:
    """The summary of an agent's output; what it does not tell is taken from the side log."""
    last_bytes = None if agent.reads_whole_output else _LAST_BYTES
    summary = summarise(agent, lines_of(process_dir / OUT, last_bytes))
    return with_side_log(agent, process_dir, summary)


def with_side_log(agent: Agent, process_dir: Path, summary: Summary) -> Summary:
    """What an output said, completed by the agent's side log if it keeps one."""
    if side_log_of(process_dir) is None:
        return summary
    lines = side_log_lines(process_dir, summary.session_id)
    return completed_by(summary, summarise(agent, lines))


def output_tail(process_dir: Path) -> str:
    """The end of what an agent printed, on both streams, as text."""
    printed = tail_text(process_dir / OUT, _TAIL)
    return f"{printed}\n{tail_text(process_dir / ERR, _TAIL // 2)}".strip()


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
    return usage.model_copy(update={"cost_usd": cost_usd(usage, price)}) if price else usage


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
    counts, others = one.model_dump(), other.model_dump()
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
    """Where an agent's side log is, and the offset from which on it is about this attempt."""

    pattern: str
    session_id: str | None  # the one that is gone on with, unless it is forked
    begin: int = 0

    def find(self, session_id: str | None = None) -> Path | None:
        """The newest file that fits; None while there is none, or the session is not known."""
        session = session_id or self.session_id
        if session is None and "{session}" in self.pattern:
            return None
        pattern = self.pattern.replace("{session}", glob.escape(session or ""))
        found = glob.glob(pattern, recursive=True)
        return Path(max(found)) if found else None


def remember_side_log(process_dir: Path, pattern: str | None, session_id: str | None) -> None:
    """Keep where an agent's side log will be, and what it holds already, for a later daemon."""
    if pattern is not None:
        log = SideLog(pattern=pattern, session_id=session_id)
        if session_id and (known := log.find()):
            log.begin = known.stat().st_size
        (process_dir / _NOTE).write_text(log.model_dump_json(), encoding="utf-8")


def side_log_of(process_dir: Path) -> SideLog | None:
    """The side log of the agent that was started in this directory, if it keeps one."""
    try:
        return SideLog.model_validate_json((process_dir / _NOTE).read_bytes())
    except (OSError, ValueError):
        return None


def side_log_lines(process_dir: Path, session_id: str | None) -> Iterator[str]:
    """The lines of the side log that are about this attempt, which may be none."""
    log = side_log_of(process_dir)
    if log is not None and (path := log.find(session_id)):
        yield from lines_of(path, max(0, path.stat().st_size - log.begin))


def check_facts(result: CheckResult) -> dict[str, Any]:
    """What the history tells of a check; of one that failed, also the end of its output."""
    facts = result.model_dump(include={"name", "duration_s", "exit_code"})
    if result.proved is False:
        facts["proof"] = result.proof
    if not result.passed:
        facts["output"] = "\n".join(result.output.strip().split("\n")[-_TOLD_LINES:])[-_TOLD:]
    return facts


def check_result(check: CheckSpec, ended: Ended, output: str) -> CheckResult:
    """What a command says that is a check: it passed if it succeeded."""
    text = output if ended.succeeded else f"{output}\n[{ended.ending(check.timeout_s)}]".lstrip()
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
