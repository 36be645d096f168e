"""The same daemon on PostgreSQL."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.ensembles import diamond_team, rest, rule, start, with_playbook
from tests.e2e.support.instance import Instance


@pytest.fixture
def on_postgres(tmp_path: Path, new_postgres_url: str) -> Iterator[Instance]:
    instance = Instance(tmp_path / "home", KAPELLE_DATABASE_URL=new_postgres_url)
    instance.start()
    yield instance
    instance.destroy()


def test_tasks_run_and_survive_a_kill_on_postgres(on_postgres: Instance, repository: Path) -> None:
    instance = on_postgres
    assert instance.get("/daemon")["database"] == "postgresql"
    part = '[[do]]\nwrite = "new.txt"\ncontent = "x"\n[[do]]\nsleep = 2\n[[do]]\nresult = "done"'
    first = instance.play(part, repository, checks=["diff_not_empty"])
    second = instance.play('[[do]]\nsay = "hi"', repository, depends_on=[first])
    instance.wait_for_status(first, "running")
    instance.kill()
    instance.start()
    task = instance.wait(first)
    assert (task["status"], len(task["attempts"])) == ("completed", 1), task["reason"]
    assert instance.wait(second)["status"] == "completed"
    instance.post(f"/tasks/{first}/merge")
    assert not (instance.home.root / "kapelle.db").exists()
    done = instance.cli("backup")
    assert done.returncode == 2
    assert "pg_dump" in done.stderr


def test_runs_and_schedules_on_postgres(on_postgres: Instance, repository: Path) -> None:
    instance = on_postgres
    grow = rule("Grow", {"run": r"printf 'x\0\377\n' >> n"})
    with_playbook(instance, diamond_team() + grow)
    goal = {"goal": "Build it", "success_criteria": ["all parts"]}
    team = start(instance, "team", repository, **goal)
    loop = start(
        instance,
        "loop",
        repository,
        prompt="Grow",
        until=[r"printf 'c\0'; test $(wc -l < n) -ge 2"],
    )
    spec = {"prompt": "Grow", "directory": str(repository), "agent": "rehearsal"}
    once = {"kind": "task", "spec": spec, "every_s": 1, "max_runs": 2}
    schedule = instance.post("/schedules", once)["id"]
    time.sleep(1)
    instance.kill()
    instance.start()
    assert rest(instance, team)["status"] == "completed"
    run = rest(instance, loop)
    assert run["status"] == "completed", run["reason"]
    deadline = time.monotonic() + 30
    while instance.get(f"/schedules/{schedule}")["status"] == "active":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert instance.get(f"/schedules/{schedule}")["status"] == "completed"


def test_output_that_postgres_cannot_keep_does_not_fail_a_task(
    on_postgres: Instance, tmp_path: Path
) -> None:
    command = '["/bin/sh", "-c", "{prompt}"]'
    on_postgres.cli("config", "set", "agents.sh.command", command, check=True)
    script = r"printf 'a\0b\377\n'"
    task = on_postgres.wait(
        on_postgres.submit(script, tmp_path, agent="sh", checks=[r"printf 'c\0d\n'"])
    )
    assert task["status"] == "completed", task["reason"]
    assert task["result"] == "a\ufffdb\ufffd"
    assert task["checks"][0]["output"] == "c\ufffdd"


def test_a_second_home_on_the_same_database_is_refused(
    on_postgres: Instance, tmp_path: Path
) -> None:
    url = on_postgres.env["KAPELLE_DATABASE_URL"]
    second = Instance(tmp_path / "second", KAPELLE_DATABASE_URL=url)
    process = second.spawn()
    assert process.wait(40) == 2
    assert "Another daemon uses this database." in second.log_tail()
    second.destroy()


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/nothing", "mysql://localhost/x"])
def test_a_database_that_cannot_be_had_is_said_in_a_sentence(tmp_path: Path, url: str) -> None:
    instance = Instance(tmp_path / "home", KAPELLE_DATABASE_URL=url)
    assert instance.spawn().wait(40) == 2
    assert "Traceback" not in instance.log_tail()
    assert "database" in instance.log_tail()
