"""The lanes' scripts, how far each has been played, and every request that was seen."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Step = Mapping[str, Any]

SABOTAGE = "All done, the file is written."

KINDS = frozenset({"write", "bash", "tool", "text", "error", "overflow", "billing", "hang", "drop"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came, and the step it was answered with."""

    lane: str
    dialect: str
    path: str
    model: str
    stream: bool
    side: bool
    step: Step
    tools: tuple[str, ...]
    headers: Mapping[str, str]
    body: Any
    text: str
    at: float = field(default_factory=time.time)

    @property
    def turns(self) -> list[Any]:
        """The conversation so far, in the dialect's own form."""
        for key in ("messages", "input", "contents"):
            if isinstance(self.body.get(key), list):
                return list(self.body[key])
        return []

    def to_json(self) -> dict[str, Any]:
        """All but the headers and the body, for a log."""
        return {
            "at": round(self.at, 3),
            "lane": self.lane,
            "dialect": self.dialect,
            "path": self.path,
            "model": self.model,
            "stream": self.stream,
            "side": self.side,
            "step": dict(self.step),
            "tools": list(self.tools),
            "turns": len(self.turns),
            "bytes": len(self.text),
        }


class Scripts:
    """Scripts by lane; while sabotaged, whatever would take a step gets only a claim of success."""

    def __init__(self, scripts: Mapping[str, Sequence[Step]] | None = None) -> None:
        self.sabotaged = False
        self._changed = threading.Condition()
        self._scripts: dict[str, Sequence[Step]] = {}
        self._taken: dict[str, int] = {}
        self._spent: dict[str, int] = {}
        self._seen: list[Request] = []
        for lane, steps in (scripts or {}).items():
            self.put(lane, steps)

    def put(self, lane: str, steps: Sequence[Step]) -> None:
        """Set a lane's script and play it from the start; raises ValueError for an unknown step."""
        for step in steps:
            _check(step)
        with self._changed:
            self._scripts[lane] = list(steps)
            self._taken[lane] = self._spent[lane] = 0

    def take(self, lane: str) -> Step:
        """The next step of a lane; one with `times` is handed out that often."""
        with self._changed:
            if self.sabotaged:
                return {"text": SABOTAGE}
            steps, index = self._scripts.get(lane, []), self._taken.get(lane, 0)
            if index >= len(steps):
                return {"text": "done"}
            step = steps[index]
            self._spent[lane] += 1
            if self._spent[lane] == step.get("times", 1):
                self._taken[lane], self._spent[lane] = index + 1, 0
            return step

    def taken(self, lane: str) -> int:
        """How many steps of a lane have been played."""
        with self._changed:
            return self._taken.get(lane, 0)

    def note(self, request: Request) -> None:
        with self._changed:
            self._seen.append(request)
            self._changed.notify_all()

    def requests(self, lane: str | None = None, *, side: bool = False) -> list[Request]:
        """What came on a lane, or on all; side requests, which take no step, only when asked."""
        with self._changed:
            return self._matching(lane, side)

    def await_requests(self, lane: str, count: int, timeout_s: float = 60) -> list[Request]:
        """The lane's requests once there are that many; raises AssertionError when too late."""
        with self._changed:
            came = self._changed.wait_for(
                lambda: len(self._matching(lane, False)) >= count, timeout_s
            )
            found = self._matching(lane, False)
        if not came:
            raise AssertionError(f"{len(found)} of {count} requests came on the lane {lane}.")
        return found

    def reset(self) -> None:
        with self._changed:
            self._scripts.clear()
            self._taken.clear()
            self._spent.clear()
            self._seen.clear()

    def _matching(self, lane: str | None, side: bool) -> list[Request]:
        return [
            request
            for request in self._seen
            if lane in {None, request.lane} and (side or not request.side)
        ]


def _check(step: Step) -> None:
    if len(KINDS & step.keys()) != 1:
        raise ValueError(f"A step needs exactly one of {', '.join(sorted(KINDS))}: {dict(step)}")
    if step.get("cached", 0) > step.get("usage", [100, 20])[0]:
        raise ValueError(f"More tokens are cached than were sent: {dict(step)}")
