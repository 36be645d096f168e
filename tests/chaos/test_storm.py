"""A short storm in every test run; `make chaos` is the long one."""

from pathlib import Path

import pytest

from tests.chaos.storm import Storm, StormSize


@pytest.mark.timeout(400)
def test_nothing_is_lost_or_repeated_when_daemons_and_shims_are_killed(
    tmp_path: Path, exhaustive: bool
) -> None:
    tasks, kills = (40, 12) if exhaustive else (16, 6)
    size = StormSize(tasks, at_once=8, daemon_kills=kills, shim_kills=4)
    report = Storm(tmp_path, size).run()
    assert report.problems == {}
    assert report.daemon_kills == kills
    # At the end of the storm there may be no attempt left whose shim could be killed.
    assert report.shim_kills >= 2
