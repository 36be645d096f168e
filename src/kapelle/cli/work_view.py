"""One task or one run for people: what was claimed and verified, where it stands, what it did and
used, and what to type next."""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kapelle.cli.events import MARKS, state_words, value_words, verdict_words
from kapelle.cli.follow import history
from kapelle.cli.format import (
    STATUS_STYLE,
    agent_words,
    between,
    clean,
    columns_of,
    command_lines,
    cost,
    dollars,
    elapsed_s,
    field,
    fields,
    fit,
    heading,
    last_lines,
    mark,
    one_line,
    paint,
    reason_lines,
    repository_path,
    short,
    short_title,
    shown,
    size,
    table,
    telling_lines,
    terminal_width,
    usage_line,
    usd_limit,
    waiting_words,
    workspace_fields,
)
from kapelle.cli.ids import is_run, path_of
from kapelle.cli.questions import asked_lines
from kapelle.client.http import DaemonConnection
from kapelle.domain.report import RunFields, TaskFields, next_commands
from kapelle.domain.text import format_count

StepFields = dict[str, Any]
ViewItem = dict[str, Any]

DIAGNOSIS_TAIL = 15
CHECK_TAIL = 20
RESULT_TAIL = 20
MOST = 12
_AT_REST = frozenset({"queued", "blocked", "waiting"})
_STYLES = {"pass": "green", "keep": "green", "fail": "red", "discard": "dim"}
_JSON_LINES = 15
_JSON_WIDTH = 300
_TEXT_LINES = 6
_INDENT = 4
# They take what room there is, and are cut at the terminal's edge.
_LAST = ("problem", "reason")
_ROLES = ("planner", "worker", "reviewer", "judge")


def describe(client: DaemonConnection, item: TaskFields | RunFields) -> Iterator[str]:
    """The human view, of a run with what only the daemon knows of its past and its tasks."""
    if not is_run(item["id"]):
        messages = client.get(path_of(item["id"], "messages"))
        yield from describe_task(item, messages)
        return
    steps = client.get(path_of(item["id"], "steps"))
    progress: list[ViewItem] = []
    if item["result"] is None and "iteration" in item["progress"]:
        events = history(client, item["id"])
        progress = [event["data"] for event in events if event["kind"] == "run.progress"]
    begun = [step["subject"] for step in steps if step["kind"] == "task" and not step["ended_at"]]
    tasks = {task_id: client.get(path_of(task_id)) for task_id in begun if task_id}
    titles = {}
    if any(step["kind"] == "run" for step in steps):
        query = {"parent_id": item["id"], "nested": True, "archived": True}
        titles = {run["id"]: run["title"] for run in client.pages("/runs", query)}
    yield from describe_run(item, steps, progress, tasks, titles)


_MESSAGE_STATES = {
    "waiting": "not read yet", "delivered": "read", "refused": "not read: the task has ended",
}  # fmt: skip


def _message_field(message: ViewItem) -> str:
    """What a person said, of what kind it was, and whether an agent has read it."""
    if message["attempt"]:
        about = f"attempt {message['attempt']}, "
    else:
        about = ""
    state = _MESSAGE_STATES[message["state"]]
    return field(message["kind"], f"{one_line(message['text'], 200)} ({about}{state})")


