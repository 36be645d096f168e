"""The command line against a real daemon: what it prints, where, and with which exit code."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git, make_repository
from tests.e2e.support.staging import shell_instance, until


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with shell_instance(tmp_path_factory.mktemp("cli")) as instance:
        yield instance


def run(kapelle: Instance, prompt: str, *options: str, cwd: Path | None = None) -> str:
    done = kapelle.cli("run", "--in-place", prompt, *options, check=True, cwd=cwd)
    return done.stdout.strip()


def task_of(kapelle: Instance, task_id: str) -> Any:
    return json.loads(kapelle.cli("status", task_id, "--json", check=True).stdout)


def test_the_id_stands_alone_on_stdout(shared: Instance) -> None:
    done = shared.cli("run", "--in-place", "true")
    assert done.returncode == 0
    assert done.stdout.startswith("task_")
    assert done.stdout.count("\n") == 1


def test_json_of_run_status_and_list(shared: Instance) -> None:
    made = json.loads(shared.cli("run", "--in-place", "echo hi", "--tag", "t1", "--json").stdout)
    assert shared.cli("wait", made["id"]).returncode == 0
    task = task_of(shared, made["id"][:20])
    assert task["id"] == made["id"]
    assert task["status"] == "completed"
    assert task["result"] == "hi"
    listed = json.loads(shared.cli("list", "--tag", "t1", "--json").stdout)
    assert [found["id"] for found in listed] == [made["id"]]


def test_list_is_newest_first_and_filtered(shared: Instance) -> None:
    ids = [run(shared, "true", "--project", "order") for _ in range(3)]
    shared.cli("wait", *ids, check=True)
    found = json.loads(shared.cli("list", "--project", "order", "--json").stdout)
    assert [task["id"] for task in found] == ids[::-1]
    assert len(json.loads(shared.cli("list", "--limit", "2", "--json").stdout)) == 2
    options = ["--project", "order", "--status", "failed", "--json"]
    assert json.loads(shared.cli("list", *options).stdout) == []
    text = shared.cli("list", "--project", "order").stdout
    assert all(task_id in text for task_id in ids)


def test_following_shows_the_output_and_ends_with_the_task(shared: Instance) -> None:
    done = shared.cli("run", "--in-place", "-f", "echo one; sleep 0.3; echo two")
    task_id, *lines = done.stdout.splitlines()
    assert task_id.startswith("task_")
    assert lines == ["one", "two"]
    assert done.returncode == 0
    assert f"{task_id} completed" in done.stderr


def test_following_failed_work_exits_with_1(shared: Instance) -> None:
    done = shared.cli("run", "--in-place", "-f", "exit 3")
    assert done.returncode == 1
    assert "exited with code 3" in done.stderr


def test_following_as_json_is_one_object_per_line(shared: Instance) -> None:
    done = shared.cli("run", "--in-place", "-f", "--json", "echo hi")
    first, *events, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert first["id"].startswith("task_")
    assert {"event": "text", "text": "hi"} in events
    assert last["event"] == "end"
    assert last["task"]["id"] == first["id"]


def test_a_question_exits_with_3_and_the_answer_goes_on(shared: Instance, tmp_path: Path) -> None:
    prompt = """Ask.
