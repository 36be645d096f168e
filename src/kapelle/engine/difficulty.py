"""Which model a task gets that names none: by its difficulty, where that is switched on."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from kapelle.engine.consult import consult
from kapelle.engine.parts import Stage
from kapelle.engine.work import Work
from kapelle.settings import AgentSettings

Difficulty = Literal["simple", "medium", "complex"]

_QUESTION = """\
How difficult is the following task for a programmer who knows the code? Reply with one word and
nothing else: simple (one small, obvious change), medium, or complex (several parts, a design, or a
search for an unknown cause).

~~~
{prompt}
~~~
"""
RUN = "difficulty"
_LONGEST_PROMPT = 8_000
_COMPLEX = re.compile(
    r"\b(architect\w*|redesign|refactor\w*|migrat\w+|concurren\w+|race condition|deadlock|security"
    r"|performance|optimi[sz]\w+|distributed|from scratch|investigate|root cause)\b",
    re.IGNORECASE,
)
_SIMPLE = re.compile(
    r"\b(typo|rename|comment|docstring|readme|bump|format\w*|spelling|changelog|log message)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Choice:
    """A model with the reason why it was chosen."""

    model: str
    reason: str


async def choose_model(stage: Stage, work: Work) -> Choice | None:
    """The model of this task's difficulty; None where a model is named or none is configured."""
    settings = work.settings
    own = settings.agents.get(work.agent) or AgentSettings()
    if work.task["model"] or not settings.difficulty.classify or not own.models:
        return None
    difficulty, reason = await _difficulty(stage, work)
    model = own.models.get(difficulty) or own.model
    return Choice(model, f"{difficulty}: {reason}") if model else None


async def _difficulty(stage: Stage, work: Work) -> tuple[Difficulty, str]:
    judge, prompt = work.settings.difficulty.agent, work.task["prompt"]
    if judge is None:
        return by_wording(prompt)
    question = _QUESTION.format(prompt=prompt[:_LONGEST_PROMPT])
    answer = await consult(stage, work, RUN, judge, question)
    words = re.findall(r"\b(simple|medium|complex)\b", (answer.text or "").lower())
    if words:
        found: Difficulty = next(x for x in get_args(Difficulty) if x == words[-1])
        return found, f"{judge} said so"
    difficulty, reason = by_wording(prompt)
    problem = answer.problem or f"it replied {(answer.text or '')[:80]!r}"
    return difficulty, f"{reason} ({judge} could not tell: {problem})"


def by_wording(prompt: str) -> tuple[Difficulty, str]:
    """A plain guess from length and wording."""
    words = len(prompt.split())
    steps = len(re.findall(r"^\s*(?:[-*]|\d+[.)])\s", prompt, re.MULTILINE))
    if found := _COMPLEX.search(prompt):
        return "complex", f"the prompt says {found[0]!r}"
    if words > 300 or steps > 6:
        return "complex", f"the prompt has {words} words and {steps} listed steps"
    if (found := _SIMPLE.search(prompt)) and words <= 60:
        return "simple", f"a short prompt that says {found[0]!r}"
    if words <= 12 and not steps:
        return "simple", f"the prompt has only {words} words"
    return "medium", f"the prompt has {words} words and {steps} listed steps"
