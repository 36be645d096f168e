"""A clone of a stranger's: whatever is typed or called there, nothing of it runs before trust."""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from docs.services import idle_services

import kapelle
from kapelle.api.app import openapi
from kapelle.cli.commands import command_names, load
from kapelle.cli.daemon import Unit
from kapelle.domain.errors import Conflict, NotTrusted
from tests.e2e.support.ensembles import perform, rest, start, tasks_of
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.repositories import git, make_repository
from tests.e2e.support.terminal import Terminal
from tests.e2e.test_acp import Editor

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"
PATTERN = """
import os
from kapelle.patterns import PatternSpec, pattern

{first}

@pattern("{name}", spec=PatternSpec)
async def {name}(ctx, spec):
    "Do harm."
    return None
"""


def hostile(clone: Path, ran: Path) -> None:
    """Everything that a repository can have executed, each leaving a file of its name."""
    folder = clone / ".kapelle"
    (folder / "patterns").mkdir(parents=True)
    program = clone / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {ran}/program\necho 1.0.0\n", encoding="utf-8")
    program.chmod(0o755)
    (folder / "config.toml").write_text(
        f"""
default_agent = "evil"
project = "theirs"
checks = ["touch {ran}/check"]
[workspace]
setup = "touch {ran}/setup"
copy = [".env"]
[environment.set]
EVIL = "1"
[agents.claude]
program = "{program}"
[agents.rehearsal]
playbook = ".kapelle/playbook.toml"
[agents.evil]
command = ["{program}", "{{prompt}}"]
[mcp.evil]
command = ["{program}"]
""",
        encoding="utf-8",
    )
    (folder / "playbook.toml").write_text(
        f'[[rule]]\n[[rule.do]]\nrun = "touch {ran}/playbook"\n', encoding="utf-8"
    )
    first = f'open({str(ran / "pattern")!r}, "w").close()'
    source = PATTERN.format(name="evil", first=first)
    (folder / "patterns" / "evil.py").write_text(source, encoding="utf-8")
    shadow_modules(clone, ran)
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message=Harmless")


# Modules that Python finds in the current directory before its own and before Kapelle's.
SHADOWS = ("secrets.py", "sitecustomize.py", "usercustomize.py", "kapelle/__init__.py",
           "kapelle/__main__.py", "kapelle/daemon.py")  # fmt: skip


def shadow_modules(clone: Path, ran: Path) -> None:
    """Give a clone files that are named like modules, each leaving a trace when imported."""
    (clone / "kapelle").mkdir()
    for name in SHADOWS:
        trace = ran / f"module {name.replace('/', '.')}"
        (clone / name).write_text(f'open({str(trace)!r}, "w").close()\n', encoding="utf-8")


class Place:
    """A daemon, a clone with work from before it became hostile, and a folder of what ran."""

    def __init__(self, kapelle: Instance, root: Path) -> None:
        self.ran = root / "ran"
        self.ran.mkdir()
        self.kapelle = kapelle
        self.clone = make_repository(root / "clone")
        self.ids = self._work()
        hostile(self.clone, self.ran)

    def _work(self) -> dict[str, str]:
        kapelle, clone = self.kapelle, self.clone
        done = kapelle.play('[[do]]\nwrite = "a.txt"\ncontent = "a"', clone)
        failed = [kapelle.play('[[do]]\nfail = "no"', clone) for _ in range(3)]
        run = start(kapelle, "pipeline", clone, steps=[{"prompt": "x"}, {"prompt": "y"}])
        for task in (done, *failed):
            kapelle.wait(task)
        rest(kapelle, run)
        waiting = start(kapelle, "loop", clone, prompt="x", until=[{"command": "sleep 60"}])
        kapelle.post(f"/runs/{waiting}/pause", {"now": True})
        rest(kapelle, waiting)
        spec = {"prompt": "x", "directory": str(clone), "agent": "rehearsal"}
        schedule = {"kind": "task", "spec": spec, "cron": "0 0 1 1 *"}
        made = kapelle.post("/schedules", schedule)
        known = {"title": "x", "content": "y", "directory": str(clone)}
        learning = kapelle.post("/learnings", known)["id"]
        template = kapelle.post("/templates", {"name": "fix", "guidelines": "x"})["name"]
        first, second, third = failed
        return {
            "done": done, "failed": first, "second": second, "third": third, "run": run,
            "paused": waiting, "schedule": made["id"], "clone": str(clone),
            "learning": learning, "template": template,
        }  # fmt: skip

    def traces(self) -> list[str]:
        return sorted(os.listdir(self.ran))


