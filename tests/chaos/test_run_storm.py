"""A short storm over runs of every pattern; `make chaos` brings the long one."""

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.run_storm import RunStorm, RunStormSize


@pytest.mark.timeout(400)
def test_runs_come_to_the_same_however_often_the_daemon_is_killed(
    undisturbed: dict[str, Any], tmp_path: Path, exhaustive: bool
) -> None:
    copies, kills = (2, 30) if exhaustive else (1, 6)
    report = RunStorm(tmp_path, RunStormSize(copies, kills)).run(undisturbed)
    assert report.problems == {}
    assert report.runs >= len(undisturbed) * copies
    assert report.kills == kills


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_runs_come_to_the_same_on_postgres(
    undisturbed: dict[str, Any], tmp_path: Path, new_postgres_url: str
) -> None:
    size = RunStormSize(copies=1, kills=10)
    storm = RunStorm(tmp_path, size, KAPELLE_DATABASE_URL=new_postgres_url)
    report = storm.run(undisturbed)
    assert report.problems == {}
    assert report.runs >= len(undisturbed)
    assert report.kills == size.kills
