"""An agent that follows a script, for tests and for trying the library out."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.library.agent import Agent, Request, Response

ScriptLine = str | Response | Mapping[str, Any]
"""An answer; a mapping is answered as JSON."""
ScriptPart = ScriptLine | Callable[[Request], ScriptLine | None]
"""An answer, or a function of the request that returns one and may write files in its cwd."""
AgentScript = ScriptPart | Sequence[ScriptPart] | Mapping[str, ScriptPart | Sequence[ScriptPart]]

# A planner is asked for criteria, then for the plan; each request reads its own fields of this.
_PLAN = {
    "success_criteria": ["the goal is reached"],
    "questions": [],
    "subgoals": [{"id": "all", "title": "All of it", "task": "Reach the goal."}],
}
_APPROVAL = {
    "quality": True,
    "consistency": True,
    "goal_aligned": True,
    "goal_complete": True,
    "feedback": "",
}


class MockAgent(Agent):
    """Answers by the title or the role of a request: with one text, a list in turn, or a function.

    Without an answer in the script it plans one subgoal, does it by adding a line to MOCK.md, and
    approves. `requests` holds the requests so far.
    """

    def __init__(
        self,
        script: AgentScript | None = None,
        *,
        name: str = "mock",
        cwd: Path | str | None = None,
    ) -> None:
        self.name = name
        self.cwd = None if cwd is None else Path(cwd).expanduser().absolute()
        self.requests: list[Request] = []
        self._script = script
        self._turns: dict[str, int] = {}
        self._lock = threading.Lock()

    def run(self, request: Request) -> Response:
        with self._lock:
            self.requests.append(request)
            part = self._part(request)
        line = part(request) if callable(part) else part
        if isinstance(line, Response):
            return line
        if isinstance(line, Mapping):
            line = json.dumps(line)
        return Response(line or "")

    def _part(self, request: Request) -> ScriptPart:
        key = "the script"
        script = self._script
        if isinstance(script, Mapping):
            key = next((name for name in (request.title, request.role) if name in script), "")
            script = script.get(key)
        if script is None:
            return _by_default(request)
        return self._next(key, script)

    def _next(self, key: str, part: ScriptPart | Sequence[ScriptPart]) -> ScriptPart:
        if isinstance(part, str) or not isinstance(part, Sequence):
            return part
        turn = self._turns.get(key, 0)
        if turn >= len(part):
            raise InvalidInput(f"The script has no further answer for {key} after {turn} answers.")
        self._turns[key] = turn + 1
        return part[turn]


def _by_default(request: Request) -> ScriptPart:
    match request.role:
        case "planner":
            return _PLAN
        case "reviewer":
            return _APPROVAL
        case _:
            return _note


def _note(request: Request) -> ScriptLine:
    with open((request.cwd or Path()) / "MOCK.md", "a", encoding="utf-8") as file:
        file.write(f"- {request.title}\n")
    return "Done."