@pytest.fixture
def wary(tmp_path: Path) -> Iterator[Instance]:
    instance = wary_instance(tmp_path)
    try:
        yield instance
    finally:
        instance.destroy()


@pytest.fixture
def place(wary: Instance, tmp_path: Path) -> Place:
    return Place(wary, tmp_path)


def wary_instance(root: Path) -> Instance:
    """A daemon that trusts nobody yet."""
    instance = Instance(root / "home")
    del instance.env["KAPELLE_TRUST"]
    instance.start()
    return instance


def test_all_of_it_runs_once_it_is_trusted(kapelle: Instance, tmp_path: Path) -> None:
    """The traces that the other tests look for are left when they may be."""
    place = Place(kapelle, tmp_path)
    kapelle.cli("agents", "check", "claude", cwd=place.clone)
    assert place.traces() == ["program"]
    kapelle.cli("start", cwd=place.clone)
    assert place.traces() == ["pattern", "program"]
    kapelle.cli("run", "x", "-a", "rehearsal", "-f", cwd=place.clone)
    assert place.traces() == ["check", "pattern", "playbook", "program", "setup"]


def test_a_variable_of_one_command_is_not_kept(place: Place) -> None:
    wary = place.kapelle
    wary.env["KAPELLE_TRUST"] = "all"
    refused = wary.cli("run", "x", "-a", "rehearsal", cwd=place.clone)
    assert refused.returncode == 2
    assert "started without KAPELLE_TRUST" in refused.stderr
    assert wary.get("/trust") == []
    assert place.traces() == []


def test_a_playbook_that_only_a_worktree_has_is_not_followed(
    wary: Instance, tmp_path: Path
) -> None:
    """Trust was judged on the checkout: neither another branch nor an agent can bring one."""
    trace, clone = tmp_path / "ran", make_repository(tmp_path / "clone")
    book = f'[[do]]\nrun = "touch {trace}"\n'
    git(clone, "checkout", "--quiet", "-b", "evil")
    (clone / ".kapelle").mkdir()
    (clone / ".kapelle" / "playbook.toml").write_text(book, encoding="utf-8")
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message=Harmless")
    git(clone, "checkout", "--quiet", "-")
    wrote = wary.play(
        f"[[do]]\nwrite = '.kapelle/playbook.toml'\ncontent = {json.dumps(book)}", clone
    )
    assert wary.wait(wrote)["status"] == "completed"
    for place in (["--base", "evil"], ["--continue-from", wrote]):
        done = wary.cli("run", "hello", "-a", "rehearsal", "-f", *place, cwd=clone)
        assert done.returncode == 0
        assert "without a playbook" in done.stdout + done.stderr
    assert not trace.exists()


