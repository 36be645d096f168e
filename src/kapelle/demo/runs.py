"""The runs of the demo: a team that reaches a goal, and a loop that makes a number smaller."""

import os
import signal
from dataclasses import dataclass, field
from typing import Any

from kapelle.cli.ids import path_of
from kapelle.cli.text import one_line
from kapelle.client.http import Connection as Client
from kapelle.demo.doors import typed
from kapelle.demo.views import View

TEAM = {
    "goal": "Give the tune an accompaniment: chords, a bass and an arpeggio, with tests.",
    "success_criteria": ["python3 -m music.band plays the tune with its accompaniment"],
    "verify": ["python3 -m unittest"],
    "max_iterations": 2,
}
LOOP = {
    "prompt": "Make music/score.py shorter. What draw() draws must stay the same.",
    "eval": "python3 -m unittest -q tests.test_score && wc -c < music/score.py",
    "direction": "minimize",
    "title": "Shorten score.py",
    "max_iterations": 4,
}
_ENDINGS = frozenset({"run.completed", "run.failed", "run.cancelled"})


@dataclass
class Played:
    """A run of the demo, and the commit with which it was merged."""

    run: dict[str, Any] = field(default_factory=dict)
    merged: str | None = None
    killed: int | None = None


def team(client: Client, repository: str, view: View) -> Played:
    view.say("5  A goal for a team: planned, worked on at once, verified and reviewed", "bold")
    view.say(f'   kapelle team "{TEAM["goal"]}"', "dim")
    view.say('     --verify "python3 -m unittest"', "dim")
    return _play(client, view, "team", {**TEAM, "directory": repository}, kill_at="work")


def loop(client: Client, repository: str, view: View) -> Played:
    view.say("6  A number to make smaller: every try is a commit, the best is kept", "bold")
    view.say(f'   kapelle loop "{LOOP["prompt"]}"', "dim")
    view.say('     --eval "… && wc -c < music/score.py" --minimize --max-iterations 4', "dim")
    return _play(client, view, "loop", {**LOOP, "directory": repository})


def _play(
    client: Client, view: View, pattern: str, spec: dict[str, Any], kill_at: str | None = None
) -> Played:
    body = {"pattern": pattern, "spec": {**spec, "agent": "rehearsal", "max_seconds": 120}}
    run = client.create("/runs", body)
    played = Played(run)
    for event in client.stream("/events", {"after": 0, "run_id": run["id"]}, endless=True):
        data = event.data["data"]
        _tell(view, event.kind, data)
        if kill_at and event.kind == "run.progress" and data.get("phase") == kill_at:
            played.killed, kill_at = _strike(client, view), None
        if event.kind in _ENDINGS:
            break
    played.run = client.get(path_of(run["id"]))
    _merge(played, view)
    view.say()
    return played


def _tell(view: View, kind: str, data: dict[str, Any]) -> None:
    match kind:
        case "attempt.started":
            return
        case "task.completed":
            view.say(f"   ✓ {one_line(str(data['title']), 60)}")
        case "task.failed":
            view.say(f"   ✗ {one_line(str(data['title']), 40)}: {one_line(str(data['reason']))}")
        case "run.progress" if data.get("phase") == "not done":
            view.say(f"     iteration {data['iteration']}: {one_line(str(data['lack']))}", "yellow")
        case "run.progress" if "verdict" in data:
            _tell_score(view, data)
        case "run.completed" | "run.failed":
            style = "green" if kind == "run.completed" else "red"
            view.say(f"   {kind.removeprefix('run.')}: {one_line(str(data['reason']))}", style)


def _tell_score(view: View, data: dict[str, Any]) -> None:
    score = "no score" if data["score"] is None else f"{data['score']:g}"
    kept = data["verdict"] == "keep"
    why = f": {one_line(str(data['problem']), 60)}" if data["problem"] else ""
    text = f"     iteration {data['iteration']}: {score}, {'kept' if kept else 'put back'}{why}"
    view.say(text, "green" if kept else "yellow")


def _strike(client: Client, view: View) -> int:
    pid = int(client.get("/daemon")["pid"])
    os.kill(pid, signal.SIGKILL)
    successor = client.get("/daemon")["pid"]
    view.say(f"   kill -9 {pid}: the next daemon ({successor}) goes on with the run.", "yellow")
    return pid


def _merge(played: Played, view: View) -> None:
    done = typed(["merge", played.run["id"]])
    if done.returncode == 0:
        played.merged = done.stdout.strip()
        view.say(f"   ✓ merged into main as {played.merged[:10]}", "green")
    else:
        view.say(f"   ✗ {one_line(done.stderr)}", "red")
