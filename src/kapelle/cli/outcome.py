"""What the state of a task or a run means: the exit code, what it waits for, what to type next."""

from typing import Any

from kapelle.cli.format import moment, now, short

DONE, WORK_FAILED, ERROR, INPUT_NEEDED = 0, 1, 2, 3
FINAL = frozenset({"completed", "failed", "cancelled"})
_WAITS = {"input": "waiting for your answer", "rate_limit": "waiting for a rate limit to pass"}

Task = dict[str, Any]
Run = dict[str, Any]


def settled(task: Task) -> bool:
    """Whether nothing more will happen by itself; a rate limit passes, a question does not.

    It may be a run as well, which can also be paused.
    """
    if task["status"] == "waiting":
        return bool(task["waiting_for"] != "rate_limit")
    return task["status"] in FINAL | {"paused"} or task["waiting_for"] == "input"


def exit_code(task: Task) -> int:
    """0 done, 1 the work failed, 3 a person is needed: for an answer, or to let it go on."""
    if task["status"] == "completed":
        return DONE
    needed = task["status"] in {"waiting", "paused"} or task["waiting_for"] == "input"
    return INPUT_NEEDED if needed else WORK_FAILED


def exit_code_of_all(tasks: list[Task]) -> int:
    """The worst news first: work that failed, then input that is needed."""
    codes = {exit_code(task) for task in tasks}
    return next((code for code in (WORK_FAILED, INPUT_NEEDED) if code in codes), DONE)


def next_commands(task: Task) -> list[tuple[str, str]]:
    """What one may type now for a task or a run, and what it does."""
    if "spent" in task:
        return _run_commands(task)
    task_id, status = task["id"], task["status"]
    if task.get("archived_at"):
        return _when_archived(task)
    if status in {"queued", "blocked"}:
        return [
            (f"kapelle wait {task_id}", "wait until it has ended"),
            (f"kapelle cancel {task_id}", "call it off"),
        ]
    if status == "running":
        return [
            (f"kapelle logs -f {task_id}", "watch it"),
            (f"kapelle cancel {task_id}", "stop it"),
        ]
    if status == "waiting":
        return _while_waiting(task)
    if status == "completed":
        return _when_completed(task)
    return [
        (f"kapelle logs {task_id}", "see what happened"),
        (f'kapelle resume {task_id} "…"', "go on from there, with advice"),
        (f"kapelle retry {task_id}", "start again"),
    ]


def _while_waiting(task: Task) -> list[tuple[str, str]]:
    if task["waiting_for"] == "rate_limit":
        return [(f"kapelle requeue {task['id']}", "try now instead of waiting")]
    return [
        (f'kapelle resume {task["id"]} "your answer"', "answer and go on"),
        (f"kapelle cancel {task['id']}", "call it off"),
    ]


def _when_archived(task: Task) -> list[tuple[str, str]]:
    logs = (f"kapelle logs {task['id']}", "read what was done")
    if not task["workspace"]["branch"] or not task["workspace"].get("commit"):
        return [logs]
    return [logs, (f"kapelle diff {task['id']}", "see the changes")]


def _when_completed(task: Task) -> list[tuple[str, str]]:
    logs = (f"kapelle logs {task['id']}", "read what was done")
    workspace = task["workspace"]
    if not workspace["branch"] or not workspace.get("commit"):
        return [logs]
    diff = (f"kapelle diff {task['id']}", "see the changes")
    if task["merged_at"]:
        return [diff, (f"kapelle archive {task['id']}", "put it away")]
    if workspace.get("owner"):
        return [logs, diff]
    into = workspace["base"] or "its base"
    return [diff, (f"kapelle merge {task['id']}", f"merge it into {into}")]


def waiting_words(task: Task) -> str:
    """The reason of a waiting task, with the time at which it goes on by itself."""
    reason = task["reason"] or _WAITS.get(task["waiting_for"] or "", "waiting")
    until = moment(task.get("not_before"))
    if until is None:
        return str(reason)
    left = (until - now()).total_seconds()
    soon = f"in {short(left)}" if left > 0 else "now"
    return f"{reason}; goes on {soon}, at {until.astimezone():%Y-%m-%d %H:%M:%S}"


def _run_commands(run: Run) -> list[tuple[str, str]]:
    run_id, status = run["id"], run["status"]
    if status in FINAL:
        return _when_run_ended(run)
    stop = (f"kapelle runs cancel {run_id}", "call it off")
    if status == "waiting":
        answer = (f'kapelle runs answer {run_id} "…"', "answer, and it goes on")
        # Where there are several, each stands beside its question.
        return [answer, stop] if len(run["questions"]) == 1 else [stop]
    if status == "paused":
        return [(f"kapelle runs resume {run_id}", "let it go on"), stop]
    return [
        (f"kapelle runs tail {run_id}", "watch it"),
        (f"kapelle runs pause {run_id}", "pause it"),
        stop,
    ]


def _when_run_ended(run: Run) -> list[tuple[str, str]]:
    run_id, workspace = run["id"], run["workspace"]
    history = (f"kapelle runs steps {run_id}", "see what it did")
    if workspace.get("owner"):
        return [history]
    if not workspace["branch"] or workspace.get("commit") in (None, workspace["base_commit"]):
        return [history, (f"kapelle runs result {run_id}", "its result as JSON")]
    diff = (f"kapelle diff {run_id}", "see the changes")
    if run.get("archived_at"):
        return [history, diff]
    if run["merged_at"]:
        return [diff, (f"kapelle archive {run_id}", "put it away")]
    into = workspace["base"] or "its base"
    if run["status"] == "completed":
        return [diff, (f"kapelle merge {run_id}", f"merge it into {into}")]
    return [history, diff, (f"kapelle merge {run_id} --force", "merge it all the same")]
