"""What became of a run, with all that differs from one performance to the next left out."""

import json
import re
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.pieces import Place
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git

_ID = re.compile(r"\b(run|task|attempt)_[0-9a-z]{26}\b")
_HOME = re.compile(r"/\S+/(?=worktrees/)")
_HASH = re.compile(r"\b[0-9a-f]{10,64}\b")
_TIMES = {"duration_s", "seconds"}
# How often a run is taken up is not part of what it does.
_COMINGS_AND_GOINGS = {
    "run.queued", "run.running", "run.pausing", "run.paused", "run.resumed",
}  # fmt: skip


def record(kapelle: Instance, place: Place, run_id: str) -> dict[str, Any]:
    """Everything that must be the same, however often the daemon died."""
    return {
        "run": _run(kapelle, place, run_id),
        "agents": _ledger(kapelle, place, run_id),
        "checks": len(_lines(place.ledger.with_name("ledger.checks"))),
        "worktrees": _worktrees(kapelle, place),
        "checkout": _checkout(place.repository),
    }


def _run(kapelle: Instance, place: Place, run_id: str) -> dict[str, Any]:
    run = kapelle.get(f"/runs/{run_id}")
    steps = kapelle.get(f"/runs/{run_id}/steps")
    inner = {
        step["position"]: _run(kapelle, place, step["subject"])
        for step in steps
        if step["kind"] == "run"
    }
    tasks = {
        step["position"]: _task(kapelle, place, step["subject"])
        for step in steps
        if step["kind"] == "task"
    }
    found = {
        "status": run["status"],
        "reason": run["reason"],
        "result": run["result"],
        "progress": run["progress"],
        "calls": run["spent"]["agent_calls"],
        "steps": sorted((step["position"], step["kind"], step["label"]) for step in steps),
        "open": [step["position"] for step in steps if step["ended_at"] is None],
        "tasks": tasks,
        "inner": inner,
        "branch": _branch(place.repository, run["workspace"]["branch"]),
        "told": _told(kapelle, run_id, run["status"]),
    }
    return {key: _plain(value, place) for key, value in found.items()}


def _task(kapelle: Instance, place: Place, task_id: str) -> dict[str, Any]:
    task = kapelle.task(task_id)
    return {
        "title": task["title"],
        "status": task["status"],
        "attempts": [(item["status"], item["mode"]) for item in task["attempts"]],
        "checks": [(check["name"], check["passed"]) for check in task["checks"]],
        # That of merged work goes by and by.
        "branch": None
        if task["merged_at"]
        else _branch(place.repository, task["workspace"]["branch"]),
        "merged": task["merged_at"] is not None,
    }


def _branch(repository: Path, name: str | None) -> Any:
    """The content and the history of a branch; one that held nothing is gone."""
    if name is None or not git(repository, "branch", "--list", name):
        return None
    log = git(repository, "log", "--first-parent", "--format=%s", f"main..{name}")
    # Files with conflict markers hold the names of branches, which are never the same.
    tree = git(repository, "rev-parse", name + "^{tree}") if "Take in" not in log else ""
    # The hash of a tree says all about the files, and must not be taken for a commit's.
    return {"tree": f"tree-{tree}", "log": log}


def _told(kapelle: Instance, run_id: str, status: str) -> dict[str, int]:
    """How often which event was told; the file must tell the same as the database."""
    _, body = kapelle.request("GET", f"/events?after=0&follow=false&run_id={run_id}")
    lines = [line[5:] for line in body.decode().splitlines() if line.startswith("data:")]
    told = [(event["seq"], event["kind"]) for event in map(json.loads, lines)]
    path = kapelle.home.runs / run_id / "events.jsonl"
    deadline = time.monotonic() + 10
    while (mirrored := _mirrored(path)) != told and time.monotonic() < deadline:
        time.sleep(0.05)
    assert mirrored == told, f"{path} does not tell what happened"
    assert len(dict(told)) == len(told)
    assert json.loads((path.parent / "status.json").read_bytes())["status"] == status
    return dict(Counter(kind for _, kind in told if kind not in _COMINGS_AND_GOINGS))


