"""What a run tells of how far it is, in words; unknown facts are shown as they are."""

from typing import Any

from kapelle.cli.text import one_line

Facts = dict[str, Any]

_PROBLEM = 200
_VERDICTS = {
    "start": "the start",
    "pass": "passed",
    "progress": "not yet",
    "keep": "better, kept",
    "discard": "not better, put back",
    "fail": "failed",
}
# Facts of the built-in patterns, which the sentences below are made of.
_TOLD = frozenset(
    {"iteration", "failures", "best", "verdict", "score", "problem", "step", "steps", "doing",
     "phase", "lack", "subgoals", "merged", "verified"}
)  # fmt: skip


def progress_words(facts: Facts) -> str:
    """One thing that a run has told, for its history."""
    if facts.get("verdict") is not None:
        return _verdict(facts)
    score = [f"score {facts['score']:.12g}"] if _is_number(facts.get("score")) else []
    return ", ".join([*_place(facts), *score, *_more(facts)]) or "goes on"


def state_words(facts: Facts, limit: int | None = None) -> str:
    """All that is known by now, for a line about the present; limit is the most iterations."""
    place = _place(facts, limit)
    if _is_number(facts.get("score")):
        place.append(f"last score {facts['score']:.12g}")
    return ", ".join([*place, *_more(facts)])


def verdict_words(verdict: str) -> str:
    """What became of an iteration of a loop."""
    return _VERDICTS.get(verdict, verdict)


def _verdict(facts: Facts) -> str:
    score, best = facts.get("score"), facts.get("best")
    found = [f"score {score:.12g}"] if _is_number(score) else []
    found.append(verdict_words(str(facts["verdict"])))
    if _is_number(best) and best != score:
        found.append(f"best {best:.12g}")
    problem = f" ({one_line(str(facts['problem']), _PROBLEM)})" if facts.get("problem") else ""
    return f"iteration {facts.get('iteration')}: {', '.join(found)}{problem}"


def _place(facts: Facts, limit: int | None = None) -> list[str]:
    found = []
    if facts.get("iteration") is not None:
        of = f" of {limit}" if limit else ""
        found.append(f"iteration {facts['iteration']}{of}")
    if facts.get("phase"):
        lack = f": {one_line(str(facts['lack']), _PROBLEM)}" if facts.get("lack") else ""
        found.append(f"{one_line(str(facts['phase']), 60)}{lack}")
    if facts.get("step") is not None:
        doing = f": {one_line(str(facts['doing']), 60)}" if facts.get("doing") else ""
        found.append(f"step {facts['step']} of {facts.get('steps')}{doing}")
    if _is_number(facts.get("best")):
        found.append(f"best {facts['best']:.12g}")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _more(facts: Facts) -> list[str]:
    """What only the pattern itself understands."""
    return [
        one_line(f"{key.replace('_', ' ')} {_shown(value)}", 80)
        for key, value in facts.items()
        if key not in _TOLD and value is not None
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
