"""The view of one task: its state, its checks, its attempts, its result, what to type next."""

import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kapelle.cli.figures import (
    attempts_s,
    format_cost,
    format_elapsed,
    format_seconds,
    format_size,
    format_usage,
    format_usd_limit,
)
from kapelle.cli.layout import (
    STATUS_STYLE,
    check_mark,
    command_lines,
    field_line,
    field_lines,
    paint,
)
from kapelle.cli.questions import asked_lines
from kapelle.cli.states import waiting_reason
from kapelle.cli.text import last_lines, last_output_lines, one_line, reason_lines
from kapelle.cli.view import (
    format_agent,
    repository_name,
    work_heading_lines,
    workspace_lines,
)
from kapelle.domain.report import next_commands
from kapelle.domain.text import format_count

if TYPE_CHECKING:
    from kapelle.client.records import (
        AttemptJson,
        CheckResultJson,
        ExitJson,
        PersonMessageJson,
        TaskJson,
    )

_DIAGNOSIS_TAIL = 15
_CHECK_TAIL = 20
_RESULT_TAIL = 20
_MESSAGE_STATES = {
    "waiting": "not read yet",
    "delivered": "read",
    "refused": "not read: the task has ended",
}
_READ_ONLY = "read-only: the changes are thrown away"


def describe_task(task: "TaskJson", messages: Sequence["PersonMessageJson"] = ()) -> Iterator[str]:
    """Yield the lines of the view; messages are those of people to the task's agents."""
    reason = task["reason"]
    if task["status"] == "waiting":
        reason = waiting_reason(task)
    if task.get("questions"):
        reason = None  # the questions follow
    yield from work_heading_lines(task, reason)
    yield from asked_lines(task)
    yield from _spec_lines(task)
    yield from _verdict_lines(task)
    yield from _attempt_lines(task)
    for message in messages:
        yield _message_line(message)
    yield from workspace_lines(task)
    refusal = task.get("merge_refused")
    if refusal:
        base = f"on what {refusal['base']} would be, commit {refusal['commit'][:12]}"
        text = f"refused: {one_line(refusal['name'], 100)} fails {base}"
        yield field_line("merge", paint(text, "yellow"))
    if task["result"]:
        yield field_line("result", "")
        for line in last_lines(task["result"], _RESULT_TAIL):
            yield f"    {line}"
    yield from command_lines(next_commands(task))


def _spec_lines(task: "TaskJson") -> Iterator[str]:
    """Yield who works on the task, its limits, and what it belongs to."""
    time = f"created {format_elapsed(task['created_at'], None)} ago"
    if task["attempts"]:
        time += f", ran {format_seconds(attempts_s(task))}"
    labels = filter(None, [task["project"], *task["tags"]])
    read_only = None
    if task.get("read_only"):
        read_only = _READ_ONLY
    return field_lines(
        {
            "agent": format_agent(task["agent"], task["model"], task["fallback_agents"]),
            "limits": _format_limits(task),
            "mcp": one_line(", ".join(task["mcp"])),
            "tools": one_line(", ".join(task.get("tools") or ())),
            "workspace": read_only,
            "time": time,
            "priority": task["priority"],
            "repository": repository_name(task),
            "labels": one_line(", ".join(labels)),
            "after": " ".join(task["depends_on"]),
            "run": task.get("run_id"),
            "parent": task.get("parent_task_id"),
            "children": " ".join(task.get("children") or ()),
        }
    )


def _format_limits(task: "TaskJson") -> str:
    limits = []
    if task["budget_usd"]:
        limits.append(f"{format_usd_limit(task['budget_usd'])} in all")
    if task["max_turns"]:
        limits.append(f"{format_count(task['max_turns'], 'turn')} an attempt")
    if task["timeout_s"]:
        limits.append(f"{format_seconds(task['timeout_s'])} an attempt")
    return ", ".join(limits)


def _message_line(message: "PersonMessageJson") -> str:
    """Return a message of a person, its kind, and whether an agent has read it."""
    state = _MESSAGE_STATES[message["state"]]
    if message["attempt"]:
        state = f"attempt {message['attempt']}, {state}"
    return field_line(message["kind"], f"{one_line(message['text'], 200)} ({state})")


def _verdict_lines(task: "TaskJson") -> Iterator[str]:
    """Yield what the agent claimed, and what the checks verified."""
    checks = task["checks"]
    if task["attempts"]:
        claim = task["attempts"][-1]["claimed"] or "none"
        source = paint("(the agent's own report)", "dim")
        yield field_line("claimed", f"{claim} {source}")
    if checks:
        passed = [check for check in checks if check["passed"]]
        verdict = f"{len(passed)} of {len(checks)} checks passed"
        if task.get("verified") is False:
            verdict = f"not verified: {verdict}{_doubt(task)}"
        yield field_line("verified", verdict)
    elif task["status"] == "completed":
        yield field_line("verified", "not verified: the task has no checks")
    for check in checks:
        yield from _check_lines(task, check)


