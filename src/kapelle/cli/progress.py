"""The progress that runs report, in words."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from kapelle.cli.text import one_line
from kapelle.domain.text import format_count

ProgressFacts: TypeAlias = Mapping[str, object]
"""The facts that a run of any pattern reports about its progress, by their names."""

_LONGEST_PROBLEM = 200
_VERDICTS = {
    "start": "the start",
    "pass": "passed",
    "progress": "not yet",
    "keep": "better, kept",
    "discard": "not better, put back",
    "fail": "failed",
}
# Facts of the built-in patterns, for which there are sentences below.
_KNOWN_FACTS = frozenset(
    {"iteration", "failures", "best", "verdict", "score", "problem", "feedback", "step", "steps",
     "doing", "phase", "lack", "subgoals", "merged", "planned", "verified", "cycle", "cycles",
     "round", "rounds", "loop", "loops", "items", "ended", "done", "failed", "candidates",
     "eligible", "winner", "agent"}
)  # fmt: skip


def describe_progress_event(facts: ProgressFacts) -> str:
    """Return one report of a run, for its history."""
    if facts.get("verdict") is not None:
        return _describe_iteration(facts)
    parts = [*_position(facts), *_score("score", facts.get("score")), *_other_facts(facts)]
    return ", ".join(parts) or "goes on"


def describe_progress(facts: ProgressFacts, max_iterations: int | None = None) -> str:
    """Return everything that a run has reported by now, for a line about the present."""
    score = _score("last score", facts.get("score"))
    return ", ".join([*_position(facts, max_iterations), *score, *_other_facts(facts)])


def describe_verdict(verdict: str) -> str:
    """Return in words how an iteration of a loop ended."""
    return _VERDICTS.get(verdict, verdict)


def format_fact(value: object) -> str:
    """Format a fact of a pattern: yes or no, a number without noise, or any other value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:.12g}"
    return str(value)


def _score(name: str, value: object) -> list[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [f"{name} {value:.12g}"]
    return []


def _describe_iteration(facts: ProgressFacts) -> str:
    score = facts.get("score")
    best = facts.get("best")
    parts = [*_score("score", score), describe_verdict(str(facts["verdict"]))]
    if best != score:
        parts += _score("best", best)
    sentence = f"iteration {facts.get('iteration')}: {', '.join(parts)}"
    problem = facts.get("problem") or facts.get("feedback")
    if problem:
        sentence += f" ({one_line(str(problem), _LONGEST_PROBLEM)})"
    return sentence


def _position(facts: ProgressFacts, max_iterations: int | None = None) -> Iterator[str]:
    """Yield where a run is: its iteration, its phase, its step, and the best score by now."""
    if facts.get("iteration") is not None:
        limit = ""
        if max_iterations:
            limit = f" of {max_iterations}"
        yield f"iteration {facts['iteration']}{limit}"
    if facts.get("phase"):
        subject = _phase_subject(facts)
        if subject:
            subject = f": {one_line(subject, _LONGEST_PROBLEM)}"
        yield f"{one_line(str(facts['phase']), 60)}{subject}"
    activity = facts.get("doing")
    if facts.get("step") is not None:
        step = f"step {facts['step']} of {facts.get('steps')}"
        if activity:
            step += f": {one_line(str(activity), 60)}"
        yield step
    elif activity:
        yield one_line(str(activity), 120)
    yield from _score("best", facts.get("best"))


def _phase_subject(facts: ProgressFacts) -> str:
    """Return what a phase is about: its subgoals, what is lacking, or the parts of its plan."""
    subject = str(facts.get("lack") or "")
    subgoals = facts.get("subgoals")
    if facts["phase"] == "work" and isinstance(subgoals, list):
        titles = [str(subgoal["title"]) for subgoal in subgoals if isinstance(subgoal, dict)]
        subject = ", ".join(titles)
    return subject or _nested_parts(facts)


def _nested_parts(facts: ProgressFacts) -> str:
    """Return the parts of a plan that are runs of their own; tasks have lines of their own."""
    plan = facts.get("plan")
    if facts["phase"] != "work" or not isinstance(plan, list):
        return ""
    runs = [part for part in plan if isinstance(part, dict) and part.get("kind", "task") != "task"]
    return ", ".join(f"{run['title']} ({run['kind']}): {run['status']}" for run in runs)


def _other_facts(facts: ProgressFacts) -> Iterator[str]:
    """Yield counts against their plan, then the facts that only the pattern itself knows."""
    yield from _counts(facts)
    for name, value in facts.items():
        is_plain = value is not None and not isinstance(value, list | dict)
        if name not in _KNOWN_FACTS and is_plain:
            yield one_line(f"{name.replace('_', ' ')} {format_fact(value)}", 80)


def _counts(facts: ProgressFacts) -> Iterator[str]:
    """Yield how many of the planned cycles, rounds, items or candidates there are by now."""
    for name in ("cycle", "round", "loop"):
        number = facts.get(name)
        limit = facts.get(f"{name}s")
        is_only_loop = name == "loop" and limit == 1
        if number and limit and not is_only_loop:
            yield f"{name} {number} of {limit}"
    done = facts.get("done") or 0
    milestones = facts.get("milestones")
    if isinstance(milestones, list) and milestones:
        yield f"{done} of {format_count(len(milestones), 'milestone')} done"
    elif facts.get("items") is not None:
        yield f"{done} of {facts['items']} done"
    if facts.get("failed"):
        yield f"{facts['failed']} failed"
    if facts.get("eligible") is not None:
        yield f"{facts['eligible']} of {facts.get('candidates')} candidates passed"
    if facts.get("winner") is not None:
        agent = ""
        if facts.get("agent"):
            agent = f" ({facts['agent']})"
        yield f"candidate {facts['winner']}{agent} wins"
