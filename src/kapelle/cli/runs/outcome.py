"""What a run's state means for the next thing to type."""

from typing import Any

from kapelle.cli.outcome import FINAL

Run = dict[str, Any]


def next_commands(run: Run) -> list[tuple[str, str]]:
    """What one may type now, and what it does."""
    run_id, status = run["id"], run["status"]
    if status in FINAL:
        return _when_ended(run)
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


def _when_ended(run: Run) -> list[tuple[str, str]]:
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
