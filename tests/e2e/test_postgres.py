"""The same daemon on PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.instance import Instance


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