# Every command with arguments that make it do something in the clone.
TYPED = """
run hello
run hello --agent rehearsal
run hello --agent rehearsal --in-place
best-of hello -n 2
orchestrate hello
workflow hello
debate hello
tracks
loop hello --until true
pipeline one two
batch one two
batches save list README.md
batches list
batches show list
batch --list list
batches delete list
batches edit list
team hello
start
start evil
start evil --help
attach
runs list
runs status {run}
runs steps {run}
runs result {run}
runs tail {run}
runs wait {run}
runs answer {paused} yes
questions
answer {paused} yes
say {done} more
runs resume {paused}
runs pause {paused}
runs cancel {paused}
schedule list
schedule create --cron 0_0_*_*_* run hello
schedule status {schedule}
schedule history {schedule}
schedule pause {schedule}
schedule resume {schedule}
schedule run {schedule}
schedule cancel {schedule}
list
status {done}
logs {done}
wait {done}
cancel {done}
retry {failed}
resume {second} again
continue {third} more
requeue {failed}
diff {done}
pr {done}
merge {done}
check {done}
flag {done}
snooze {done}
archive {done}
prune --dry-run
locks list
locks take a.txt
locks release a.txt
search hello
learnings list
learnings add Title Content
learnings search title
learnings show {learning}
learnings edit {learning} --title Other
learnings export
learnings import README.md
learnings delete {learning}
notify test
project list
project create other
project rename other another
project switch another
project archive another
project delete another
templates list
templates create other Guidelines
templates show {template}
templates edit {template} Others
templates delete {template}
notes list
notes set key value
notes get key
notes watch key
notes delete key
usage
report
events
top
agents list
agents check claude
agents check evil
agents config show claude
trust list
trust --show
prompts
untrust
relocate README.md
init
config show
config get checks
config set --repo project mine
config reset --repo project
config path
doctor
demo --help
serve
backup
service status
service install --help
service uninstall --help
mcp
mcp install claude --print
open --print
acp
completion bash
help
uninstall --dry-run
stop
uninstall --help
"""


# How they end depends on which agents are installed.
OF_THE_MACHINE = ("init", "doctor", "agents check claude")


def leaves() -> Iterator[str]:
    for name in command_names():
        inner = getattr(load(name), "commands", {})
        yield from (f"{name} {other}" for other in inner) if inner else (name,)


def lines() -> list[str]:
    return TYPED.strip().splitlines()


def test_every_command_is_tried() -> None:
    missing = [
        leaf for leaf in leaves() if not any(f"{line} ".startswith(f"{leaf} ") for line in lines())
    ]
    assert missing == []


def test_no_command_in_a_hostile_clone_runs_anything_of_it(place: Place) -> None:
    rows = []
    completion = {
        "COMP_WORDS": "kapelle start ", "COMP_CWORD": "2", "_KAPELLE_COMPLETE": "bash_complete"
    }  # fmt: skip
    place.kapelle.env |= completion
    assert "plain,evil" in place.kapelle.cli(cwd=place.clone).stdout.split()
    for name in completion:
        del place.kapelle.env[name]
    for line in lines():
        words = [
            word.format_map(place.ids).replace("_", " ")
            if "*" in word
            else word.format_map(place.ids)
            for word in line.split()
        ]
        done = place.kapelle.cli(*words, cwd=place.clone)
        assert "Traceback" not in done.stderr, done.stderr
        refused = "not trusted" in done.stderr or "has changed since" in done.stderr
        shown = re.sub(r"\{\w+\}", "ID", line).replace("_", " ")
        code = "" if line in OF_THE_MACHINE else str(done.returncode)
        rows.append((f"kapelle {shown}", code, refused))
        assert place.traces() == [], line
    place.kapelle.start()
    time.sleep(2.5)
    assert place.traces() == []
    by_name = {name: refused for name, _, refused in rows}
    for name in (
        "run hello",
        "loop hello --until true",
        "start evil",
        "schedule create --cron 0 0 * * * run hello",
    ):
        assert by_name[f"kapelle {name}"], name
    compare(
        "commands", ["command", "exit code", "refused for want of trust", "of the clone ran"], rows
    )


