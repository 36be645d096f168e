"""What the iterations of a loop brought: verdicts, the best, convergence, and the feedback."""

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from kapelle.domain.text import format_count
from kapelle.patterns.context import State, StoppedBy
from kapelle.patterns.results import Failed, Judgement

if TYPE_CHECKING:
    from kapelle.patterns.loop import LoopSpec

LoopEnd = Literal[
    "condition", "target", "max_iterations", "max_failures", "converged", "budget", "cancelled"
]
_OUTPUT = 12_000
_HISTORY = 20
_CHANGES = 4_000


class Iteration(BaseModel):
    """What one round brought; verdict says what became of its work."""

    number: int
    verdict: Literal["start", "pass", "progress", "keep", "discard", "fail"]
    score: float | None = None
    commit: str | None = None
    tasks: list[str] = []
    problem: str | None = None
    changed: bool = False


class LoopResult(BaseModel):
    stopped_by: LoopEnd
    reason: str
    iterations: list[Iteration]
    best: Iteration | None = None
    scores: list[float | None] = []
    commit: str | None = None


class LoopLog(State):
    """The state of one loop, made of the results of steps; it does no I/O itself."""

    def __init__(self, spec: "LoopSpec", kept: str | None, *, is_git: bool) -> None:
        self.spec = spec
        self.iterations: list[Iteration] = []
        self.best: Iteration | None = None
        self.failures = 0
        self._kept = kept  # what the branch goes on from
        self._is_git = is_git
        if spec.direction == "minimize":
            self._sign = -1
        else:
            self._sign = 1
        self._judged: Judgement | None = None
        self._end: tuple[LoopEnd, str, bool] | None = None  # by what, why, whether that is good

    @property
    def before(self) -> list[Iteration]:
        """The iterations that have ended when one is under way."""
        return self.iterations[:-1]

    @property
    def last_task(self) -> str | None:
        """The last task there was, whose context a checkpoint carries on."""
        return next((item.tasks[-1] for item in self.iterations[::-1] if item.tasks), None)

    @property
    def best_score(self) -> float | None:
        return self.best.score if self.best else None

    def start(self, found: Judgement) -> str | None:
        """Note the number before the first iteration; the commit that the branch goes back to."""
        self.iterations.append(Iteration(number=0, verdict="start"))
        return self.settle(self.iterations[0], self._kept, found, None)

    def rounds(self) -> Iterator[Iteration]:
        """One iteration after another, each to be settled before the next, until the loop ends."""
        for number in count(1):
            if self._end is not None:
                return
            # Until it is settled, it is one that failed.
            self.iterations.append(Iteration(number=number, verdict="fail"))
            yield self.iterations[-1]

    def settle(
        self, item: Iteration, commit: str | None, found: Judgement | None, problem: str | None
    ) -> str | None:
        """Judge an iteration's work; the commit that the branch is to hold then."""
        item.commit = commit
        item.changed = commit != self._kept
        item.problem = problem
        if found is not None:
            self._judged = found
            item.score = found.score
            item.problem = found.problem
            if item.number:
                item.verdict = self._verdict(found)
            else:
                item.verdict = "start"
        if item.verdict == "keep" or (item.verdict == "start" and item.score is not None):
            self.best = item
        if item.verdict == "keep" or not self.spec.optimises:
            self._kept = commit
        if item.verdict == "fail":
            self.failures = self.failures + 1
        else:
            self.failures = 0
        self._end = self._stop(item)
        return self._kept

    def _verdict(self, found: Judgement) -> Literal["pass", "progress", "keep", "discard", "fail"]:
        if not self.spec.optimises:
            return "pass" if found.passed else "progress"
        if found.score is None:
            return "fail"
        best = self.best_score
        is_better = best is None or self._sign * found.score > self._sign * best
        return "keep" if is_better else "discard"

    def _stop(self, item: Iteration) -> tuple[LoopEnd, str, bool] | None:
        """Why the loop ends after this iteration, if it does."""
        spec = self.spec
        is_good = self._has_improved and self.spec.target is None
        if item.verdict == "pass":
            return ("condition", f"the condition holds after iteration {item.number}", True)
        if self.best is not None and self._reaches_target(self.best.score):
            reached = f"{_shown(self.best)} reaches the target {spec.target:.12g}"
            return ("target", reached, True)
        if spec.max_failures and self.failures >= spec.max_failures:
            many = format_count(self.failures, "iteration")
            why = f"{many} in a row failed; the last: {item.problem}"
            return ("max_failures", why, is_good)
        if converged := self._converged():
            return ("converged", converged, is_good)
        if spec.max_iterations and item.number == spec.max_iterations:
            many = format_count(item.number, "iteration")
            if spec.optimises:
                why = f"{many} made"
            else:
                why = f"the condition did not hold after {many}"
            return ("max_iterations", why, is_good)
        return None

    def _reaches_target(self, score: float | None) -> bool:
        target = self.spec.target
        if target is None or score is None:
            return False
        return self._sign * score >= self._sign * target

    def _converged(self) -> str | None:
        """Whether going on is pointless: nothing changes, or the number stays the same."""
        span = self.spec.convergence
        rounds = [item for item in self.iterations if item.number > 0][-span:]
        if not span or len(rounds) < span:
            return None
        if self._is_git and all(not item.changed for item in rounds):
            return f"nothing was changed in {format_count(span, 'iteration')}"
        scores = {item.score for item in rounds}
        if self.spec.optimises and len(scores) == 1 and None not in scores:
            return f"the score was {rounds[-1].score:.12g} in {format_count(span, 'iteration')}"
        return None

    @property
    def _has_improved(self) -> bool:
        return self.best is not None and self.best.number > 0

    def ended(self) -> LoopResult:
        """The result; raises Failed unless the loop came to what it was for."""
        assert self._end is not None
        stopped_by, reason, is_good = self._end
        result = self._result(stopped_by, reason)
        if not is_good:
            raise Failed(result.reason, result)
        return result

    def result(self, reason: str, stopped_by: StoppedBy) -> LoopResult:
        return self._result("budget" if stopped_by == "budget" else "cancelled", reason)

    def restore(self, stopped_by: StoppedBy) -> str | None:
        """What was not measured is not what the branch of an optimisation is to hold."""
        if self.spec.optimises or stopped_by == "budget":
            return self._kept
        return None

    def _result(self, stopped_by: LoopEnd, reason: str) -> LoopResult:
        if self.spec.optimises and stopped_by not in {"target", "cancelled"}:
            reason = f"{reason}; {self._achievement()}"
        return LoopResult(
            stopped_by=stopped_by,
            reason=reason,
            iterations=self.iterations,
            best=self.best,
            scores=[item.score for item in self.iterations],
            commit=self._kept,
        )

    def _achievement(self) -> str:
        spec = self.spec
        if self.iterations:
            start = self.iterations[0].score
        else:
            start = None
        if self.best is None:
            return "there never was a score"
        if not self._has_improved:
            text = f"nothing was better than the start ({start:.12g})"
        else:
            if start is not None:
                began = f", {start:.12g} at the start"
            else:
                began = ""
            text = f"best: {_shown(self.best)}{began}"
        if not self._is_git and self.iterations[-1] is not self.best:
            text += "; in place nothing is put back, so the directory holds the last iteration"
        missed = spec.target is not None and not self._reaches_target(self.best.score)
        if missed:
            return f"{text}; the target {spec.target:.12g} was not reached"
        return text

    def feedback(self, changes: str) -> str:
        """What the next iteration is told of those before it, as sections added to its prompt."""
        parts = [self._history()]
        problem = self.before[-1].problem
        last = self._judged
        if problem and (last is None or problem != last.problem):
            parts.append(f"## What went wrong last time\n{problem[-2000:]}")
        if last is not None and last.output.strip():
            # The end of an output says what failed; its beginning is noise.
            end = last.output.strip()[-_OUTPUT:]
            parts.append(f"## The end of the last evaluation's output\n~~~\n{end}\n~~~")
        if changes:
            parts.append(f"## What was changed so far\n~~~\n{changes[-_CHANGES:]}\n~~~")
        return "\n\n" + "\n\n".join(parts)

    def _history(self) -> str:
        spec = self.spec
        lines = [f"## This is iteration {self.iterations[-1].number} of a loop"]
        if spec.optimises:
            if spec.direction == "minimize":
                goal = "smaller"
            else:
                goal = "larger"
            if spec.eval:
                how = f"`{spec.eval}`"
            else:
                how = "a judge"
            if spec.target is not None:
                target = f", at best {spec.target:.12g}"
            else:
                target = ""
            lines.append(f"The score, measured by {how}, is to become {goal}{target}. So far:")
        else:
            lines.append("It ends when its condition holds, which it does not yet. So far:")
        return "\n".join([*lines, *map(_line, self.before[-_HISTORY:])])


def _line(item: Iteration) -> str:
    if item.score is not None:
        score = f" score {item.score:.12g}"
    else:
        score = ""
    if item.commit:
        back = ", so it was put back"
    else:
        back = ""
    fate = {"discard": f" (not better{back})", "fail": " (failed)"}.get(item.verdict, "")
    if item.number == 0:
        name = "the start"
    else:
        name = f"iteration {item.number}"
    if item.problem and item.verdict == "fail":
        why = f": {item.problem[-200:]}"
    else:
        why = ""
    return f"- {name}:{score or ' ' + item.verdict}{fate}{why}"


def _shown(item: Iteration) -> str:
    if item.number:
        where = f"iteration {item.number}"
    else:
        where = "start"
    return f"{item.score:.12g} ({where})"