def _mirrored(path: Path) -> list[tuple[int, str]]:
    try:
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (FileNotFoundError, json.JSONDecodeError):
        return []
    return [(event["seq"], event["kind"]) for event in events]


def _ledger(kapelle: Instance, place: Place, run_id: str) -> dict[str, Any]:
    """Which agents were run; none may be there twice."""
    played = Counter(_lines(place.ledger))
    attempts = [
        attempt["id"]
        for task_id in _task_ids(kapelle, run_id)
        for attempt in kapelle.task(task_id)["attempts"]
    ]
    return {
        "played": len(played),
        "twice": [attempt for attempt, count in played.items() if count > 1],
        "unknown": sorted(set(played) - set(attempts)),
        "never": sorted(set(attempts) - set(played)),
    }


def _task_ids(kapelle: Instance, run_id: str) -> list[str]:
    found = []
    for step in kapelle.get(f"/runs/{run_id}/steps"):
        if step["kind"] == "task":
            found.append(step["subject"])
        elif step["kind"] == "run":
            found += _task_ids(kapelle, step["subject"])
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").split() if path.exists() else []


def _worktrees(kapelle: Instance, place: Place) -> dict[str, int]:
    assert len(git(place.repository, "worktree", "list").splitlines()) == 1
    objects = (place.repository / ".git/objects").resolve()
    owners = set()
    for borrowed in kapelle.home.worktrees.glob("[!.]*/.git/objects/info/alternates"):
        if Path(borrowed.read_text(encoding="utf-8").strip()).resolve() == objects:
            owners.add(borrowed.parents[3].name)
    prefix = "refs/kapelle/base/"
    anchors = git(place.repository, "for-each-ref", "--format=%(refname)", prefix).split()
    missing = owners - {ref.removeprefix(prefix) for ref in anchors}
    assert not missing, f"git may delete what these begin with: {missing}"
    return dict(Counter(name.split("_")[0] for name in owners))


def _checkout(repository: Path) -> dict[str, Any]:
    """What is the user's own."""
    return {
        "changed": git(repository, "status", "--porcelain"),
        "branch": git(repository, "branch", "--show-current"),
        "commits": git(repository, "log", "--format=%s", "main"),
    }


def _plain(value: Any, place: Place) -> Any:
    """Without ids, hashes of commits and durations."""
    if isinstance(value, dict):
        kept = {key: 0 if key in _TIMES else item for key, item in value.items()}
        return {str(_plain(key, place)): _plain(item, place) for key, item in kept.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, place) for item in value]
    if isinstance(value, str):
        text = _HOME.sub("…/", value.replace(str(place.repository.parent), "…"))
        text = _ID.sub(r"\1_…", text)
        return text if text.startswith("tree-") else _HASH.sub("…", text)
    return value


def differences(one: Any, other: Any, place: str = "") -> list[str]:
    """Where two records differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            line
            for key in {**one, **other}
            for line in differences(one.get(key), other.get(key), f"{place}/{key}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [line for n, pair in pairs for line in differences(*pair, f"{place}/{n}")]
    return [] if one == other else [f"{place}: {one!r} instead of {other!r}"]


def strangers(kapelle: Instance) -> list[str]:
    """Processes of an instance other than the daemon and its spawner, after a moment's grace."""
    assert kapelle.process is not None
    deadline = time.monotonic() + 10
    while True:
        children = psutil.Process(kapelle.process.pid).children(recursive=True)
        known = {kapelle.process.pid, *(child.pid for child in children)}
        left = [process for process in kapelle.processes() if process.pid not in known]
        if not left or time.monotonic() > deadline:
            return [str(process) for process in left]
        time.sleep(0.1)


def is_clean(repository: Path) -> bool:
    """Whether git itself finds nothing wrong."""
    checked = subprocess.run(
        ["git", "fsck", "--no-dangling"], cwd=repository, capture_output=True, check=False
    )
    return checked.returncode == 0
