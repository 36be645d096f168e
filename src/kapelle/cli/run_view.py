"""One run for people: where it stands, what it did, what it used and what to type next."""

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kapelle.cli.events import is_number, state_words, verdict_words
from kapelle.cli.format import (
    STATUS_STYLE,
    between,
    clean,
    columns_of,
    command_lines,
    dollars,
    field,
    fit,
    last_lines,
    one_line,
    paint,
    short,
    short_title,
    table,
    terminal_width,
    usd_limit,
    workspace_fields,
)
from kapelle.cli.outcome import Run, Task, next_commands
from kapelle.domain.text import counted

Step = dict[str, Any]

MOST = 12
_MARKS = {"completed": "✓", "failed": "✗", "cancelled": "✗", "waiting": "?"}
_AT_REST = frozenset({"queued", "blocked", "waiting"})


def task_lines(run: Run, steps: Sequence[Step], open_tasks: Mapping[str, Task]) -> Iterator[str]:
    """What was started, the last ones at most, and the steps of its spec that are to come."""
    started = [step for step in steps if step["kind"] in {"task", "run"} and step["subject"]]
    started.sort(key=lambda step: step["position"])
    if len(started) > MOST:
        hidden = len(started) - MOST
        yield paint(f"    … {hidden} earlier ones: kapelle runs steps {run['id']}", "dim")
    for step in started[-MOST:]:
        yield from _lines(step, open_tasks.get(step["subject"]))
    if not run["ended_at"]:
        for step in (run["spec"].get("steps") or [])[len(started) :]:
            yield paint(f"    · {_label(step)}", "dim")


def _lines(step: Step, task: Task | None) -> Iterator[str]:
    result = step["result"] or task or {}
    status = result.get("status") or ("running" if step["ended_at"] is None else "failed")
    style = STATUS_STYLE.get(status)
    mark = paint(_MARKS.get(status, "▸"), style)
    took = between(step["started_at"], step["ended_at"])
    took += f", {status}" if status in _AT_REST else ""
    title = short_title(step["label"], max((terminal_width() or 120) - 15, 30))
    yield f"    {mark} {title} {paint(took, 'dim')}".rstrip()
    yield paint(f"      {step['subject']}", "dim")
    reason = step["error"] or (None if status == "completed" else result.get("reason"))
    if reason:
        yield f"      {one_line(reason, 200)}"
    if task and task["status"] == "waiting":
        yield f"      {next_commands(task)[0][0]}"


def _label(step: Any) -> str:
    if isinstance(step, str):
        return one_line(step, 80)
    return one_line(step.get("name") or step.get("prompt") or "", 80)


_STYLES = {"pass": "green", "keep": "green", "fail": "red", "discard": "dim"}
_JSON_LINES = 15
_JSON_WIDTH = 300
_DIFFERENCE = 6
_INDENT = 4


