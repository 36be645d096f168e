"""Commands to type next for a task or run, and the group of the work in a report."""

from collections.abc import Mapping
from typing import Any

FINAL = frozenset({"completed", "failed", "cancelled"})

# The commands for a task or run, each with its effect.
_COMMANDS = {
    "wait": ("kapelle wait {id}", "wait until it has ended"),
    "call off": ("kapelle cancel {id}", "cancel it"),
    "attach": ("kapelle attach {id}", "attach to its terminal"),
    "watch": ("kapelle logs -f {id}", "follow its output"),
    "stop": ("kapelle cancel {id}", "stop it"),
    "requeue": ("kapelle requeue {id}", "try now instead of waiting"),
    "answer": ('kapelle answer {id} "…"', "answer it to continue"),
    "look": ("kapelle logs {id}", "read what happened"),
    "resume": ('kapelle resume {id} "…"', "continue with further instructions"),
    "retry": ("kapelle retry {id}", "start again"),
    "more cycles": ("kapelle resume {id} --cycles {more}", "continue with more cycles"),
    "logs": ("kapelle logs {id}", "read its output"),
    "diff": ("kapelle diff {id}", "show the changes"),
    "deliver": ("kapelle pr {id}", "retry the pull request"),
    "merge": ("kapelle merge {id}", "merge it into {base}"),
    "mend": ("kapelle resume {id} --merge", "merge {base} into it and let its agent fix that"),
    "merge anyway": ("kapelle merge {id} --force", "merge it anyway"),
    "archive": ("kapelle archive {id}", "archive it"),
    "run cancel": ("kapelle runs cancel {id}", "cancel it"),
    "run pause": ("kapelle runs pause {id}", "pause it"),
    "run result": ("kapelle runs result {id}", "its result as JSON"),
    "run resume": ("kapelle runs resume {id}", "resume it"),
    "run steps": ("kapelle runs steps {id}", "show its steps"),
    "run tail": ("kapelle runs tail {id}", "follow it"),
}


def next_commands(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the commands to type now for a task or run, each with its effect."""
    if "spent" in item:
        names = _for_run(item)
    else:
        names = _for_task(item)
    if item.get("limit_reached") == "cycles" and not item.get("archived_at"):
        names = ["more cycles", *names]
    if is_undelivered(item) and item["delivery"]["mode"] == "pr":
        names = ["deliver", *(name for name in names if name != "merge")]
    progress = item.get("progress") or {}
    values = {
        "id": item["id"],
        "more": min(2 * int(progress.get("cycles") or 1), 50),
        "base": item.get("workspace", {}).get("base") or "its base",
    }
    commands = []
    for name in names:
        command, effect = _COMMANDS[name]
        commands.append((command.format_map(values), effect.format_map(values)))
    return commands


def _for_task(task: Mapping[str, Any]) -> list[str]:
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
        if task["waiting_for"] == "input":
            return ["answer", "call off"]
        return ["requeue"]
    if status == "running":
        return ["attach" if task.get("interactive") else "watch", "stop"]
    if status in {"queued", "blocked"}:
        return ["wait", "call off"]
    return ["look", "resume", "retry"]


def _for_run(run: Mapping[str, Any]) -> list[str]:
    status = run["status"]
    workspace = run["workspace"]
    if status == "waiting":
        # A front end shows several questions each with its own command.
        if len(run["questions"]) == 1:
            return ["answer", "run cancel"]
        return ["run cancel"]
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
    if status == "completed":
        return ["diff", "merge"]
    return ["run steps", "diff", "merge anyway"]


def has_no_changes(item: Mapping[str, Any]) -> bool:
    """Return whether completed work left its branch unchanged although it was not read-only."""
    workspace = item.get("workspace") or {}
    if item["status"] != "completed" or item.get("read_only") or not workspace.get("base_commit"):
        return False
    return workspace["commit"] in {None, workspace["base_commit"]}


def find_group(item: Mapping[str, Any]) -> str:
    """Return the group of work in a report: needs, failed, done or open."""
    if item["need"]:
        return "needs"
    status = item["status"]
    if is_undelivered(item) and item["delivery"]["status"] == "pending":
        return "open"
    return {"completed": "done", "failed": "failed", "cancelled": "failed"}.get(status, "open")


def is_undelivered(item: Mapping[str, Any]) -> bool:
    """Return whether completed work has a delivery that failed or is still pending."""
    is_open = (item.get("delivery") or {}).get("status") in {"pending", "failed"}
    return item["status"] == "completed" and is_open
