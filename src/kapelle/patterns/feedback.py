"""What the next iteration of a loop is told of those before it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kapelle.domain.run_specs import LoopSpec
from kapelle.patterns.context import Context
from kapelle.patterns.evaluation import Evaluation

if TYPE_CHECKING:
    from kapelle.patterns.loop import Iteration

_OUTPUT = 12_000
_HISTORY = 20
_CHANGES = 4_000


async def feedback(
    ctx: Context, spec: LoopSpec, before: Sequence["Iteration"], last: Evaluation | None
) -> str:
    """Sections that are added to the prompt; nothing for the first round of a retry loop."""
    if not before:
        return ""
    parts = [_history(spec, before)]
    problem = before[-1].problem
    if problem and (last is None or problem != last.problem):
        parts.append(f"## What went wrong last time\n{problem[-2000:]}")
    if last is not None and last.output.strip():
        # The end of an output says what failed; its beginning is noise.
        end = last.output.strip()[-_OUTPUT:]
        parts.append(f"## The end of the last evaluation's output\n~~~\n{end}\n~~~")
    changes = await ctx.changes()
    if changes:
        parts.append(f"## What was changed so far\n~~~\n{changes[-_CHANGES:]}\n~~~")
    return "\n\n" + "\n\n".join(parts)


def _history(spec: LoopSpec, before: Sequence["Iteration"]) -> str:
    number = before[-1].number + 1
    lines = [f"## This is iteration {number} of a loop"]
    if spec.optimises:
        goal = "smaller" if spec.direction == "minimize" else "larger"
        how = f"`{spec.eval}`" if spec.eval else "a judge"
        target = f", at best {spec.target:.12g}" if spec.target is not None else ""
        lines.append(f"The score, measured by {how}, is to become {goal}{target}. So far:")
    else:
        lines.append("It ends when its condition holds, which it does not yet. So far:")
    for item in before[-_HISTORY:]:
        score = f" score {item.score:.12g}" if item.score is not None else ""
        back = ", so it was put back" if item.commit else ""
        fate = {"discard": f" (not better{back})", "fail": " (failed)"}.get(item.verdict, "")
        name = "the start" if item.number == 0 else f"iteration {item.number}"
        why = f": {item.problem[-200:]}" if item.problem and item.verdict == "fail" else ""
        lines.append(f"- {name}:{score or ' ' + item.verdict}{fate}{why}")
    return "\n".join(lines)