def python(instance: Instance, clone: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a new interpreter in a clone, with its output in the log of the daemon."""
    with instance.home.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=clone, env=instance.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log, text=True, start_new_session=True,
        )  # fmt: skip


def test_no_interpreter_imports_modules_of_a_hostile_clone(tmp_path: Path) -> None:
    """The daemon in the foreground, started by a command and as a unit, and commands of an editor
    are new interpreters in the clone: none of them imports its files."""
    instance, ran = Instance(tmp_path / "home"), tmp_path / "ran"
    del instance.env["KAPELLE_TRUST"]
    # The socket of a home with a long path lies there: the daemons must agree with this process.
    instance.env["TMPDIR"] = tempfile.gettempdir()
    clone = make_repository(tmp_path / "clone")
    instance.home.root.mkdir()
    ran.mkdir()
    hostile(clone, ran)
    try:
        # An interpreter that is started without care does import them.
        python(instance, clone, "-m", "kapelle", "list").communicate(timeout=60)
        assert "module kapelle.__main__.py" in os.listdir(ran)
        python(instance, clone, "-c", "import secrets").communicate(timeout=60)
        assert "module secrets.py" in os.listdir(ran)
        for trace in ran.iterdir():
            trace.unlink()
        safe = ("-P", "-m", "kapelle")
        unit = Unit(instance.home, instance.env, launchd=False).command[1:]
        for words in ((*safe, "serve"), unit):
            daemon = python(instance, clone, *words)
            instance.await_ready()
            assert os.readlink(f"/proc/{daemon.pid}/cwd") == str(clone)
            instance.get("/agents")
            converse(python(instance, clone, *safe, "acp"), clone)
            instance.post("/daemon/stop", {"agents": True})
            daemon.communicate(timeout=60)
            assert os.listdir(ran) == [], words
        python(instance, clone, *safe, "list").communicate(timeout=60)
        instance.get("/agents")
        assert os.listdir(ran) == []
    finally:
        instance.destroy()


def converse(process: "subprocess.Popen[str]", clone: Path) -> None:
    """Have an editor give a command and a prompt, and cancel, in a session in the clone."""
    client = Editor(process)
    client.ask("initialize", protocolVersion=1, clientCapabilities={})
    session = client.ask("session/new", cwd=str(clone), mcpServers=[])["result"]["sessionId"]
    assert "no tasks" in client.prompt(session, "/list")
    assert "not trusted" in client.prompt(session, "hello")
    client.ask("session/cancel", sessionId=session)
    process.communicate(timeout=60)


BODIES: dict[str, Any] = {
    "POST /tasks": {"prompt": "x", "directory": "{clone}", "agent": "rehearsal"},
    "POST /tasks/{task_id}/resume": {"message": "x"},
    "PUT /tasks/{task_id}/dependencies": {"depends_on": []},
    "POST /runs": {"pattern": "evil", "spec": {"directory": "{clone}"}},
    "POST /runs/{run_id}/answer": {"answer": "x"},
    "POST /schedules": {
        "kind": "task", "cron": "* * * * *",
        "spec": {"prompt": "x", "directory": "{clone}", "agent": "rehearsal"},
    },
    "POST /learnings": {"title": "x", "content": "y", "directory": "{clone}"},
    "PUT /learnings/{learning_id}": {"title": "z"},
    "POST /learnings/markdown": {"markdown": "## x\ny", "directory": "{clone}"},
    "POST /projects": {"name": "mine"},
    "PUT /projects": {"name": "mine", "to": "ours", "archived": True},
    "PUT /projects/current": {"name": "ours", "directory": "{clone}"},
    "POST /templates": {"name": "other", "guidelines": "x", "directory": "{clone}"},
    "PUT /templates/{template}": {"name": "fix", "guidelines": "x", "directory": "{clone}"},
    "POST /agents/{name}/check": {"directory": "{clone}", "live": True},
    "PUT /agents/{name}/credential": {"api_key": "abcdefgh12345"},
    "POST /login": {"code": "x"},
    "PUT /batches/{name}": {"text": "- x"},
    "POST /notes": {"key": "x", "value": "x"},
    "POST /questions": {"text": "x"},
    "POST /questions/{token}/answer": {"answer": "x"},
    "POST /tasks/{task_id}/say": {"message": "x"},
    "POST /locks": {"paths": ["a.txt"], "directory": "{clone}"},
    "POST /locks/release": {"directory": "{clone}"},
    "POST /locks/check": {"tool": "x", "directory": "{clone}"},
}  # fmt: skip
# They would let it in, or end the daemon.
LAST = ("POST /trust", "POST /daemon/stop")


def test_no_route_runs_anything_of_a_hostile_clone(place: Place) -> None:
    rows = []
    names = {
        "task_id": "failed", "run_id": "paused", "schedule_id": "schedule", "work_id": "failed",
        "learning_id": "learning", "template": "template",
        "token": "paused",
    }  # fmt: skip
    for path, operations in openapi(idle_services())["paths"].items():
        for method, operation in operations.items():
            short = f"{method.upper()} {path.removeprefix('/api/v1')}"
            if short in LAST:
                continue
            values = {name: place.ids[key] for name, key in names.items()} | {"name": "claude"}
            query = {
                "directory": str(place.clone), "follow": "false", "timeout_s": "0"
            }  # fmt: skip
            known = {item["name"] for item in operation.get("parameters", ())}
            asked = "&".join(f"{key}={value}" for key, value in query.items() if key in known)
            target = path.removeprefix("/api/v1").format_map(values) + (
                f"?{asked}" if asked else ""
            )
            body = json.loads(json.dumps(BODIES.get(short)).replace("{clone}", str(place.clone)))
            response, data = place.kapelle.request(method.upper(), target, body)
            refused = b'"not_trusted"' in data and b'"error"' in data
            rows.append((short, str(response.status), refused))
            assert response.status < 500, (short, data)
            assert place.traces() == [], short
    time.sleep(2.5)
    assert place.traces() == []
    by_name = {name: refused for name, _, refused in rows}
    assert by_name["POST /tasks"]
    assert by_name["POST /runs"]
    assert by_name["POST /schedules"]
    compare("routes", ["route", "status", "refused for want of trust", "of the clone ran"], rows)


def compare(mark: str, header: list[str], rows: list[tuple[str, str, bool]]) -> None:
    """The table of the page is what was found; UPDATE_TABLES=1 writes it."""
    table = [f"| {' | '.join(header)} |", "|---|---|---|---|"]
    table += [
        f"| `{name}` | {code} | {'yes' if refused else ''} | nothing |"
        for name, code, refused in rows
    ]
    begin, end = f"<!-- made by tests/e2e/test_trust.py: {mark} -->\n", "<!-- end of that -->"
    before, _, rest_ = PAGE.read_text(encoding="utf-8").partition(begin)
    found, _, after = rest_.partition(end)
    made = "\n".join(table) + "\n"
    if os.environ.get("UPDATE_TABLES"):
        PAGE.write_text(before + begin + made + end + after, encoding="utf-8")
    else:
        assert found == made, "UPDATE_TABLES=1 pytest tests/e2e/test_trust.py writes it anew"


def configure(repository: Path, text: str) -> None:
    (repository / ".kapelle").mkdir(parents=True, exist_ok=True)
    (repository / ".kapelle" / "config.toml").write_text(text, encoding="utf-8")


def trusted(kapelle: Instance, repository: Path) -> str:
    [found] = kapelle.get(f"/trust?directory={repository}")
    return str(found["status"])


def test_trust_holds_until_something_that_executes_changes(
    wary: Instance, repository: Path
) -> None:
    configure(repository, 'project = "p"\nchecks = ["true"]\n')
    (repository / ".kapelle" / "patterns").mkdir()
    lines = "".join(f"# line {number}\n" for number in range(40))
    (repository / ".kapelle" / "patterns" / "long.py").write_text(lines, encoding="utf-8")
    refused = wary.cli("run", "x", "-a", "rehearsal", "--json", cwd=repository)
    assert (refused.returncode, json.loads(refused.stderr)["error"]["code"]) == (2, "not_trusted")
    hint = json.loads(refused.stderr)["error"]["hint"]
    seen = wary.cli("trust", "--show", cwd=repository).stderr
    assert ".kapelle/patterns/long.py: # line 30" in seen
    (repository / ".kapelle" / "patterns" / "long.py").unlink()
    told = wary.cli(*shlex.split(hint.rpartition("kapelle ")[2]), cwd=Path("/"))
    assert "is trusted: it may now run the 1 item above." in told.stderr
    assert wary.cli("run", "x", "-a", "rehearsal", "-f", cwd=repository).returncode == 0
    assert stat.S_IMODE(wary.home.trust.stat().st_mode) == 0o600
    configure(repository, 'project = "q"\nchecks = ["true"]\n')
    assert trusted(wary, repository) == "trusted"
    configure(repository, 'project = "q"\nchecks = ["true", "id"]\n')
    assert trusted(wary, repository) == "changed"
    again = wary.cli("trust", "--show", cwd=repository)
    assert '-checks: ["true"]' in again.stderr
    assert '+checks: ["true", "id"]' in again.stderr
    with pytest.raises(ApiError, match="has changed since you trusted it"):
        wary.submit("x", repository)
    wary.cli("trust", cwd=repository, check=True)
    listed = wary.cli("trust", "list", cwd=repository)
    assert re.search(rf"{repository} +trusted ", listed.stdout)
    wary.cli("untrust", cwd=repository, check=True)
    assert trusted(wary, repository) == "not_trusted"


def test_a_trusted_repository_has_roles_told_its_own_words(
    wary: Instance, repository: Path
) -> None:
    copied = wary.cli("prompts", "loop/judge", "--copy", cwd=repository, check=True)
    path = repository / ".kapelle" / "prompts" / "loop" / "judge.md"
    assert str(path) in copied.stderr
    assert wary.cli("prompts", "loop/judge", "--copy", cwd=repository).returncode == 2
    path.write_text("Be severe about {task}, {unknown} and $&.\n", encoding="utf-8")
    (path.parent / "juge.md").write_text("A typing error.\n", encoding="utf-8")
    told = {"prompt": "x", "judge": "rehearsal", "eval_mode": "agent", "max_iterations": 1}
    with pytest.raises(ApiError, match="not trusted"):
        start(wary, "loop", repository, **told)
    assert "Not used" in wary.cli("prompts", cwd=repository, check=True).stderr
    wary.cli("trust", cwd=repository, check=True)
    run = perform(wary, "loop", repository, **told)
    [judge] = [task for task in tasks_of(wary, run["id"]) if task["title"] == "Judge"]
    assert judge["prompt"].startswith("Be severe about x, {unknown} and $&.\n\n## Wanted\nDecide")
    listed = wary.cli("prompts", cwd=repository, check=True)
    assert re.search(r"loop/judge +\.kapelle\n", listed.stdout)
    assert "loop/juge.md is for no role" in listed.stderr


def test_what_was_shown_is_what_is_trusted(wary: Instance, repository: Path) -> None:
    configure(repository, 'checks = ["true"]\n')
    [seen] = wary.get(f"/trust?directory={repository}")
    configure(repository, 'checks = ["id"]\n')
    with kapelle.connect(home=wary.home.root) as client:
        with pytest.raises(Conflict, match="has changed since you reviewed it"):
            client.trust(repository, seen["digest"])
        assert client.trusted() == []
        with pytest.raises(NotTrusted, match="is not trusted"):
            client.tasks.run("x", directory=repository, agent="rehearsal")
        assert client.trust(repository).status == "trusted"
        assert [view.directory for view in client.trusted()] == [str(repository)]
        assert client.untrust(repository).status == "not_trusted"


def test_a_queued_task_waits_when_trust_is_lost_and_goes_on_when_it_is_back(
    wary: Instance, repository: Path, tmp_path: Path
) -> None:
    configure(repository, 'checks = ["true"]\n')
    wary.cli("trust", cwd=repository, check=True)
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    waits = f"touch {begun}; until [ -e {gate} ]; do sleep 0.1; done"
    first = wary.play(f"[[do]]\nrun = '{waits}'", repository)
    second = wary.submit("x", repository, depends_on=[first])
    while not begun.exists():
        time.sleep(0.1)
    configure(repository, 'checks = ["true"]\n[workspace]\nsetup = "touch ran"\n')
    gate.touch()
    assert wary.wait(first)["status"] == "completed"
    held = wary.wait_for_status(second, "waiting")
    assert held["waiting_for"] == "trust"
    assert f"kapelle trust {repository}" in held["reason"]
    wary.cli("trust", cwd=repository, check=True)
    assert wary.wait(second)["status"] == "completed"


def test_a_merge_that_changes_dot_kapelle_drops_trust(wary: Instance, repository: Path) -> None:
    configure(repository, 'checks = ["true"]\n')
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=Settings")
    wary.cli("trust", cwd=repository, check=True)
    plain = wary.play('[[do]]\nwrite = "a.txt"\ncontent = "a"', repository)
    wary.wait(plain)
    assert wary.post(f"/tasks/{plain}/merge")["trust_dropped"] is False
    assert trusted(wary, repository) == "trusted"
    planted = wary.play('[[do]]\nwrite = ".kapelle/notes.txt"\ncontent = "a"', repository)
    wary.wait(planted)
    merged = wary.cli("merge", planted, cwd=repository)
    assert "not trusted any more: kapelle trust" in merged.stderr
    assert trusted(wary, repository) == "changed"
    wary.cli("trust", cwd=repository, check=True)
    other = wary.play('[[do]]\nwrite = "notes.kapelle"\ncontent = "a"', repository)
    wary.wait(other)
    assert wary.post(f"/tasks/{other}/merge")["trust_dropped"] is False


def test_a_terminal_asks_once_whatever_would_begin_work(
    wary: Instance, repository: Path, terminals: list[Terminal]
) -> None:
    def typed(*words: str, answer: str) -> tuple[int, str]:
        terminal = Terminal(wary, *words, cwd=repository)
        terminals.append(terminal)
        if answer:
            terminal.read_until("Do you trust it?")
            terminal.type(f"{answer}\n")
        return terminal.finish(), terminal.shown

    begin = ("run", "x", "-a", "rehearsal", "-f")
    configure(repository, 'checks = ["true"]\n')
    assert typed(*begin, answer="n")[0] == 2
    code, asked = typed(*begin, answer="y")
    assert (code, 'checks = ["true"]' in asked) == (0, True)
    code, shown = typed(*begin, answer="")
    assert (code, "Do you trust it?" in shown) == (0, False)
    [task] = wary.get("/tasks?limit=1")["tasks"]
    code, shown = typed("config", "set", "--repo", "checks", '["true", "true"]', answer="n")
    assert (code, "It applies as soon as you trust the repository" in shown) == (0, True)
    code, shown = typed("retry", task["id"], answer="y")
    assert (code, '+checks: ["true", "true"]' in shown) == (0, True)
    assert wary.wait(task["id"])["status"] == "completed"
    code, _ = typed("config", "set", "--repo", "checks", '["true"]', answer="y")
    assert (code, trusted(wary, repository)) == (0, "trusted")


def test_what_init_writes_with_a_persons_consent_is_trusted_and_nothing_beside_it(
    wary: Instance, tmp_path: Path
) -> None:
    plain, clone = (make_repository(tmp_path / name, {"go.mod": ""}) for name in ("a", "b"))
    (clone / ".kapelle" / "patterns").mkdir(parents=True)
    source = PATTERN.format(name="evil", first="")
    (clone / ".kapelle" / "patterns" / "evil.py").write_text(source, encoding="utf-8")
    for repository in (plain, clone):
        wary.cli("init", "--agent", "rehearsal", "--yes", cwd=repository, check=True)
    assert (trusted(wary, plain), trusted(wary, clone)) == ("trusted", "not_trusted")


def test_a_linked_worktree_has_its_repositorys_trust_for_the_same_digest(
    wary: Instance, repository: Path, tmp_path: Path
) -> None:
    configure(repository, 'checks = ["true"]\n')
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=Settings")
    linked = tmp_path / "linked"
    git(repository, "worktree", "add", "--quiet", str(linked))
    assert trusted(wary, linked) == "not_trusted"
    wary.cli("trust", cwd=repository, check=True)
    assert trusted(wary, linked) == "trusted"
    assert wary.wait(wary.submit("x", linked))["status"] == "completed"
    # A directory that only says that it is one of its worktrees, by itself or with a git directory
    # of its own, has none of it.
    gitdir = (linked / ".git").read_text(encoding="utf-8")
    own = tmp_path / "own"
    (own / "worktrees" / "x").mkdir(parents=True)
    (own / "worktrees" / "x" / "commondir").write_text(f"{repository}/.git\n", encoding="utf-8")
    for name, pointer in (("copied", gitdir), ("forged", f"gitdir: {own}/worktrees/x\n")):
        place = tmp_path / name
        configure(place, 'checks = ["true"]\n')
        (place / ".git").write_text(pointer, encoding="utf-8")
        back = own / "worktrees" / "x" / "gitdir"
        back.write_text(f"{place}/.git\n", encoding="utf-8")
        assert trusted(wary, place) == "not_trusted", name
    configure(linked, 'checks = ["id"]\n')
    assert (trusted(wary, linked), trusted(wary, repository)) == ("changed", "trusted")
    configure(linked, 'checks = ["true"]\n')
    wary.cli("untrust", cwd=linked, check=True)
    assert (trusted(wary, linked), trusted(wary, repository)) == ("not_trusted", "not_trusted")


def test_what_lies_in_a_trusted_repository_is_not_trusted_by_that(
    wary: Instance, repository: Path, tmp_path: Path
) -> None:
    library = make_repository(tmp_path / "library", {".kapelle/config.toml": 'checks = ["true"]\n'})
    configure(repository, 'checks = ["true"]\n')
    wary.cli("trust", cwd=repository, check=True)
    allowed = ("-c", "protocol.file.allow=always")
    git(repository, *allowed, "submodule", "--quiet", "add", str(library), "module")
    nested = make_repository(repository / "nested", {".kapelle/config.toml": 'checks = ["id"]\n'})
    part = repository / "part"
    configure(part, 'checks = ["id"]\n')
    link = make_repository(tmp_path / "link")
    (link / ".kapelle").symlink_to(repository / ".kapelle")
    for place in (repository / "module", nested, part, link):
        assert trusted(wary, place) == "not_trusted", place
        with pytest.raises(ApiError, match="is not trusted"):
            wary.submit("x", place)
    assert trusted(wary, repository) == "trusted"


def test_harmless_settings_hold_and_limits_only_become_lower(
    wary: Instance, repository: Path
) -> None:
    wary.home.config.write_text("[tasks]\nmax_turns = 50\n", encoding="utf-8")
    configure(repository, 'project = "p"\n[tasks]\ntimeout_s = 60\nmax_turns = 500\n')
    task = wary.wait(wary.submit("x", repository))
    assert (task["status"], task["project"]) == ("completed", "p")
    shown = json.loads(wary.cli("config", "show", "--json", cwd=repository).stdout)
    assert shown["tasks.timeout_s"]["value"] == 60
    assert shown["tasks.max_turns"]["value"] == 50


@pytest.mark.parametrize(
    "first",
    [
        "import time\nwhile True: time.sleep(0.1)",
        "os._exit(3)",
        "import threading\nthreading.Thread(target=os._exit, args=(3,)).start()",
    ],
)
def test_a_pattern_that_hangs_or_exits_is_not_noticed_by_the_daemon(
    kapelle: Instance, repository: Path, first: str
) -> None:
    """It is trusted here: the listing and the start tell of it, and everything else goes on."""
    folder = repository / ".kapelle" / "patterns"
    folder.mkdir(parents=True)
    source = PATTERN.format(name="evil", first=first)
    (folder / "evil.py").write_text(source, encoding="utf-8")
    (folder / "good.py").write_text(PATTERN.format(name="good", first=""), encoding="utf-8")
    pid = kapelle.get("/daemon")["pid"]
    slowest = 0.0
    listing = Thread(target=kapelle.get, args=(f"/patterns?directory={repository}",))
    listing.start()
    while listing.is_alive():
        began = time.monotonic()
        kapelle.get("/healthz")
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.05)
    assert slowest < 2
    known = {
        item["name"]: item["summary"] for item in kapelle.get(f"/patterns?directory={repository}")
    }
    assert known["good"] == "Do harm."
    assert "evil" not in known
    assert "evil.py" in known["(broken)"]
    with pytest.raises(ApiError, match=r"evil\.py (was not imported|ends the process)"):
        kapelle.post("/runs", {"pattern": "evil", "spec": {"directory": str(repository)}})
    assert kapelle.get("/daemon")["pid"] == pid
