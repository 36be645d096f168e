"""Nights in which the daemon dies again and again: the report of the morning is still true."""

import random
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.night import night


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(5))
def test_the_report_is_true_however_often_the_daemon_dies(
    kapelle: Instance, repository: Path, seed: int
) -> None:
    chance = random.Random(seed)
    deaths = 0

    def disturb() -> None:
        nonlocal deaths
        if deaths < 10 and chance.random() < 0.3:
            deaths += 1
            kapelle.kill()
            kapelle.start()

    kapelle.start()
    report, _ = night(kapelle, repository, disturb)
    attempts = {entry["title"]: entry["attempts"] for entry in report["entries"]}
    assert attempts == {
        "GOOD work": 1, "GOOD words": 1, "BAD idea": 1, "ASKS something": 1,
        "Be there early and late": 8,
    }  # fmt: skip
