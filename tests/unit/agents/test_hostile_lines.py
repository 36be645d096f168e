"""No line that an agent prints takes more than linear time to read, whatever its adapter."""

import time

import pytest
from tests.unit.agents.test_contract import AGENTS, NAMES

from kapelle.agents import registry
from kapelle.agents.failures import classify
from kapelle.agents.summary import OutputFold, summarise
from kapelle.domain.task import Exit, Usage

_SIZE = 100_000
# A quadratic expression takes minutes for lines of this size, a linear one milliseconds.
_LIMIT_S = 3.0
_UNITS = ['\\"', '"', "\\", "{", "[", '{"', "[{", "1", " ", "\t", "a", "a ", "-", ".", ":", "é"]
_LINES = [
    *(unit * (_SIZE // len(unit)) for unit in _UNITS),
    '{"' + '\\"' * (_SIZE // 2),
    '{"' + '\\"' * (_SIZE // 2) + "\\",
    '[{"a": "' + '\\"' * (_SIZE // 2),
    '{"kind": "error", "text": "' + "1" * _SIZE + '"}',
    '{"kind": "error", "text": "' + "try again in " * (_SIZE // 13) + '"}',
    '{"kind": "notice", "text": "429 ' + "12:" * (_SIZE // 3) + '"}',
    '{"type": "error", "message": "' + "rate limit " * (_SIZE // 11) + '"}',
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_lines_are_read_in_linear_time(name: str) -> None:
    agent = registry.get(name, AGENTS)
    for line in _LINES:
        fold = OutputFold()
        began = time.process_time()
        for event in [*agent.parse(line), *agent.parse_stderr(line)]:
            fold.add(event)
        classify(fold.summary(), Exit(kind="exited", code=1), line[-10_000:])
        took = time.process_time() - began
        assert took < _LIMIT_S, f"{line[:40]!r}… took {took:.1f} s"


def test_brackets_inside_strings_do_not_end_a_document_of_several_lines() -> None:
    agent = registry.get("json", AGENTS)
    lines = ("{", '"answer": "a } b \\" {",', '"id": "7"', "}")
    events = [event for line in lines for event in agent.parse(line)]
    assert {event.kind: event.text for event in events}["result"] == 'a } b " {'


def _usage(data: str) -> str:
    return '{"kind": "usage", "data": ' + data + "}"


def test_an_agent_cannot_unsay_its_usage() -> None:
    agent = registry.get("events", AGENTS)
    lines = [_usage('{"cost_usd": 1, "turns": 1}')] * 3
    lines.append(_usage('{"total": true, "cost_usd": 0, "turns": 0}'))
    assert summarise(agent, lines).usage == Usage(turns=3, cost_usd=3)
    lines.append(_usage('{"total": true, "cost_usd": 9, "turns": 4}'))
    assert summarise(agent, lines).usage == Usage(turns=4, cost_usd=9)
    lines += [_usage(f'{{"id": "a", "cost_usd": {cost}, "turns": 1}}') for cost in (5, 0)]
    assert summarise(agent, lines).usage == Usage(turns=5, cost_usd=14)


def test_sums_of_usage_fit_into_the_database() -> None:
    agent = registry.get("events", AGENTS)
    lines = [_usage('{"input_tokens": 9007199254740991}')] * 3000
    usage = summarise(agent, lines).usage
    assert usage is not None
    assert usage.input_tokens == 10**12
