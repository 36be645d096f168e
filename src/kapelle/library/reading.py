"""What an agent's output says, while it works and when it has ended."""

from collections.abc import Callable
from pathlib import Path

from kapelle.agents.base import Agent, Summary, Verdict
from kapelle.agents.summary import Fold, completed_by, summarise
from kapelle.engine.usage import attempt_usage, side_log_lines, side_log_of
from kapelle.runner.output import LogReader, lines_of, tail_text
from kapelle.runner.shim.files import ERR, OUT
from kapelle.settings import Settings

_TAIL = 10_000
_LAST_BYTES = 1 << 18
_ANSWER = 1 << 20


def read(agent: Agent, directory: Path) -> tuple[Summary, str]:
    """The summary of a whole output, and its end as text."""
    tail = f"{tail_text(directory / OUT, _TAIL)}\n{tail_text(directory / ERR, _TAIL // 2)}"
    lines = lines_of(directory / OUT, None if agent.reads_whole_output else _LAST_BYTES)
    return _completed(agent, directory, summarise(agent, lines)), tail.strip()


def answer(agent: Agent, directory: Path, verdict: Verdict, summary: Summary) -> str:
    """What the agent said at last; of one that prints nothing but text, all of it."""
    if not agent.reads_whole_output:
        return tail_text(directory / OUT, _ANSWER).strip()
    return verdict.result or summary.tail


def _completed(agent: Agent, directory: Path, told: Summary) -> Summary:
    """With what the agent noted beside its output."""
    if side_log_of(directory) is None:
        return told
    return completed_by(told, summarise(agent, side_log_lines(directory, told.session_id)))


class Meter:
    """Tells what an agent at work has cost so far."""

    def __init__(
        self, agent: Agent, directory: Path, settings: Settings, tell: Callable[[float], None]
    ) -> None:
        self._agent = agent
        self._directory = directory
        self._settings = settings
        self._tell = tell
        self._fold = Fold()
        self._out = LogReader(directory / OUT)

    def look(self) -> None:
        """Read what has come since the last look."""
        if not self._agent.capabilities.usage:
            return
        while lines := self._out.lines():
            for line in lines:
                for event in self._agent.parse(line.text):
                    self._fold.add(event)
        summary = _completed(self._agent, self._directory, self._fold.summary())
        usage = attempt_usage(summary, {}, self._agent.settings.model, self._settings)
        if usage is not None and usage.cost_usd is not None:
            self._tell(usage.cost_usd)