def _doubt(task: "TaskJson") -> str:
    """Return why checks that passed do not verify a task, in a few words."""
    for check in task["checks"]:
        if check.get("passes_only_with") or check.get("changed_meanwhile"):
            return ", which does not verify it"
    return ", but none tests this change"


def _check_lines(task: "TaskJson", check: "CheckResultJson") -> Iterator[str]:
    line = f"    {check_mark(check['passed'])} {one_line(check['name'], 100)}"
    line += _check_directory(task, check)
    if check.get("duration_s") is not None:
        line += f" ({check['duration_s']:.1f}s)"
    commit = check.get("commit")
    if commit:
        line += f" on {commit[:12]}"
    if check.get("proved"):
        line += ", proved"
        if check.get("proved_earlier"):
            line += " earlier"
    yield line
    proof = check.get("proof")
    if proof and not check["proved"]:
        yield paint(f"        {one_line(proof, 300)}", "yellow")
    if not check["passed"] and check["output"].strip():
        for output in last_output_lines(check["output"], _CHECK_TAIL):
            yield f"        {output}"


def _check_directory(task: "TaskJson", check: "CheckResultJson") -> str:
    """Return where a check ran, from the top of the workspace; empty for the top itself."""
    top = task["workspace"]["path"]
    directory = check.get("directory")
    if not directory or not check.get("command") or not directory.startswith(f"{top}/"):
        return ""
    return f" in {one_line(directory.removeprefix(f'{top}/'), 200)}"


def _attempt_lines(task: "TaskJson") -> Iterator[str]:
    usages = []
    for attempt in task["attempts"]:
        yield field_line(f"attempt {attempt['number']}", _summarize_attempt(attempt))
        for line in _attempt_details(attempt, task["reason"]):
            yield f"    {line}"
        if attempt["usage"]:
            usages.append(attempt["usage"])
    if len(usages) > 1:
        costs = [usage["cost_usd"] for usage in usages if usage["cost_usd"] is not None]
        unknown = len(usages) - len(costs)
        if costs:
            yield field_line("cost", f"{format_cost(sum(costs), unknown)} in all")
        else:
            yield field_line("cost", format_cost(None, unknown))


def _summarize_attempt(attempt: "AttemptJson") -> str:
    """Return how an attempt ended, how long it took and how much it printed."""
    facts = [paint(attempt["status"], STATUS_STYLE.get(attempt["status"]))]
    # A daemon of an older version does not send the field.
    if attempt["status"] == "failed" and attempt.get("question") is not None:
        # An attempt that ended with a question counts as failed, but nothing went wrong.
        facts = [paint("asked", STATUS_STYLE["waiting"])]
    else:
        facts.append(_describe_exit(attempt["exit"]))
    facts.append(format_elapsed(attempt["started_at"], attempt["ended_at"]))
    facts.append(format_size(attempt["output_bytes"]))
    if attempt["mode"] != "fresh":
        facts.append("resumed")
    return ", ".join(filter(None, facts))


def _attempt_details(attempt: "AttemptJson", task_reason: str | None) -> Iterator[str]:
    """Yield the lines below an attempt; a reason that is also the task's is left out."""
    agent = f"by {format_agent(attempt['agent'], attempt['model'])}"
    if attempt["model_reason"]:
        agent += f" ({attempt['model_reason']})"
    if attempt.get("confinement") not in (None, "none"):
        agent += f", confined by {attempt['confinement']}"
    yield one_line(agent)
    if attempt["reason"] and attempt["reason"] != task_reason:
        yield from reason_lines(attempt["reason"])
    if attempt["failure"]:
        failure = f"{paint('failure', 'dim')} {attempt['failure']}"
        if attempt["evidence"]:
            failure += f": {one_line(attempt['evidence'], 300)}"
        yield failure
    for warning in attempt["warnings"]:
        yield paint(f"warning: {one_line(warning['text'], 300)}", "yellow")
    for learning in attempt.get("memory") or ():
        yield f"{paint('memory', 'dim')} {one_line(learning['title'], 100)} ({learning['id']})"
    if attempt["usage"]:
        yield f"{paint('used', 'dim')} {format_usage(attempt['usage'])}"
    if attempt["diagnosis"]:
        yield paint("diagnosis of the attempt before:", "dim")
        for line in last_lines(attempt["diagnosis"], _DIAGNOSIS_TAIL):
            yield f"    {line}"


def _describe_exit(exit: "ExitJson | None") -> str:
    """Return how a process ended; empty if it still runs."""
    if exit is None:
        return ""
    if exit["kind"] == "exited":
        return f"exit code {exit['code']}"
    if exit["kind"] == "signaled":
        return f"killed by {_signal_name(exit['signal'])}"
    if exit["kind"] == "not_started":
        return "never started"
    if exit["kind"] == "tampered":
        return "end tampered with"
    return "interrupted: the machine or the supervisor went down"


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"