def describe_task(task: TaskFields, messages: Sequence[ViewItem] = ()) -> Iterator[str]:
    """The lines of the human view with what people said to it, ready for the terminal."""
    if task["status"] == "waiting":
        reason = waiting_words(task)
    else:
        reason = task["reason"]
    yield from heading(task, None if task.get("questions") else reason)
    yield from asked_lines(task)
    took = [elapsed_s(one["started_at"], one["ended_at"]) for one in task["attempts"]]
    if took:
        ran = f", ran {short(sum(took))}"
    else:
        ran = ""
    turns = task["max_turns"]
    budget = task["budget_usd"]
    seconds = task["timeout_s"]
    if budget:
        limits = [f"{usd_limit(budget)} in all"]
    else:
        limits = []
    limits += [f"{format_count(turns, 'turn')} an attempt"] if turns else []
    limits += [f"{short(seconds)} an attempt"] if seconds else []
    only = "it only reports: what it changed is thrown away"
    facts = {
        "agent": agent_words(task["agent"], task["model"], task["fallback_agents"]),
        "limits": ", ".join(limits),
        "mcp": one_line(", ".join(task["mcp"])),
        "tools": one_line(", ".join(task.get("tools") or ())),
        "workspace": only if task.get("read_only") else None,
        "time": f"created {between(task['created_at'], None)} ago{ran}",
        "priority": task["priority"],
        "repository": one_line(os.path.basename(repository_path(task)), 60),
        "labels": one_line(", ".join(filter(None, [task["project"], *task["tags"]]))),
        "after": " ".join(task["depends_on"]),
        "run": task.get("run_id"),
        "parent": task.get("parent_task_id"),
        "children": " ".join(task.get("children") or ()),
    }
    yield from fields(facts)
    yield from _claim_and_verdict(task)
    yield from _attempts(task)
    for message in messages:
        yield _message_field(message)
    yield from workspace_fields(task)
    if refused := task.get("merge_refused"):
        where = f"on what {refused['base']} would be, commit {refused['commit'][:12]}"
        text = f"refused: {one_line(refused['name'], 100)} fails {where}"
        yield field("merge", paint(text, "yellow"))
    if task["result"]:
        yield field("result", "")
        yield from (f"    {line}" for line in last_lines(task["result"], RESULT_TAIL))
    yield from command_lines(next_commands(task))


def _claim_and_verdict(task: TaskFields) -> Iterator[str]:
    attempts = task["attempts"]
    checks = task["checks"]
    if attempts:
        claimed = attempts[-1]["claimed"] or "none"
        whose = paint("(the agent's own report)", "dim")
        yield field("claimed", f"{claimed} {whose}")
    if checks:
        passed = sum(check["passed"] for check in checks)
        words = f"{passed} of {len(checks)} checks passed"
        if task.get("verified") is False:
            words = f"not verified: {words}{_doubt(task)}"
        yield field("verified", words)
    elif task["status"] == "completed":
        yield field("verified", "not verified: the task has no checks")
    for check in checks:
        if check.get("duration_s") is not None:
            took = f" ({check['duration_s']:.1f}s)"
        else:
            took = ""
        if check.get("commit"):
            on = f" on {check['commit'][:12]}"
        else:
            on = ""
        proved = ""
        if check.get("proved"):
            proved = ", proved"
            if check.get("proved_earlier"):
                proved += " earlier"
        where = _check_directory(task, check)
        yield f"    {mark(check['passed'])} {one_line(check['name'], 100)}{where}{took}{on}{proved}"
        if check.get("proof") and not check["proved"]:
            yield paint(f"        {one_line(check['proof'], 300)}", "yellow")
        if not check["passed"] and check["output"].strip():
            yield from (f"        {line}" for line in telling_lines(check["output"], CHECK_TAIL))


def _check_directory(task: TaskFields, check: TaskFields) -> str:
    """Return where a check ran, from the top of the workspace; empty for the top itself."""
    top = task["workspace"]["path"]
    made_in = check.get("directory")
    if not made_in or not check.get("command") or not made_in.startswith(f"{top}/"):
        return ""
    return f" in {one_line(made_in[len(top) + 1 :], 200)}"


def _doubt(task: TaskFields) -> str:
    """Return why checks that passed do not verify a task, in a few words."""
    doubted = any(
        one.get("passes_only_with") or one.get("changed_meanwhile") for one in task["checks"]
    )
    if doubted:
        return ", which does not verify it"
    return ", but none tests this change"


def _attempts(task: TaskFields) -> Iterator[str]:
    for attempt in task["attempts"]:
        yield field(f"attempt {attempt['number']}", headline(attempt))
        yield from (f"    {line}" for line in details(attempt, task["reason"]))
    used = [attempt["usage"] for attempt in task["attempts"] if attempt["usage"]]
    if len(used) > 1:
        known = [usage["cost_usd"] for usage in used if usage["cost_usd"] is not None]
        total = cost(sum(known) if known else None, len(used) - len(known))
        yield field("cost", f"{total} in all" if known else total)


