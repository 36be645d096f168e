"""Again and again: until a condition holds, or to make a number better and keep the best."""

from itertools import count
from typing import Literal

from pydantic import BaseModel

from kapelle.domain.errors import LimitReached
from kapelle.domain.run_specs import LoopSpec
from kapelle.domain.text import counted
from kapelle.patterns.context import Context
from kapelle.patterns.evaluation import Evaluation, evaluate
from kapelle.patterns.feedback import feedback
from kapelle.patterns.interruption import Interrupted
from kapelle.patterns.pipeline import StepOutcome, play_steps
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Failed, TaskResult

StoppedBy = Literal[
    "condition", "target", "max_iterations", "max_failures", "converged", "budget", "cancelled"
]


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
    stopped_by: StoppedBy
    reason: str
    iterations: list[Iteration]
    best: Iteration | None = None
    scores: list[float | None] = []
    commit: str | None = None


class _Loop:
    """The state of one loop, all of it made of the results of steps."""

    def __init__(self, ctx: Context, spec: LoopSpec) -> None:
        self.ctx = ctx
        self.spec = spec
        self.iterations: list[Iteration] = []
        self.best: Iteration | None = None
        self.last: Evaluation | None = None
        self.previous: str | None = None  # the last task, whose context a checkpoint carries on
        self.kept: str | None = None  # what the branch goes on from
        self.failures = 0

    async def play(self) -> LoopResult:
        try:
            self.kept = await self.ctx.commit("Before the loop")
            if self.spec.optimises:
                await self._measure_start()
                if self.best is not None and self._reaches_target(self.best.score):
                    target = f"{self.spec.target:.12g}"
                    return self._end(
                        "target", f"{_shown(self.best)} reaches the target {target}", True
                    )
            for number in count(1):
                if self.spec.max_iterations and number > self.spec.max_iterations:
                    return self._exhausted()
                if number > 1 and self.spec.cooldown_s:
                    await self.ctx.sleep(self.spec.cooldown_s)
                await self._iterate(number)
                if stopped := self._stops():
                    return self._end(*stopped)
        except LimitReached as error:
            await self._put_back()
            return self._end("budget", error.message, good=False)
        except Interrupted as stop:
            stop.result = self._result("cancelled", "cancelled")
            # What was not measured is not what the branch is to hold.
            stop.restore = self.kept if self.spec.optimises else None
            raise
        raise AssertionError("unreachable")

    async def _measure_start(self) -> None:
        """Without the number at the start nobody can tell whether anything got better."""
        found = await evaluate(self.ctx, self.spec, 0, None)
        start = Iteration(number=0, verdict="start", score=found.score, commit=self.kept)
        start.problem = found.problem
        self.last = found
        self.iterations.append(start)
        if found.score is not None:
            self.best = start
        await self._put_back()

    async def _iterate(self, number: int) -> None:
        await self.ctx.progress(iteration=number, failures=self.failures, best=_score(self.best))
        item = Iteration(number=number, verdict="fail")
        self.iterations.append(item)
        problem = await self._work(item)
        if problem is None:
            self.last = await evaluate(self.ctx, self.spec, number, self.previous)
            item.score, item.problem = self.last.score, self.last.problem
            item.verdict = self._verdict(item)
        else:
            item.problem = problem
        await self._settle(item)

    async def _work(self, item: Iteration) -> str | None:
        """One round of work; returns what went wrong, None when it is to be evaluated."""
        note = await feedback(self.ctx, self.spec, self.iterations[:-1], self.last)
        problem, tasks = None, []
        if self.spec.steps:
            try:
                played = await self._steps(note)
            except Failed as failure:
                problem, played = failure.reason, failure.result.steps
            tasks = [step.task for step in played]
        else:
            tasks = [await self._task(item.number, note)]
            if not tasks[0].ok:
                problem = f"{tasks[0].status}: {tasks[0].reason}"
        item.tasks = [task.id for task in tasks]
        self.previous = item.tasks[-1] if item.tasks else self.previous
        before = self.kept
        item.commit = await self.ctx.commit(f"Iteration {item.number}")
        item.changed = item.commit != before
        return problem

    async def _steps(self, note: str) -> list[StepOutcome]:
        before = self.previous if self.spec.checkpoint else None
        return await play_steps(self.ctx, self.spec.steps, note=note, before=before)

    async def _task(self, number: int, note: str) -> TaskResult:
        return await self.ctx.task(
            (self.spec.prompt or "") + note,
            title=f"{self.spec.display_title} (iteration {number})",
            continue_from=self.previous if self.spec.checkpoint else None,
            keep_session=self.spec.checkpoint,
        )

    def _verdict(self, item: Iteration) -> Literal["pass", "progress", "keep", "discard", "fail"]:
        assert self.last is not None
        if not self.spec.optimises:
            return "pass" if self.last.passed else "progress"
        if item.score is None:
            return "fail"
        return "keep" if self._is_better(item.score) else "discard"

    def _is_better(self, score: float) -> bool:
        if self.best is None or self.best.score is None:
            return True
        if self.spec.direction == "minimize":
            return score < self.best.score
        return score > self.best.score

    async def _settle(self, item: Iteration) -> None:
        """Keep what is to be kept, put the rest back, and count."""
        if item.verdict == "keep":
            self.best = item
        if item.verdict in {"pass", "progress", "keep"} or not self.spec.optimises:
            self.kept = item.commit
        self.failures = self.failures + 1 if item.verdict == "fail" else 0
        await self._put_back()
        await self.ctx.progress(
            iteration=item.number, verdict=item.verdict, score=item.score,
            problem=item.problem and item.problem[-300:], best=_score(self.best),
        )  # fmt: skip

    async def _put_back(self) -> None:
        """Also what a check leaves behind does not join the work."""
        if self.kept is not None:
            await self.ctx.revert(self.kept)

    def _stops(self) -> tuple[StoppedBy, str, bool] | None:
        item, spec = self.iterations[-1], self.spec
        if item.verdict == "pass":
            return "condition", f"the condition holds after iteration {item.number}", True
        if self.best is not None and self._reaches_target(self.best.score):
            return "target", f"{_shown(self.best)} reaches the target {spec.target:.12g}", True
        if spec.max_failures and self.failures >= spec.max_failures:
            many = counted(self.failures, "iteration")
            why = f"{many} in a row failed; the last: {item.problem}"
            return "max_failures", why, self._has_improved and spec.target is None
        if converged := self._converged():
            return "converged", converged, self._has_improved and spec.target is None
        return None

    def _reaches_target(self, score: float | None) -> bool:
        target = self.spec.target
        if target is None or score is None:
            return False
        return score <= target if self.spec.direction == "minimize" else score >= target

    def _converged(self) -> str | None:
        """Whether going on is pointless: nothing changes, or the number stays the same."""
        span = self.spec.convergence
        rounds = [item for item in self.iterations if item.number > 0][-span:]
        if not span or len(rounds) < span:
            return None
        if self.ctx.is_git and all(not item.changed for item in rounds):
            return f"nothing was changed in {counted(span, 'iteration')}"
        scores = {item.score for item in rounds}
        if self.spec.optimises and len(scores) == 1 and None not in scores:
            return f"the score was {rounds[-1].score:.12g} in {counted(span, 'iteration')}"
        return None

    @property
    def _has_improved(self) -> bool:
        return self.best is not None and self.best.number > 0

    def _exhausted(self) -> LoopResult:
        limit = counted(self.spec.max_iterations, "iteration")
        if not self.spec.optimises:
            why = f"the condition did not hold after {limit}"
            return self._end("max_iterations", why, False)
        why = f"{limit} made"
        return self._end("max_iterations", why, self._has_improved and self.spec.target is None)

    def _end(self, stopped_by: StoppedBy, why: str, good: bool) -> LoopResult:
        if self.spec.optimises and stopped_by != "target":
            why = f"{why}; {self._achievement()}"
        result = self._result(stopped_by, why)
        if not good:
            raise Failed(why, result)
        return result

    def _result(self, stopped_by: StoppedBy, why: str) -> LoopResult:
        return LoopResult(
            stopped_by=stopped_by,
            reason=why,
            iterations=self.iterations,
            best=self.best,
            scores=[item.score for item in self.iterations],
            commit=self.kept,
        )

    def _achievement(self) -> str:
        spec, start = self.spec, self.iterations[0].score if self.iterations else None
        if self.best is None:
            return "there never was a score"
        if not self._has_improved:
            text = f"nothing was better than the start ({start:.12g})"
        else:
            began = f", {start:.12g} at the start" if start is not None else ""
            text = f"best: {_shown(self.best)}{began}"
        if not self.ctx.is_git and self.iterations[-1] is not self.best:
            text += "; in place nothing is put back, so the directory holds the last iteration"
        missed = spec.target is not None and not self._reaches_target(self.best.score)
        return f"{text}; the target {spec.target:.12g} was not reached" if missed else text


@pattern("loop", spec=LoopSpec)
async def loop(ctx: Context, spec: LoopSpec) -> LoopResult:
    """Repeat a prompt or steps until a condition holds, or to make a number better."""
    return await _Loop(ctx, spec).play()


def _score(item: Iteration | None) -> float | None:
    return item.score if item else None


def _shown(item: Iteration) -> str:
    where = f"iteration {item.number}" if item.number else "start"
    return f"{item.score:.12g} ({where})"