def result_lines(run: Run, told: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What a pattern returned, by its shape: iterations, candidates, subgoals, or plain JSON."""
    match run["result"]:
        case None:
            yield from _iterations([facts for facts in told if facts.get("verdict")], None)
        case {"iterations": [{"verdict": _}, *_] as iterations, "best": best}:
            yield from _iterations(iterations, best["number"] if best else None)
        case {"candidates": [*candidates], "winner": winner}:
            yield from _candidates(candidates, winner)
        case {"iterations": [*iterations], "success_criteria": [*criteria]}:
            yield from _goal(iterations, criteria)
        case {"steps": [{"task": _}, *_]}:
            return  # the tasks say it all
        case result:
            yield from _plain(run["id"], result)


def _plain(run_id: str, result: Any) -> Iterator[str]:
    """The beginning of a result whose shape only its pattern knows."""
    lines = clean(json.dumps(result, indent=2, ensure_ascii=False)).split("\n")
    yield paint("  result", "dim")
    yield from (f"    {fit(line, _JSON_WIDTH)}" for line in lines[:_JSON_LINES])
    if lines[_JSON_LINES:] or any(columns_of(line) > _JSON_WIDTH for line in lines):
        yield paint(f"    … all of it: kapelle runs result {run_id}", "dim")


def _iterations(found: Sequence[dict[str, Any]], best: int | None) -> Iterator[str]:
    """A table of a loop's iterations, as its result or its history tells them."""
    if not found:
        return
    numbers = [item["score"] for item in found if is_number(item.get("score"))]
    rows = [
        [
            _number(item) + ("*" if _number(item) == str(best) else ""),
            verdict_words(item["verdict"]),
            f"{item['score']:.12g}" if is_number(item.get("score")) else "-",
            (item.get("commit") or "")[:10],
            one_line(item.get("problem") or ""),
        ]
        for item in found
    ]
    header = ["#", "VERDICT", "SCORE", "COMMIT", "PROBLEM"]
    # Columns in which nothing stands only take room.
    kept = [0, 1, *([2] if numbers else []), *([3] if any(row[3] for row in rows) else []), 4]
    shown = [[row[index] for index in kept] for row in rows]
    styles = [_STYLES.get(item["verdict"]) for item in found]
    yield paint("  iterations", "dim")
    yield from table([header[index] for index in kept], shown, styles, _INDENT)
    if best is not None:
        where = ", which is what the branch holds" if any(row[3] for row in rows) else ""
        yield paint(f"    * the best{where}", "dim")


def _number(item: dict[str, Any]) -> str:
    return str(item["number"] if "number" in item else item.get("iteration"))


def _candidates(found: Sequence[dict[str, Any]], winner: int | None) -> Iterator[str]:
    rows = [
        [
            f"{item['number']}*" if item["number"] == winner else str(item["number"]),
            "out" if item.get("problem") else "won" if item["number"] == winner else "passed",
            one_line(item["agent"] + (f":{item['model']}" if item.get("model") else "")),
            f"{item['score']:.12g}" if is_number(item.get("score")) else "-",
            one_line(item.get("problem") or ""),
        ]
        for item in found
    ]
    styles = {"won": "green", "out": "red"}
    yield paint("  candidates", "dim")
    yield from table(
        ["#", "VERDICT", "AGENT", "SCORE", "PROBLEM"], rows, [styles.get(row[1]) for row in rows],
        _INDENT,
    )  # fmt: skip
    for item in found:
        if (item.get("against_winner") or "").strip():
            yield paint(f"    candidate {item['number']} against the winner:", "dim")
            yield from (f"      {line}" for line in last_lines(item["against_winner"], _DIFFERENCE))


def _goal(iterations: Sequence[dict[str, Any]], criteria: Sequence[str]) -> Iterator[str]:
    if criteria:
        yield paint("  done when", "dim")
        yield from (f"    - {one_line(text, 200)}" for text in criteria)
    yield paint("  iterations", "dim")
    for item in iterations:
        outcomes = item.get("outcomes") or []
        merged = sum(outcome["status"] == "merged" for outcome in outcomes)
        yield f"    {item['number']}  {merged} of {len(outcomes)} merged{_judged(item)}"
        for outcome in outcomes:
            good = outcome["status"] == "merged"
            mark = paint("✓", "green") if good else paint("✗", "red")
            reason = f": {one_line(outcome['reason'], 200)}" if outcome.get("reason") else ""
            state = "" if good else f" ({outcome['status']})"
            yield f"       {mark} {one_line(outcome['title'], 100)}{state}{reason}"
        if item.get("problem"):
            yield paint(f"       {one_line(item['problem'], 300)}", "red")


def _judged(item: dict[str, Any]) -> str:
    """What the checks and the reviewer said of an iteration."""
    checks, review = item.get("checks") or [], item.get("review")
    passed = sum(check["passed"] for check in checks)
    said = f", {passed} of {len(checks)} checks passed" if checks else ""
    if review is None:
        return said
    against = [
        name.replace("_", " ")
        for name in ("quality", "consistency", "goal_aligned", "goal_complete")
        if not review.get(name)
    ]
    if not against:
        return f"{said}, approved"
    feedback = f": {one_line(review['feedback'], 200)}" if review.get("feedback") else ""
    return f"{said}, the reviewer says no to {', '.join(against)}{feedback}"


_ROLES = ("planner", "worker", "reviewer", "judge")


def describe(
    run: Run,
    steps: Sequence[Step],
    told: Sequence[dict[str, Any]] = (),
    open_tasks: Mapping[str, Task] = MappingProxyType({}),
) -> Iterator[str]:
    """The lines of the human view.

    told is what the run said of its progress, in order; open_tasks are those it waits for, by id.
    """
    yield paint(one_line(run["title"]), "bold")
    yield field("id", run["id"])
    yield field("status", _status(run))
    yield from _circumstances(run)
    if run["progress"] and not run["ended_at"]:
        most = run["spec"].get("max_iterations")
        yield field("progress", state_words(run["progress"], most))
    yield from _questions(run)
    yield from result_lines(run, told)
    tasks = list(task_lines(run, steps, open_tasks))
    if tasks:
        yield field("tasks", "")
        yield from tasks
    yield from workspace_fields(run)
    yield from command_lines(next_commands(run))


def _status(run: Run) -> str:
    status = paint(run["status"], STATUS_STYLE.get(run["status"]))
    status += ", archived" if run.get("archived_at") else ""
    # The questions stand below, each with its token.
    reason = None if run["questions"] else run["reason"]
    return f"{status}: {one_line(reason)}" if reason else status


def _circumstances(run: Run) -> Iterator[str]:
    yield field("pattern", one_line(run["pattern"]))
    if who := _who(run["spec"]):
        yield field("agents", one_line(who))
    taken = f", under way {short(run['spent']['seconds'])}" if run["started_at"] else ""
    yield field("time", f"created {between(run['created_at'], None)} ago{taken}")
    yield field("spent", _spent(run))
    if run["project"]:
        yield field("project", one_line(run["project"]))
    for name in ("parent_id", "schedule_id"):
        if run[name]:
            yield field(name.removesuffix("_id"), run[name])


def _who(spec: dict[str, Any]) -> str:
    named = [_agent("", spec.get("agent"), spec.get("model"))]
    named += [_agent(f"{role} ", spec.get(role), spec.get(f"{role}_model")) for role in _ROLES]
    fallback = spec.get("fallback_agents")
    return ", ".join(filter(None, named)) + (f", then {', '.join(fallback)}" if fallback else "")


def _agent(role: str, agent: str | None, model: str | None) -> str:
    if not agent and not model:
        return ""
    return f"{role}{agent or 'the default'}" + (f" with {model}" if model else "")


def _spent(run: Run) -> str:
    """What was used, against what may be."""
    spent, spec = run["spent"], run["spec"]
    calls = counted(spent["agent_calls"], "agent call")
    if spec.get("max_agent_calls"):
        calls = f"{spent['agent_calls']:,} of {counted(spec['max_agent_calls'], 'agent call')}"
    facts = [calls]
    budget, cost = spec.get("budget_usd"), spent["cost_usd"]
    if cost is not None or budget:
        known = "cost unknown" if cost is None else dollars(cost)
        facts.append(f"{known} of {usd_limit(budget)}" if budget else known)
    if spec.get("max_seconds"):
        facts.append(f"{short(spent['seconds'])} of {short(spec['max_seconds'])}")
    return ", ".join(facts)


def _questions(run: Run) -> Iterator[str]:
    if not run["questions"]:
        return
    yield field("asks", "")
    for question in run["questions"]:
        default = f" [{one_line(question['default'])}]" if question["default"] else ""
        yield paint(f"    ? {one_line(question['text'])}{default}", "yellow")
        yield f'      kapelle runs answer {question["token"]} "…"'