def headline(attempt: TaskFields) -> str:
    """How an attempt went, in a few words."""
    # An attempt that ended with a question counts as failed, but nothing about it failed.
    # An older daemon that still runs does not know the field.
    asked = attempt["status"] == "failed" and attempt.get("question") is not None
    if asked:
        status = "asked"
    else:
        status = attempt["status"]
    facts = [
        paint(status, STATUS_STYLE.get("waiting" if asked else status)),
        "" if asked else ending(attempt["exit"]),
        between(attempt["started_at"], attempt["ended_at"]),
        size(attempt["output_bytes"]),
        "" if attempt["mode"] == "fresh" else "resumed",
    ]
    return ", ".join(filter(None, facts))


def details(attempt: TaskFields, known_reason: str | None) -> Iterator[str]:
    """The lines below it; a reason that was told already is left out."""
    if attempt["model_reason"]:
        reason = f" ({attempt['model_reason']})"
    else:
        reason = ""
    yield one_line(f"by {agent_words(attempt['agent'], attempt['model'])}{reason}")
    if attempt["reason"] and attempt["reason"] != known_reason:
        yield from reason_lines(attempt["reason"])
    if attempt["failure"]:
        if attempt["evidence"]:
            evidence = f": {one_line(attempt['evidence'], 300)}"
        else:
            evidence = ""
        yield f"{paint('failure', 'dim')} {attempt['failure']}{evidence}"
    for warning in attempt["warnings"]:
        yield paint(f"warning: {one_line(warning['text'], 300)}", "yellow")
    for told in attempt.get("memory") or ():
        yield f"{paint('memory', 'dim')} {one_line(told['title'], 100)} ({told['id']})"
    if attempt["usage"]:
        yield f"{paint('used', 'dim')} {usage_line(attempt['usage'])}"
    if attempt["diagnosis"]:
        yield paint("diagnosis of the attempt before:", "dim")
        yield from (f"    {line}" for line in last_lines(attempt["diagnosis"], DIAGNOSIS_TAIL))


def ending(exit: TaskFields | None) -> str:
    """How a process ended, in words."""
    if exit is None:
        return ""
    if exit["kind"] == "exited":
        return f"exit code {exit['code']}"
    if exit["kind"] == "signaled":
        try:
            return f"killed by {signal.Signals(exit['signal']).name}"
        except (ValueError, TypeError):
            return f"killed by signal {exit['signal']}"
    others = {"not_started": "never started", "tampered": "end tampered with"}
    return others.get(exit["kind"], "interrupted: the machine or the supervisor went down")


