"""Several who may do the same work: who they are, and the first of them that can."""

from collections.abc import Sequence
from typing import Any

from pydantic import model_validator

from kapelle.domain.failures import POLICIES, FailureClass, Response
from kapelle.domain.specs import Name, Spec, field
from kapelle.domain.states import TaskStatus
from kapelle.patterns.context import Context
from kapelle.patterns.results import MAKES_WAY, NOBODY, TaskResult

_TRIES = 3
# Failures that say something of the work or of its limits: nobody else is asked. What only a person
# can mend rules an agent out at once, and all else when it has not passed after a few tries.
_OF_WORK = {
    FailureClass.TASK, FailureClass.CHECKS, FailureClass.TOOL, FailureClass.CONTEXT_OVERFLOW,
    FailureClass.LIMIT, FailureClass.TIMEOUT,
}  # fmt: skip
_LASTING = {kind for kind, rule in POLICIES.items() if rule.response is Response.STOP} - _OF_WORK


class CandidateSpec(Spec):
    """One who tries; as a plain string, agent or agent:model."""

    agent: Name | None = field(None, "who tries; by default the run's agent")
    model: Name | None = field(None, "the model it uses")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            agent, colon, model = value.partition(":")
            if colon and not (agent.strip() and model.strip()):
                lacks = "model" if agent.strip() else "agent"
                raise ValueError(f"{value!r} lacks the {lacks}: write AGENT or AGENT:MODEL")
            return {"agent": agent or None, "model": model or None}
        return value


class Unable(Exception):
    """None of several could do it; what each of them ended with."""

    def __init__(self, ended: Sequence[TaskResult]) -> None:
        super().__init__("; ".join(f"{one.agent}: {one.reason or one.status}" for one in ended))


async def first_able(
    ctx: Context, candidates: Sequence[CandidateSpec], prompt: str, delay_s: float, **fields: Any
) -> TaskResult:
    """The work of the first of the candidates that does it, well or badly; raises Unable.

    One that is limited makes way for the next; when all are, the first is waited for. What passes
    is tried three times, and then by another agent.
    """
    out = dict[str | None, TaskResult]()
    hasty = [(who, False) for who in candidates if len(candidates) > 1]
    for who, patient in [*hasty, *((who, True) for who in candidates)]:
        for again in range(_TRIES):
            if who.agent in out:
                break
            if again:
                await ctx.sleep(delay_s * 2 ** (again - 1))
            work = await ctx.task(
                prompt, agent=who.agent, model=who.model, patient=patient, **fields
            )
            if work.ok or work.failure in _OF_WORK:
                return work
            if work.status is TaskStatus.CANCELLED:
                if not (work.reason or "").startswith((MAKES_WAY, NOBODY)):
                    raise Unable([work])  # a person does not want it
                if patient:
                    out[who.agent] = work
                break
            if work.failure in _LASTING or again == _TRIES - 1:
                out[who.agent] = work
    raise Unable([*out.values()])
