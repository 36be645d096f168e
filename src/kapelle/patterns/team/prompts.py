"""What the roles of a team are told."""

from kapelle.domain.run_specs import TeamSpec
from kapelle.patterns.results import TaskResult
from kapelle.patterns.team.shapes import Iteration, Outcome, Subgoal

_TAIL = 4_000


def intake(spec: TeamSpec) -> str:
    asks = (
        "List at most 4 questions that only the person who gave the goal can answer and without "
        "which the work could go wrong; none is best."
        if spec.ask
        else "Nobody can be asked: leave the questions empty and decide what is sensible."
    )
    given = _bullets("What is known of the criteria", spec.success_criteria)
    return (
        "You prepare the work of a team of coding agents in this directory. Say by which criteria "
        "one will see that the goal is reached. Look at the files if that helps; change nothing.\n"
        f"{asks}\n\n## The goal\n{spec.goal}{given}"
    )


def plan(
    spec: TeamSpec, criteria: list[str], answers: dict[str, str], before: list[Iteration]
) -> str:
    parts = [
        "You plan the work of a team of coding agents in this directory. Divide the goal into "
        f"subgoals, at most {spec.max_subgoals}, as few as sensible. Each is done by one worker "
        "in a copy of the files of its own and then merged: subgoals that touch the same lines "
        "must depend on each other, others should not, so that they are worked on at once. Every "
        "subgoal changes files. Look at the files yourself; change nothing.",
        f"## The goal\n{spec.goal}",
        _bullets("It is reached when", criteria).strip(),
        _answers(answers),
    ]
    if before:
        parts.append(_so_far(before))
        parts.append("Plan only what is still missing.")
    return "\n\n".join(part for part in parts if part)


def work(spec: TeamSpec, subgoal: Subgoal, done: list[Outcome]) -> str:
    parts = [
        subgoal.task,
        f"## What this is part of\n{spec.goal}\n\nOthers work on other parts: change only what "
        "your part needs. Leave everything in working order.",
    ]
    if done:
        lines = [f"- {other.title}: {other.said[-500:] or 'done'}" for other in done]
        parts.append("\n".join(["## What was done before, and is in your files", *lines]))
    return "\n\n".join(parts)


def again(prompt: str, task: TaskResult) -> str:
    output = [f"`{check.name}`:\n~~~\n{check.output[-_TAIL:]}\n~~~" for check in task.failed_checks]
    told = "\n".join([task.reason or task.status, *output])
    return (
        f"{prompt}\n\n## An earlier try was not accepted\n{told}\n"
        "Its changes are not in your files: begin anew, and avoid what went wrong."
    )


def resolve(subgoal: Subgoal, conflicts: list[str]) -> str:
    files = "\n".join(f"- {path}" for path in conflicts)
    return (
        "Your work and that of others changed the same lines. Both are now in your files, with "
        "conflict markers (<<<<<<<, =======, >>>>>>>); the first side is yours. Resolve every "
        "conflict so that both purposes are served, remove the markers, and change nothing else."
        f"\n\n## Files, from the top of the repository\n{files}"
        f"\n\n## What your work was\n{subgoal.task}"
    )


def review(spec: TeamSpec, criteria: list[str], iteration: Iteration, changes: str) -> str:
    passed = [f"`{check.name}` passed" for check in iteration.checks]
    parts = [
        "You review the work of a team of coding agents in this directory. Judge by the files, "
        "not by what was said; change nothing. Say no where you doubt.",
        f"## The goal\n{spec.goal}",
        _bullets("It is reached when", criteria).strip(),
        _bullets("What was verified", passed).strip(),
        "\n".join(["## What the workers say", *map(_outcome, iteration.outcomes)]),
        f"## What was changed\n~~~\n{changes[-_TAIL:]}\n~~~" if changes else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _so_far(before: list[Iteration]) -> str:
    lines = ["## What was done so far, and is in your files"]
    lines += [_outcome(outcome) for iteration in before for outcome in iteration.outcomes]
    last = before[-1]
    if last.problem:
        lines += ["", f"What went wrong last: {last.problem}"]
    for check in last.checks:
        if not check.passed:
            lines += ["", f"The check `{check.name}` fails:", "~~~", check.output[-_TAIL:], "~~~"]
    if last.review is not None and not last.review.approves:
        lines += ["", f"The reviewer says no to: {', '.join(last.review.objections)}."]
        lines.append(last.review.feedback)
    return "\n".join(lines)


def _outcome(outcome: Outcome) -> str:
    said = f" It said: {outcome.said[-300:]}" if outcome.said else ""
    reason = f" ({outcome.reason})" if outcome.reason else ""
    return f"- {outcome.title}: {outcome.status}{reason}.{said}"


def _answers(answers: dict[str, str]) -> str:
    return _bullets("What was asked and answered", [f"{q} {a}" for q, a in answers.items()]).strip()


def _bullets(heading: str, items: list[str]) -> str:
    return "\n\n" + "\n".join([f"## {heading}", *(f"- {item}" for item in items)]) if items else ""
