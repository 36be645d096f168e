"""Delivering what completed: merged into its base, or as a pull request of a forge."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.ensembles import perform, rule, with_playbook
from tests.e2e.instance import ApiError, Instance
from tests.e2e.repositories import git

_WRITE = '[[do]]\nwrite = "{name}"\ncontent = "x"'


def delivered(kapelle: Instance, id_: str, status: str = "delivered") -> dict[str, Any]:
    """The task or run, once its delivery has this status."""
    kind = "runs" if id_.startswith("run") else "tasks"
    deadline = time.monotonic() + 60
    while (work := kapelle.get(f"/{kind}/{id_}"))["delivery"]["status"] != status:
        assert time.monotonic() < deadline, (work["status"], work["reason"], work["delivery"])
        time.sleep(0.05)
    return dict(work)


def test_what_completed_is_merged_where_that_was_asked_for(
    kapelle: Instance, repository: Path
) -> None:
    id_ = kapelle.play(_WRITE.format(name="a.txt"), repository, deliver="merge")
    task = delivered(kapelle, id_)
    assert task["merged_at"] is not None
    assert (repository / "a.txt").exists()
    assert "merge" in kapelle.cli("status", id_, check=True).stdout
    failed = kapelle.play('[[do]]\nfail = "no"', repository, deliver="merge")
    assert kapelle.wait(failed)["delivery"]["status"] == "pending"
    idle = kapelle.play('[[do]]\nsay = "nothing to do"', repository, deliver="merge")
    assert delivered(kapelle, idle, "nothing")["merged_at"] is None


def test_a_run_is_merged_as_well_and_what_keeps_it_from_that_is_told(
    kapelle: Instance, repository: Path
) -> None:
    base = git(repository, "rev-parse", "main")
    with_playbook(kapelle, rule("Write it", {"write": "run.txt", "content": "theirs\n"}))
    run = perform(kapelle, "pipeline", repository, deliver="merge", steps=["Write it", "Look"])
    assert delivered(kapelle, run["id"])["merged_at"] is not None
    task = kapelle.play(_WRITE.format(name="b.txt"), repository, base=base, deliver="merge")
    told = delivered(kapelle, task, "failed")["delivery"]["reason"]
    assert f"kapelle merge {task} --into main" in told


def test_what_has_no_branch_cannot_be_delivered(kapelle: Instance, repository: Path) -> None:
    with pytest.raises(ApiError, match="no branch to merge"):
        kapelle.submit("x", repository, workspace="in_place", deliver="merge")