def describe_run(
    run: RunFields,
    steps: Sequence[StepFields],
    progress: Sequence[ViewItem] = (),
    open_tasks: Mapping[str, TaskFields] | None = None,
    titles: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """The lines of the human view.

    progress is what the run said of it, in order; open_tasks are those it waits for, by id; titles
    are those of the runs inside it, by id.
    """
    # The questions stand below, each with its token.
    yield from heading(run, None if run["questions"] else run["reason"])
    if run["started_at"]:
        taken = f", under way {short(run['spent']['seconds'])}"
    else:
        taken = ""
    facts = {
        "pattern": one_line(run["pattern"]),
        "agents": _agents(run["spec"]),
        "time": f"created {between(run['created_at'], None)} ago{taken}",
        "spent": _spent(run),
        "repository": one_line(os.path.basename(repository_path(run)), 60),
        "project": one_line(run["project"] or ""),
        **{name: run.get(f"{name}_id") for name in ("parent", "parent_task", "schedule")},
    }
    yield from fields(facts)
    if run["progress"] and not run["ended_at"]:
        most = run["spec"].get("max_iterations")
        yield field("progress", state_words(run["progress"], most))
        plan = run["progress"].get("plan")
        yield from _items("plan", plan, None) if _are_items(plan) else ()
    yield from asked_lines(run)
    yield from result_lines(run, progress)
    if tasks := list(task_lines(run, steps, open_tasks or {}, titles or {})):
        yield from (field("tasks", ""), *tasks)
    yield from workspace_fields(run)
    yield from command_lines(next_commands(run))


def _agents(spec: dict[str, Any]) -> str:
    keys = {"": ("agent", "model"), **{f"{role} ": (role, f"{role}_model") for role in _ROLES}}
    named = [
        role + agent_words(spec.get(agent), spec.get(model))
        for role, (agent, model) in keys.items()
        if spec.get(agent) or spec.get(model)
    ]
    fallback = spec.get("fallback_agents")
    return ", ".join(named) + one_line(f", then {', '.join(fallback)}" if fallback else "")


def _spent(run: RunFields) -> str:
    """What was used, against what may be."""
    spent = run["spent"]
    spec = run["spec"]
    calls = format_count(spent["agent_calls"], "agent call")
    if spec.get("max_agent_calls"):
        calls = f"{spent['agent_calls']:,} of {format_count(spec['max_agent_calls'], 'agent call')}"
    facts = [calls]
    budget = spec.get("budget_usd")
    cost = spent["cost_usd"]
    if cost is not None or budget:
        if cost is None:
            known = "cost unknown"
        else:
            known = dollars(cost)
        facts.append(f"{known} of {usd_limit(budget)}" if budget else known)
    if spec.get("max_seconds"):
        facts.append(f"{short(spent['seconds'])} of {short(spec['max_seconds'])}")
    return ", ".join(facts)


def result_lines(run: RunFields, progress: Sequence[ViewItem]) -> Iterator[str]:
    """What a pattern returned: tables of its lists of objects, or else the beginning of its JSON.

    Of a run without a result, what it said of its iterations is shown in the same way.
    """
    result = run["result"]
    if result is None:
        iterations = [facts for facts in progress if facts.get("verdict")]
        yield from _items("iterations", iterations, None) if iterations else ()
    elif isinstance(result, dict) and any(map(_are_items, result.values())):
        best = result.get("best")
        winner = result.get("winner")
        if isinstance(best, dict):
            chosen = best.get("number")
        else:
            chosen = winner
        for key, value in result.items():
            if _are_items(value):
                yield from _items(key, value, chosen)
            elif isinstance(value, list) and value and isinstance(value[0], str):
                yield paint(f"  {_words(key)}", "dim")
                yield from (f"    - {one_line(text, 200)}" for text in value)
    else:
        lines = clean(json.dumps(result, indent=2, ensure_ascii=False)).split("\n")
        yield paint("  result", "dim")
        yield from (f"    {fit(line, _JSON_WIDTH)}" for line in lines[:_JSON_LINES])
        if lines[_JSON_LINES:] or any(columns_of(line) > _JSON_WIDTH for line in lines):
            yield paint(shown(f"    … all of it: kapelle runs result {run['id']}"), "dim")


def _are_items(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _items(key: str, items: Sequence[ViewItem], chosen: Any) -> Iterator[str]:
    """A table of objects; what does not fit in a cell stands below its row."""
    names = list(dict.fromkeys(name for item in items for name in item))
    names = [name for name in names if _is_column(name, [item.get(name) for item in items])]
    names.sort(key=lambda name: (name not in {"number", "iteration"}, name in _LAST))
    if not set(names) - {"number", "name"} and not any(map(_below, items)):
        return  # the tasks below say it all
    rows = [[_cell(name, item, chosen) for name in names] for item in items]
    header = ["#" if name in {"number", "iteration"} else _words(name).upper() for name in names]
    # The table cuts its last column, which must not be one that always fits.
    end = [] if names[-1] in _LAST else [""]
    styles = [_style(item, chosen) for item in items]
    lines = table([*header, *end], [[*row, *end] for row in rows], styles, _INDENT)
    yield paint(f"  {_words(key)}", "dim")
    yield lines[0]
    for line, item in zip(lines[1:], items, strict=True):
        yield line
        yield from (f"      {text}" for text in _below(item))
    if chosen is not None and any(item.get("number") == chosen for item in items):
        yield paint("    * the best", "dim")


def _is_column(name: str, values: list[Any]) -> bool:
    """Whether there is something to see, and no value is a text of several lines."""
    texts = [value.strip() for value in values if isinstance(value, str)]
    if name not in _LAST and any("\n" in text for text in texts):
        return False
    return any(texts) or any(isinstance(value, int | float) for value in values)


def _cell(name: str, item: ViewItem, chosen: Any) -> str:
    value = item.get(name)
    if name in {"number", "iteration"}:
        if value == chosen:
            return f"{value}*"
        return str(value)
    if value is None or value == "":
        return "" if name in _LAST else "-"
    if name == "commit":
        return str(value)[:10]
    if name == "verdict":
        text = verdict_words(str(value))
    else:
        text = value_words(value)
    return one_line(text, None if name in _LAST else 60)


def _style(item: ViewItem, chosen: Any) -> str | None:
    if "verdict" in item:
        return _STYLES.get(item["verdict"])
    if item.get("problem"):
        return "red"
    if chosen is not None and item.get("number") == chosen:
        return "green"
    return None


def _below(item: ViewItem) -> list[str]:
    """What an object holds besides plain values: the fate of its parts, checks, judgements."""
    found: list[str] = []
    for key, value in item.items():
        if _are_items(value) and "passed" in value[0]:
            passed = sum(bool(part["passed"]) for part in value)
            found.append(f"{passed} of {len(value)} {_words(key)} passed")
        elif _are_items(value) and "status" in value[0]:
            found += map(_part, value)
        elif isinstance(value, dict) and "status" in value:
            continue  # a task or run, which has a line of its own below
        elif isinstance(value, dict) and any(isinstance(flag, bool) for flag in value.values()):
            against = [_words(name) for name, flag in value.items() if flag is False]
            if value.get("feedback"):
                why = f": {one_line(value['feedback'], 200)}"
            else:
                why = ""
            if against:
                verdict = f"no to {', '.join(against)}{why}"
            else:
                verdict = "approved"
            found.append(f"{_words(key)}: {verdict}")
        elif isinstance(value, str) and "\n" in value.strip() and key not in _LAST:
            found += [paint(f"{_words(key)}:", "dim"), *last_lines(value, _TEXT_LINES)]
    return found


def _part(part: ViewItem) -> str:
    good = part["status"] in {"merged", "completed", "passed"}
    if part.get("reason"):
        reason = f": {one_line(part['reason'], 200)}"
    else:
        reason = ""
    state = "" if good else f" ({part['status']})"
    title = one_line(str(part.get("title") or part.get("name") or ""), 100)
    return f"{mark(good)} {title}{state}{reason}"


def _words(key: str) -> str:
    return one_line(key.replace("_", " "), 40)


def task_lines(
    run: RunFields,
    steps: Sequence[StepFields],
    open_tasks: Mapping[str, TaskFields],
    titles: Mapping[str, str],
) -> Iterator[str]:
    """What was started, the last ones at most, and the steps of its spec that are to come."""
    started = [step for step in steps if step["kind"] in {"task", "run"} and step["subject"]]
    started.sort(key=lambda step: step["position"])
    if len(started) > MOST:
        hidden = len(started) - MOST
        earlier = f"    … {hidden} earlier ones: kapelle runs steps {run['id']}"
        yield paint(shown(earlier), "dim")
    for step in started[-MOST:]:
        label = titles.get(step["subject"], step["label"])
        yield from _lines(step, label, open_tasks.get(step["subject"]))
    if not run["ended_at"]:
        for step in (run["spec"].get("steps") or [])[len(started) :]:
            if isinstance(step, str):
                label = step
            else:
                label = step.get("name") or step.get("prompt") or ""
            yield paint(f"    · {one_line(label, 80)}", "dim")


def _lines(step: StepFields, label: str, task: TaskFields | None) -> Iterator[str]:
    result = step["result"] or task or {}
    status = result.get("status") or ("running" if step["ended_at"] is None else "failed")
    style = STATUS_STYLE.get(status)
    sign = paint(MARKS.get(status, "▸"), style)
    took = between(step["started_at"], step["ended_at"])
    took += f", {status}" if status in _AT_REST else ""
    took += ", not verified" if result.get("verified") is False else ""
    title = short_title(label, max((terminal_width() or 120) - 15, 30))
    yield f"    {sign} {title} {paint(took, 'dim')}".rstrip()
    yield paint(shown(f"      {step['subject']}"), "dim")
    reason = step["error"] or (None if status == "completed" else result.get("reason"))
    if reason:
        yield f"      {shown(one_line(reason, 200))}"
    if task and task["status"] == "waiting":
        yield f"      {shown(next_commands(task)[0][0])}"
