"""The tasks and runs that a run has started, one line each."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kapelle.cli.outcome import Task, next_commands
from kapelle.cli.runs.lines import short_title
from kapelle.cli.runs.outcome import Run
from kapelle.cli.style import STATUS_STYLE, paint, terminal_width
from kapelle.cli.text import one_line
from kapelle.cli.times import between

Step = dict[str, Any]

MOST = 12
_MARKS = {"completed": "✓", "failed": "✗", "cancelled": "✗", "waiting": "?"}
_AT_REST = frozenset({"queued", "blocked", "waiting"})


def task_lines(run: Run, steps: Sequence[Step], open_tasks: Mapping[str, Task]) -> Iterator[str]:
    """What was started, the last ones at most, and the steps of a pipeline that are to come."""
    started = [step for step in steps if step["kind"] in {"task", "run"} and step["subject"]]
    started.sort(key=lambda step: step["position"])
    if len(started) > MOST:
        hidden = len(started) - MOST
        yield paint(f"    … {hidden} earlier ones: kapelle runs steps {run['id']}", "dim")
    for step in started[-MOST:]:
        yield from _lines(step, open_tasks.get(step["subject"]))
    if run["pattern"] == "pipeline" and not run["ended_at"]:
        for step in run["spec"].get("steps", [])[len(started) :]:
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
