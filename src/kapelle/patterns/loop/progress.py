"""The progress of a loop: iterations, verdicts, convergence, and feedback for the next one."""

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import BaseModel

from kapelle.domain.text import format_count
from kapelle.patterns.context import State, StoppedBy
from kapelle.patterns.loop.evaluation import Judgement
from kapelle.patterns.results import Failed

if TYPE_CHECKING:
    from kapelle.patterns.loop import LoopSpec

LoopVerdict = Literal["start", "pass", "progress", "keep", "discard", "fail"]
LoopEnd = Literal[
    "condition", "target", "max_iterations", "max_failures", "converged", "budget", "cancelled"
]
# How much of the past goes into the prompt: characters of output, iterations, characters of diff.
_OUTPUT = 12_000
_HISTORY = 20
_CHANGES = 4_000


class Iteration(BaseModel):
    """One iteration; the verdict decides about its work."""

    number: int
    verdict: LoopVerdict
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


class LoopStop(NamedTuple):
    """The decision to end a loop; is_success decides whether the run completes or fails."""

    by: LoopEnd
    reason: str
    is_success: bool


class LoopLog(State):
    """The state of one loop, computed from the results of steps, without I/O.

    start_commit is the commit that the first iteration begins with.
    """

    def __init__(self, spec: "LoopSpec", start_commit: str | None, *, is_git: bool) -> None:
        self.spec = spec
        self.iterations: list[Iteration] = []
        self.best: Iteration | None = None
        self.failures = 0
        self._head = start_commit  # the commit that the next iteration begins with
        self._is_git = is_git
        # With this factor a larger number is always better.
        self._sign = -1 if spec.direction == "minimize" else 1
        self._judgement: Judgement | None = None
        self._stop: LoopStop | None = None

    @property
    def before(self) -> list[Iteration]:
        """Return the iterations before the current one."""
        return self.iterations[:-1]

    @property
    def last_task(self) -> str | None:
        """Return the id of the last task, which a checkpoint continues from."""
        for iteration in reversed(self.iterations):
            if iteration.tasks:
                return iteration.tasks[-1]
        return None

    @property
    def best_score(self) -> float | None:
        return self.best.score if self.best else None

    def start(self, judgement: Judgement) -> str | None:
        """Record the number before the first iteration; return the commit to reset to."""
        self.iterations.append(Iteration(number=0, verdict="start"))
        return self.settle(self.iterations[0], self._head, judgement, None)

    def rounds(self) -> Iterator[Iteration]:
        """Yield one iteration after another until the loop ends; each must be settled."""
        for number in count(1):
            if self._stop is not None:
                return
            # An iteration counts as failed until it is settled.
            self.iterations.append(Iteration(number=number, verdict="fail"))
            yield self.iterations[-1]

    def settle(
        self,
        iteration: Iteration,
        commit: str | None,
        judgement: Judgement | None,
        problem: str | None,
    ) -> str | None:
        """Decide about an iteration's work; return the commit to reset the branch to."""
        iteration.commit = commit
        iteration.changed = commit != self._head
        iteration.problem = problem
        if judgement is not None:
            self._judgement = judgement
            iteration.score = judgement.score
            iteration.problem = judgement.problem
            iteration.verdict = self._verdict(judgement) if iteration.number else "start"
        self._keep(iteration)
        if iteration.verdict == "fail":
            self.failures += 1
        else:
            self.failures = 0
        self._stop = self._decide_stop(iteration)
        return self._head

    def _keep(self, iteration: Iteration) -> None:
        """Make an iteration the best one and the next one's start, as its verdict demands."""
        is_first_score = iteration.verdict == "start" and iteration.score is not None
        if iteration.verdict == "keep" or is_first_score:
            self.best = iteration
        if iteration.verdict == "keep" or not self.spec.optimises:
            self._head = iteration.commit

    def _verdict(self, judgement: Judgement) -> LoopVerdict:
        if not self.spec.optimises:
            return "pass" if judgement.passed else "progress"
        if judgement.score is None:
            return "fail"
        best = self.best_score
        if best is None or self._sign * judgement.score > self._sign * best:
            return "keep"
        return "discard"

    def _decide_stop(self, iteration: Iteration) -> LoopStop | None:
        """Return why the loop ends after this iteration; None if it continues."""
        spec = self.spec
        is_success = self._has_improved and spec.target is None
        if iteration.verdict == "pass":
            reason = f"the condition holds after iteration {iteration.number}"
            return LoopStop("condition", reason, True)
        if self.best is not None and self._reaches_target(self.best.score):
            reason = f"{_format_score(self.best)} reaches the target {spec.target:.12g}"
            return LoopStop("target", reason, True)
        if spec.max_failures and self.failures >= spec.max_failures:
            failures = format_count(self.failures, "iteration")
            reason = f"{failures} in a row failed; the last: {iteration.problem}"
            return LoopStop("max_failures", reason, is_success)
        convergence = self._describe_convergence()
        if convergence:
            return LoopStop("converged", convergence, is_success)
        if spec.max_iterations and iteration.number == spec.max_iterations:
            iterations = format_count(iteration.number, "iteration")
            reason = f"the condition did not hold after {iterations}"
            if spec.optimises:
                reason = f"{iterations} made"
            return LoopStop("max_iterations", reason, is_success)
        return None

    def _reaches_target(self, score: float | None) -> bool:
        target = self.spec.target
        if target is None or score is None:
            return False
        return self._sign * score >= self._sign * target

    def _describe_convergence(self) -> str | None:
        """Return how the last iterations show that further ones are useless; None if not."""
        span = self.spec.convergence
        recent = [item for item in self.iterations if item.number > 0][-span:]
        if not span or len(recent) < span:
            return None
        iterations = format_count(span, "iteration")
        if self._is_git and not any(item.changed for item in recent):
            return f"nothing was changed in {iterations}"
        scores = {item.score for item in recent}
        if self.spec.optimises and len(scores) == 1 and None not in scores:
            return f"the score was {recent[-1].score:.12g} in {iterations}"
        return None

    @property
    def _has_improved(self) -> bool:
        return self.best is not None and self.best.number > 0

    def final_result(self) -> LoopResult:
        """Return the result of a loop that has ended; raise Failed if it is not a success."""
        assert self._stop is not None
        result = self._result(self._stop.by, self._stop.reason)
        if not self._stop.is_success:
            raise Failed(result.reason, result)
        return result

    def result(self, reason: str, stopped_by: StoppedBy) -> LoopResult:
        return self._result("budget" if stopped_by == "budget" else "cancelled", reason)

    def restore(self, stopped_by: StoppedBy) -> str | None:
        """Return the commit to reset a stopped loop to.

        The branch of an optimisation holds evaluated work only.
        """
        if self.spec.optimises or stopped_by == "budget":
            return self._head
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
            commit=self._head,
        )

    def _achievement(self) -> str:
        """Return in words what an optimisation has achieved."""
        target = self.spec.target
        start = self.iterations[0].score if self.iterations else None
        if self.best is None:
            return "there never was a score"
        if not self._has_improved:
            text = f"nothing was better than the start ({start:.12g})"
        else:
            text = f"best: {_format_score(self.best)}"
            if start is not None:
                text += f", {start:.12g} at the start"
        if not self._is_git and self.iterations[-1] is not self.best:
            text += "; in place nothing is put back, so the directory holds the last iteration"
        if target is not None and not self._reaches_target(self.best.score):
            return f"{text}; the target {target:.12g} was not reached"
        return text

    def feedback(self, changes: str) -> str:
        """Return sections about the past iterations, to append to the next one's prompt."""
        sections = [self._history()]
        problem = self.before[-1].problem
        last = self._judgement
        if problem and (last is None or problem != last.problem):
            sections.append(f"## What went wrong last time\n{problem[-2000:]}")
        if last is not None and last.output.strip():
            # The end of an output tells what failed; its beginning is noise.
            tail = last.output.strip()[-_OUTPUT:]
            sections.append(f"## The end of the last evaluation's output\n~~~\n{tail}\n~~~")
        if changes:
            sections.append(f"## What was changed so far\n~~~\n{changes[-_CHANGES:]}\n~~~")
        return "\n\n" + "\n\n".join(sections)

    def _history(self) -> str:
        spec = self.spec
        lines = [f"## This is iteration {self.iterations[-1].number} of a loop"]
        if spec.optimises:
            goal = "smaller" if spec.direction == "minimize" else "larger"
            measure = f"`{spec.eval}`" if spec.eval else "a judge"
            text = f"Make the score, measured by {measure}, {goal}"
            if spec.target is not None:
                text += f", at best {spec.target:.12g}"
            lines.append(f"{text}. So far:")
        else:
            lines.append("The loop ends when its condition holds. It does not hold yet. So far:")
        lines += [_history_line(iteration) for iteration in self.before[-_HISTORY:]]
        return "\n".join(lines)


def _history_line(iteration: Iteration) -> str:
    name = f"iteration {iteration.number}" if iteration.number else "the start"
    line = f"- {name}: "
    if iteration.score is not None:
        line += f"score {iteration.score:.12g}"
    else:
        line += iteration.verdict
    if iteration.verdict == "discard":
        line += " (not better, so it was reverted)" if iteration.commit else " (not better)"
    if iteration.verdict == "fail":
        line += " (failed)"
        if iteration.problem:
            line += f": {iteration.problem[-200:]}"
    return line


def _format_score(iteration: Iteration) -> str:
    place = f"iteration {iteration.number}" if iteration.number else "start"
    return f"{iteration.score:.12g} ({place})"
