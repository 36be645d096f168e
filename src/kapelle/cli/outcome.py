"""What the state of a task or a run means: the exit code, what it waits for, what to type next."""

from typing import Any

from kapelle.cli.format import between, local, until
from kapelle.domain.states import is_delivering, is_resting

DONE, WORK_FAILED, ERROR, INPUT_NEEDED = 0, 1, 2, 3
_WAITS = {
    "input": "waiting for your answer",
    "rate_limit": "waiting for a rate limit to pass",
    "trust": "waiting until its repository is trusted",
}

Task = dict[str, Any]
Run = dict[str, Any]


def settled(task: Task) -> bool:
    """Whether nothing more will happen by itself to a task or a run."""
    return is_resting(task["status"], task["waiting_for"])


def finished(task: Task) -> bool:
    """Whether it has settled, and its work is where it was to be delivered to."""
    commit = (task.get("workspace") or {}).get("commit")
    return settled(task) and not is_delivering(task["status"], commit, task.get("delivery"))


def exit_code(task: Task) -> int:
    """0 done, 1 the work failed or could not be delivered, 3 a person is needed: for an answer, or
    to let it go on."""
    if task["status"] == "completed":
        return WORK_FAILED if (task.get("delivery") or {}).get("status") == "failed" else DONE
    needed = task["status"] in {"waiting", "paused"} or task["waiting_for"] == "input"
    return INPUT_NEEDED if needed else WORK_FAILED


def exit_code_of_all(tasks: list[Task]) -> int:
    """The worst news first: work that failed, then input that is needed."""
    codes = {exit_code(task) for task in tasks}
    return next((code for code in (WORK_FAILED, INPUT_NEEDED) if code in codes), DONE)


def doing_words(item: Task | Run) -> str:
    """What a task or a run is at beyond its status, and what it waits for."""
    if item["status"] == "waiting" or item.get("waiting_for") == "input":
        return waiting_words(item)
    said, far = item["reason"], ""
    if check := item.get("checking"):
        said = f"checking: {check['name']}, {between(check['started_at'], None)}"
    if item["status"] == "running" and item.get("progress"):
        from kapelle.cli.events import state_words

        far = state_words(item["progress"], item["spec"].get("max_iterations"))
    return ", ".join(filter(None, [far, said]))


def waiting_words(task: Task) -> str:
    """The reason of a waiting task, with the time at which it goes on by itself."""
    reason = task["reason"] or _WAITS.get(task["waiting_for"] or "", "waiting")
    soon = until(task.get("not_before"))
    return f"{reason}; goes on {soon}, at {local(task['not_before'])}" if soon else str(reason)
