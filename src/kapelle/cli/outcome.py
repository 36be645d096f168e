"""What the state of a task or a run means: the exit code, what it waits for, what to type next."""

from typing import Any

from kapelle.cli.format import between, local, until
from kapelle.domain.states import is_resting

DONE, WORK_FAILED, ERROR, INPUT_NEEDED = 0, 1, 2, 3
FINAL = frozenset({"completed", "failed", "cancelled"})
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


# What may be typed for a task or a run, and what it does.
_COMMANDS = {
    "wait": ("kapelle wait {id}", "wait until it has ended"),
    "call off": ("kapelle cancel {id}", "call it off"),
    "watch": ("kapelle logs -f {id}", "watch it"),
    "stop": ("kapelle cancel {id}", "stop it"),
    "requeue": ("kapelle requeue {id}", "try now instead of waiting"),
    "answer": ('kapelle answer {id} "…"', "answer, and it goes on"),
    "look": ("kapelle logs {id}", "see what happened"),
    "resume": ('kapelle resume {id} "…"', "go on from there, with advice"),
    "retry": ("kapelle retry {id}", "start again"),
    "logs": ("kapelle logs {id}", "read what was done"),
    "diff": ("kapelle diff {id}", "see the changes"),
    "merge": ("kapelle merge {id}", "merge it into {base}"),
    "mend": ("kapelle resume {id} --merge", "take {base} in and have its agent mend that"),
    "merge anyway": ("kapelle merge {id} --force", "merge it all the same"),
    "archive": ("kapelle archive {id}", "put it away"),
    "run cancel": ("kapelle runs cancel {id}", "call it off"),
    "run pause": ("kapelle runs pause {id}", "pause it"),
    "run result": ("kapelle runs result {id}", "its result as JSON"),
    "run resume": ("kapelle runs resume {id}", "let it go on"),
    "run steps": ("kapelle runs steps {id}", "see what it did"),
    "run tail": ("kapelle runs tail {id}", "watch it"),
}


def next_commands(item: Task | Run) -> list[tuple[str, str]]:
    """What one may type now for a task or a run, and what it does."""
    names = _for_run(item) if "spent" in item else _for_task(item)
    known = {"id": item["id"], "base": item.get("workspace", {}).get("base") or "its base"}
    chosen = [_COMMANDS[name] for name in names]
    return [(command.format_map(known), does.format_map(known)) for command, does in chosen]


def _for_task(task: Task) -> list[str]:
    status = task["status"]
    if task.get("archived_at") or status == "completed":
        workspace = task["workspace"]
        if not workspace["branch"] or not workspace.get("commit"):
            return ["logs"]
        if task.get("archived_at") or (workspace.get("owner") and not task["merged_at"]):
            return ["logs", "diff"]
        if task.get("merge_refused"):
            return ["diff", "mend"]
        return ["diff", "archive" if task["merged_at"] else "merge"]
    if status == "waiting":
        return ["answer", "call off"] if task["waiting_for"] == "input" else ["requeue"]
    if status == "running":
        return ["watch", "stop"]
    return ["wait", "call off"] if status in {"queued", "blocked"} else ["look", "resume", "retry"]


def _for_run(run: Run) -> list[str]:
    status, workspace = run["status"], run["workspace"]
    if status == "waiting":
        # Where there are several questions, each stands beside its command.
        return ["answer", "run cancel"] if len(run["questions"]) == 1 else ["run cancel"]
    if status == "paused":
        return ["run resume", "run cancel"]
    if status not in FINAL:
        return ["run tail", "run pause", "run cancel"]
    if workspace.get("owner"):
        return ["run steps"]
    if not workspace["branch"] or workspace.get("commit") in (None, workspace["base_commit"]):
        return ["run steps", "run result"]
    if run.get("archived_at"):
        return ["run steps", "diff"]
    if run["merged_at"]:
        return ["diff", "archive"]
    return ["diff", "merge"] if status == "completed" else ["run steps", "diff", "merge anyway"]


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