```rehearsal
[[rule]]
attempt = 1
do = [{ ask = "Which one?" }]
[[rule]]
do = [{ result = "That one." }]
```"""
    options = ["-a", "rehearsal", "--in-place", "-C", str(tmp_path)]
    done = shared.cli("run", "-f", *options, input=prompt)
    assert done.returncode == 3
    task_id = done.stdout.splitlines()[0]
    assert "Question: Which one?" in done.stdout
    assert f'kapelle answer {task_id}:1 "…"' in shared.cli("status", task_id).stdout
    assert shared.cli("wait", task_id).returncode == 3
    assert shared.cli("answer", task_id, "the first").stdout.strip() == task_id
    assert shared.cli("wait", task_id).returncode == 0
    log = shared.cli("logs", task_id).stdout
    assert log.endswith(
        "── attempt 2 by rehearsal, after: It asks: Which one? ──\n"
        "You answered: the first\nResult: That one.\n"
    )


def test_prompts_from_stdin_and_from_a_file(shared: Instance, tmp_path: Path) -> None:
    (tmp_path / "prompt").write_text("echo from the file", encoding="utf-8")
    piped = shared.cli("run", "--in-place", "-f", "-", input="echo from the pipe")
    assert "from the pipe" in piped.stdout
    file = shared.cli("run", "--in-place", "-f", "--prompt-file", str(tmp_path / "prompt"))
    assert "from the file" in file.stdout


def test_a_prompt_over_a_megabyte_is_refused(shared: Instance) -> None:
    done = shared.cli("run", "-", input="x" * 1_000_001)
    assert done.returncode == 2
    assert "larger than 1 MB" in done.stderr
    assert done.stdout == ""


def test_the_environment_is_passed_by_value_and_by_name(shared: Instance) -> None:
    shared.env["MINE"] = "from here"
    done = shared.cli("run", "--in-place", "-f", "--env", "A=b", "--env", "MINE", 'echo "$A $MINE"')
    assert "b from here" in done.stdout


def test_raw_logs_are_the_bytes_as_written(shared: Instance) -> None:
    task_id = run(shared, r"printf 'a\033[31mb\r\nlast'; echo oops >&2")
    shared.cli("wait", task_id, check=True)
    assert set(shared.cli("logs", task_id).stdout.splitlines()) == {"ab", "last", "! oops"}
    raw = ["logs", "--raw", task_id]
    assert shared.cli(*raw).stdout.encode() == b"a\x1b[31mb\nlast"  # text mode joins \r\n
    assert shared.cli(*raw, "--tail", "1").stdout == "last"
    assert shared.cli(*raw, "--stream", "err").stdout == "oops\n"


def test_hostile_text_never_reaches_the_terminal(shared: Instance) -> None:
    task_id = run(shared, r"printf '\033]0;evil\007\033[2Jok\n'; exit 1", "--title", "t\u202eitle")
    shared.cli("wait", task_id)
    for arguments in (["status", task_id], ["logs", task_id], ["list"], ["events"]):
        shown = shared.cli(*arguments)
        assert "\x1b" not in shown.stdout + shown.stderr
        assert "\u202e" not in shown.stdout + shown.stderr


def test_waiting_for_several_and_giving_up(shared: Instance) -> None:
    good, bad, slow = run(shared, "true"), run(shared, "false"), run(shared, "sleep 60")
    assert shared.cli("wait", good).returncode == 0
    assert shared.cli("wait", good, bad).returncode == 1
    done = shared.cli("wait", good, slow, "--timeout", "0.5s", "--json")
    assert done.returncode == 2
    assert [task["status"] for task in json.loads(done.stdout)] == ["completed", "running"]
    assert "time is up" in done.stderr
    cancelled = shared.cli("cancel", slow, "--reason", "enough")
    assert cancelled.stdout.split() == [slow, "cancelled"]
    assert "enough" in task_of(shared, slow)["reason"]


def test_a_retry_is_a_new_attempt(shared: Instance, tmp_path: Path) -> None:
    task_id = run(shared, "test -e flag || { touch flag; exit 1; }", cwd=tmp_path)
    assert shared.cli("wait", task_id).returncode == 1
    assert shared.cli("retry", task_id).stdout.strip() == task_id
    assert shared.cli("wait", task_id).returncode == 0
    assert [attempt["number"] for attempt in task_of(shared, task_id)["attempts"]] == [1, 2]
    followed = shared.cli("retry", task_id, "-f")
    assert followed.returncode == 0
    said = followed.stdout.splitlines()
    assert [line[:12] for line in said if line.startswith("──")] == ["── attempt 3"]


def test_cancelling_says_what_it_waits_for(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "home", KAPELLE_TASKS__GRACE_S="4")
    instance.cli("config", "set", "agents.sh.command", '["sh", "-c", "{prompt}"]', check=True)
    instance.start()
    try:
        part = "trap '' TERM; touch begun; while :; do sleep 0.1; done"
        task_id = run(instance, part, "-a", "sh", cwd=tmp_path)
        until(lambda: (tmp_path / "begun").exists(), "the agent's work")
        done = instance.cli("cancel", task_id)
        assert done.stdout.split() == [task_id, "cancelled"]
        assert "Stopping; after tasks.grace_s" in done.stderr
    finally:
        instance.destroy()


def test_from_worktree_to_merge_and_archive(shared: Instance, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    arguments = ["echo new > new.txt", "--check", "test -s new.txt", "--check", "diff_not_empty"]
    task_id = shared.cli("run", *arguments, cwd=repository).stdout.strip()
    assert shared.cli("wait", task_id).returncode == 0
    assert "verified   2 of 2 checks passed" in shared.cli("status", task_id).stdout
    assert "+new" in shared.cli("diff", task_id).stdout
    assert "new.txt" in shared.cli("diff", task_id, "--stat").stdout
    merged = shared.cli("merge", task_id)
    assert merged.stdout.strip() == git(repository, "rev-parse", "main")
    assert "already" in shared.cli("merge", task_id).stderr
    assert shared.cli("archive", task_id).stdout.split() == [task_id, "archived"]
    assert task_id not in shared.cli("list", "--limit", "1000", "--json").stdout
    assert task_id in shared.cli("list", "--all", "--limit", "1000", "--json").stdout


def test_a_merge_conflict_exits_with_1(shared: Instance, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    ids = [
        shared.cli("run", f"echo {word} > README.md", cwd=repository).stdout.strip()
        for word in ("one", "two")
    ]
    assert shared.cli("wait", *ids).returncode == 0
    assert shared.cli("merge", ids[0]).returncode == 0
    refused = shared.cli("merge", ids[1], "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stderr)["error"]["code"] == "merge_conflict"


def test_the_history(shared: Instance) -> None:
    task_id = run(shared, "true")
    shared.cli("wait", task_id, check=True)
    lines = shared.cli("events", "--task", task_id, "--json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    assert events[0]["kind"] == "task.created"
    assert {event["task_id"] for event in events} == {task_id}
    after = shared.cli("events", "--task", task_id, "--after", str(events[0]["seq"]))
    assert len(after.stdout.splitlines()) == len(events) - 1


@pytest.mark.parametrize("command", ["list", "status", "run"])
def test_the_daemons_libraries_are_not_imported(shared: Instance, command: str) -> None:
    arguments = {"list": [], "status": [run(shared, "true")], "run": ["--in-place", "true"]}
    probe = (
        "import sys; from kapelle.cli.main import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, command, *arguments[command]],
        env=shared.env,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert "click" in loaded
    assert not loaded & {"starlette", "sqlalchemy", "mcp", "alembic", "uvicorn"}
    assert not loaded & {"rich", "pydantic"}
    if command == "list":
        assert "kapelle.cli.spec_options" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "zzzz"], "kapelle list"),
        (["status", ""], "kapelle list"),
        (["run", "x", "-a", "nobody"], "nobody"),
        (["run", "x", "-C", "/no/such"], "/no/such"),
        (["run", "x", "--timeout", "soon"], "10m"),
        (["lsit"], "kapelle list"),
        (["run", "x", "--agnet", "sh"], "--agent"),
        (["logs", "task_0", "--tail", "x"], "--tail"),
    ],
)
def test_errors_say_what_to_do(shared: Instance, arguments: list[str], words: str) -> None:
    done = shared.cli(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(shared.cli(*arguments, "--json").stderr)["error"]["message"]


def test_what_is_archived_is_marked(shared: Instance) -> None:
    task_id = run(shared, "true", "--tag", "put-away")
    shared.cli("wait", task_id, check=True)
    shared.cli("archive", task_id, check=True)
    assert "completed, not verified, archived" in shared.cli("status", task_id).stdout
    assert "(archived)" in shared.cli("list", "--all", "--tag", "put-away").stdout
    assert shared.cli("list", "--tag", "put-away").stderr == "Nothing matches.\n"


def test_no_lines_are_not_no_output(shared: Instance) -> None:
    task_id = run(shared, "echo hi")
    shared.cli("wait", task_id, check=True)
    assert shared.cli("logs", task_id, "--tail", "0").stderr == ""
    refused = shared.cli("logs", task_id, "--stream", "err")
    assert refused.returncode == 2
    assert "only with --raw" in refused.stderr


def test_a_setting_without_a_value_is_said_not_to_be_set(shared: Instance) -> None:
    done = shared.cli("config", "get", "limits.max_attempts", check=True)
    assert (done.stdout, done.stderr) == ("", "limits.max_attempts is not set.\n")


def test_an_id_is_typed_by_its_end_and_without_one_the_newest_here_is_meant(
    shared: Instance, tmp_path: Path
) -> None:
    repository, other = make_repository(tmp_path / "mine"), make_repository(tmp_path / "other")
    arguments = ["echo new > new.txt", "--check", "test -s new.txt"]
    first = shared.cli("run", *arguments, cwd=repository, check=True).stdout.strip()
    elsewhere = shared.cli("run", *arguments, cwd=other, check=True).stdout.strip()
    assert shared.cli("wait", first[-5:], elsewhere[-5:].upper()).returncode == 0
    (repository / "below").mkdir()
    for command in ("status", "logs", "diff", "merge"):
        done = shared.cli(command, cwd=repository / "below")
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith(f"The newest here is {first}: echo new"), command
    went_on = shared.cli("continue", "echo more", cwd=repository, check=True)
    assert went_on.stdout.strip() == first
    shared.cli("wait", first)
    assert shared.cli("retry", cwd=repository, check=True).stdout.strip() == first
    assert shared.cli("wait", first).returncode == 0
    # A word that could be an id is none: it may be a message or a mistyped id.
    word = shared.cli("resume", "agent", cwd=repository)
    assert (word.returncode, "kapelle resume ID agent" in word.stderr) == (2, True)
    # The newest work is a run: an older task is not meant.
    loop = shared.cli("loop", "true", "--until", "true", "-f", cwd=repository, check=True)
    refused = shared.cli("retry", cwd=repository)
    assert (refused.returncode, "is a run" in refused.stderr) == (2, True), refused.stderr
    branch = shared.get("/runs?limit=1")["runs"][0]["workspace"]["branch"]
    followed = shared.cli("continue", "echo more", "--json", cwd=repository, check=True)
    assert json.loads(followed.stdout)["workspace"]["base"] == branch, loop.stdout
    shared.cli("wait", json.loads(followed.stdout)["id"], check=True)
    nothing = shared.cli("merge", cwd=make_repository(tmp_path / "empty"))
    assert nothing.returncode == 2
    assert "kapelle list --all" in nothing.stderr
    made = shared.cli("run", "true", "--after", first[-5:], "--json", cwd=repository)
    assert json.loads(made.stdout)["depends_on"] == [first]


def test_a_list_shows_the_tasks_and_runs_of_this_repository_once(
    shared: Instance, tmp_path: Path
) -> None:
    repository, other = make_repository(tmp_path / "mine"), make_repository(tmp_path / "other")
    elsewhere = shared.cli("run", "true", cwd=other, check=True).stdout.strip()
    task_id = shared.cli("run", "true", cwd=repository, check=True).stdout.strip()
    started = shared.cli("loop", "true", "--until", "true", cwd=repository, check=True)
    run_id = started.stdout.strip()
    assert shared.cli("wait", elsewhere, task_id, run_id[-5:]).returncode == 0

    def ids(*options: str, cwd: Path = repository) -> list[str]:
        found = json.loads(shared.cli("list", "--json", *options, cwd=cwd, check=True).stdout)
        return [item["id"] for item in found]

    assert ids() == [run_id, task_id]
    assert ids("--limit", "1") == [run_id]
    assert ids("--status", "failed") == []
    nested = ids("--nested")
    assert len(nested) == 3
    assert nested[1:] == [run_id, task_id]
    # A worktree of the repository belongs to it as well.
    git(repository, "worktree", "add", "-q", str(tmp_path / "linked"))
    assert ids(cwd=tmp_path / "linked") == [run_id, task_id]
    assert ids("--all")[:3] == [run_id, task_id, elsewhere]
    text = shared.cli("list", "--all", "--limit", "3").stdout.splitlines()
    assert text[0].split() == ["ID", "STATUS", "AGENT/PATTERN", "AGE", "REPOSITORY", "TITLE"]
    assert [line.split()[-2] for line in text[1:]] == ["mine", "mine", "other"]
    assert shared.cli("runs", "--status", "waiting").stderr == "Nothing matches.\n"
    found = json.loads(shared.cli("runs", "--json", cwd=repository).stdout)
    assert [run["id"] for run in found] == [run_id]
    wrong = shared.cli("retry", run_id[-5:])
    assert f"It is a run: kapelle runs status {run_id[-5:]}" in wrong.stderr


def test_what_runs_tells_its_output_and_what_waits_no_foreign_workspace(
    shared: Instance, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path / "repository")
    gate = tmp_path / "gate"
    prompt = f"echo hanging; until [ -e {gate} ]; do sleep 0.1; done"
    task_id = shared.cli("run", prompt, cwd=repository, check=True).stdout.strip()
    shared.wait_for_status(task_id, "running")
    while not shared.output(task_id):
        time.sleep(0.05)
    assert task_of(shared, task_id)["attempts"][0]["output_bytes"] == len("hanging\n")
    held = shared.cli("run", "true", "--after", task_id, cwd=repository, check=True).stdout.strip()
    shown = shared.cli("status", held).stdout
    assert "workspace  a worktree, which is made when it starts" in shown
    assert str(repository) not in shown
    gate.touch()
    assert shared.cli("wait", task_id, held).returncode == 0


def test_a_shell_is_offered_ids_agents_and_projects(shared: Instance, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    arguments = ["run", "true", "--title", "Mend it", "--project", "completed-project"]
    task_id = shared.cli(*arguments, cwd=repository, check=True).stdout.strip()
    shared.cli("wait", task_id, check=True)

    def offered(line: str, **changes: str) -> str:
        words = line.split(" ")
        done = subprocess.run(
            [sys.executable, "-m", "kapelle"],
            env={
                **shared.env, "_KAPELLE_COMPLETE": "bash_complete", "COMP_WORDS": line,
                "COMP_CWORD": str(len(words) - 1), **changes,
            },
            cwd=repository,
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.replace("plain,", "")

    assert offered("kapelle status ").split() == [task_id[-5:]]
    assert offered(f"kapelle merge {task_id[:12]}").split() == [task_id]
    assert "rehearsal" in offered("kapelle run x --agent re").split()
    assert offered("kapelle list --project comp").split() == ["completed-project"]
    assert offered("kapelle run x --project comp").split() == ["completed-project"]
    assert offered("kapelle status ", KAPELLE_HOME=str(tmp_path / "nobody")).split() == []
    assert not (tmp_path / "nobody" / "daemon.json").exists()


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("loop status abcde", "kapelle runs status abcde"),
        ("orchestrate cancel abcde", "kapelle runs cancel abcde"),
        ("loop x --pipeline --step y", "Several --step make a pipeline"),
        ("orchestrate x --foreground", "Write --follow"),
    ],
)
def test_what_other_tools_spell_otherwise_is_answered_with_what_to_type(
    shared: Instance, typed: str, hint: str
) -> None:
    refused = shared.cli(*typed.split())
    assert (refused.returncode, hint in refused.stderr) == (2, True), refused.stderr


def test_settings_are_shown_without_a_command_and_one_by_its_name(shared: Instance) -> None:
    assert "tasks.timeout_s = " in shared.cli("config", check=True).stdout
    one = json.loads(shared.cli("config", "show", "tasks.timeout_s", "--json", check=True).stdout)
    assert list(one) == ["tasks.timeout_s"]
    assert "did you mean" in shared.cli("config", "show", "tasks.timeout").stderr


def test_the_newest_is_waited_for_and_a_time_behind_ids_is_no_id(
    shared: Instance, repository: Path
) -> None:
    task_id = shared.cli("run", "true", cwd=repository, check=True).stdout.strip()
    waited = shared.cli("wait", cwd=repository, check=True)
    assert task_id in waited.stdout
    put_off = shared.cli("snooze", task_id, "2h", "--json", check=True)
    [snoozed] = json.loads(put_off.stdout)
    later = datetime.fromisoformat(snoozed["snoozed_until"])
    assert timedelta(hours=1) < later - datetime.now(UTC) <= timedelta(hours=2)
    for alias in ("ls", "ps", "show", "log"):
        assert shared.cli(alias, cwd=repository).returncode == 0
