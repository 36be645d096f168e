"""The story itself, from failing tests to a merged result."""

import json
import shutil
import time
from importlib.resources import files
from pathlib import Path

from kapelle.cli.ids import task_path
from kapelle.cli.text import one_line
from kapelle.client.http import Connection as Client
from kapelle.demo import runs, sample
from kapelle.demo.doors import typed
from kapelle.demo.ensemble import ENSEMBLE
from kapelle.demo.place import Place
from kapelle.demo.report import Report
from kapelle.demo.views import Tasks, View
from kapelle.demo.watching import watch
from kapelle.domain.errors import KapelleError, Unavailable

# The agents of the demo cost next to nothing, so a small or busy machine is no reason to wait.
_SETTINGS = """\
[agents.rehearsal]
playbook = "{playbook}"

[limits]
max_attempts = 4
max_load_per_core = 0
min_free_memory_mb = 32
min_free_disk_mb = 50

[tasks]
grace_s = 2
"""


def perform(place: Place, view: View, playbook: Path | None) -> Report:
    """Play the whole demo; what went wrong in it stands in the report."""
    began_at = time.monotonic()
    _require_git()
    report = Report(_make_repository(place, view))
    client = _raise_daemon(place, view, playbook)
    report.tasks = _submit(place, client, view)
    report.kill = watch(client, report.tasks, view)
    _merge(report, view)
    _refuse(report, view)
    report.team = runs.team(client, str(place.repository), view)
    report.loop = runs.loop(client, str(place.repository), view)
    _test(place, report, view)
    report.tasks = {key: client.get(task_path(task["id"])) for key, task in report.tasks.items()}
    report.seconds = time.monotonic() - began_at
    return report


def _require_git() -> None:
    if shutil.which("git") is None:
        raise Unavailable("git is not installed.", hint="Install it, then try again.")


def _make_repository(place: Place, view: View) -> sample.Tally:
    sample.make(place.repository)
    tally = sample.test(place.repository)
    view.say("1  A sample repository, a very small music library", "bold")
    view.say(f"   {place.repository}")
    view.say(f"   {tally}.", None if tally.passes else "red")
    view.say()
    return tally


def _raise_daemon(place: Place, view: View, playbook: Path | None) -> Client:
    home = place.home
    home.root.mkdir(mode=0o700)
    parts = home.root / "playbook.toml"
    own = files("kapelle.demo").joinpath("playbook.toml")
    parts.write_bytes(playbook.read_bytes() if playbook else own.read_bytes())
    home.config.write_text(_SETTINGS.format(playbook=parts), encoding="utf-8")
    client = Client()
    daemon = client.get("/daemon")
    view.say("2  A daemon in a home of its own, apart from yours", "bold")
    view.say(f"   KAPELLE_HOME={home.root}, process {daemon['pid']}")
    view.say()
    return client


def _submit(place: Place, client: Client, view: View) -> Tasks:
    view.say(f"3  {len(ENSEMBLE)} tasks, each in a git worktree, each with checks", "bold")
    for part in ENSEMBLE:
        view.say(f'   kapelle run "{part.prompt}" …', "dim")
    tasks: Tasks = {}
    for part in ENSEMBLE:
        ids = {key: task["id"] for key, task in tasks.items()}
        tasks[part.key] = client.create("/tasks", part.spec(str(place.repository), ids))
    return tasks


def _merge(report: Report, view: View) -> None:
    view.say()
    view.say("4  What is verified is merged into main, and nothing else", "bold")
    for part in ENSEMBLE:
        task = report.tasks[part.key]
        if task["status"] != "completed":
            continue
        done = typed(["merge", task["id"]])
        if done.returncode == 0:
            report.merged[part.key] = done.stdout.strip()
            view.say(f"   ✓ {part.key:10} {done.stdout.strip()[:10]}", "green")
        else:
            view.say(f"   ✗ {part.key:10} {one_line(done.stderr)}", "red")


def _refuse(report: Report, view: View) -> None:
    """Try to merge what is not verified, to show that Kapelle does not."""
    for part in ENSEMBLE:
        task = report.tasks[part.key]
        if task["status"] == "failed" and task["workspace"]["branch"]:
            done = typed(["merge", task["id"], "--json"])
            if done.returncode == 0:
                report.merged[part.key] = "in spite of its check"
                continue
            report.refused[part.key] = _message(done.stderr)
            view.say(f"   ✗ {part.key:10} {report.refused[part.key]}", "red")
    view.say()


def _message(stderr: str) -> str:
    """The sentence in an error that was told as JSON."""
    try:
        return one_line(json.loads(stderr)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return one_line(stderr)


def _test(place: Place, report: Report, view: View) -> None:
    view.say("7  The sample's own tests, on the merged main", "bold")
    dirty = sample.git(place.repository, "status", "--porcelain")
    if dirty:
        raise KapelleError(f"The checkout of main is not what was merged: {dirty}")
    report.after = sample.test(place.repository)
    view.say(f"   {report.after}.", "green" if report.after.passes else "red")
    if report.after.passes:
        report.tune = sample.tune(place.repository)
        view.say()
        for line in report.tune.splitlines():
            view.say(f"   {line}", "cyan")
    view.say()
