"""What a task's state means for the exit code and for the next thing to type."""

from typing import Any

DONE, WORK_FAILED, ERROR, INPUT_NEEDED = 0, 1, 2, 3
FINAL = frozenset({"completed", "failed", "cancelled"})

Task = dict[str, Any]


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
    """What one may type now, and what it does."""
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
