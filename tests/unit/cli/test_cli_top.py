"""The screen of `kapelle top` in terminals of every size."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kapelle.cli.text import cell_width, clean
from kapelle.cli.top import render_page, sort_items


def task(number: int, **changes: Any) -> Any:
    return {
        "id": f"task_{number:026}",
        "title": f"Do what is to be done, number {number}",
        "status": "running",
        "reason": "attempt 1: the agent is working",
        "created_at": (datetime.now(UTC) - timedelta(minutes=number)).isoformat(),
        "agent": "claude",
        "model": "opus",
        "question": None,
        "attempts": [],
        "workspace": {"branch": "b", "commit": None, "owner": None},
        **changes,
    }


@pytest.mark.parametrize("width", [10, 20, 44, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [1, 5, 12, 24])
def test_it_fits_and_the_chosen_one_is_seen(width: int, height: int) -> None:
    items = [task(number, title="日本語の題名 " * 9) for number in range(40)]
    for chosen in (items[0], items[20], items[39]):
        lines = render_page(items, chosen["id"], width, height, is_away=True)
        assert len(lines) <= height
        assert max(cell_width(clean(line)) for line in lines) <= width
        shown = [line for line in lines if line.startswith("\x1b[7m")]
        assert len(shown) == (height >= 3)


def test_what_is_of_use_is_offered() -> None:
    def offered(**changes: Any) -> str:
        only = task(1, merged_at=None, **changes)
        return render_page([only], only["id"], 100, 9, is_away=False)[-1]

    assert offered() == "q quit  ? keys  ⏎ look  l logs  d diff  c cancel  ↑↓ choose"
    assert "a answer" in offered(status="waiting", waiting_for="input", question="Why?")
    done = {"branch": "b", "commit": "c", "owner": None}
    completed = offered(status="completed", workspace=done)
    assert "m merge" in completed
    assert "c cancel" not in completed
    assert "r retry" in offered(status="failed")


@pytest.mark.parametrize("width", [60, 100])
def test_what_was_not_verified_is_called_so(width: int) -> None:
    def shown(verified: bool) -> str:
        ended = task(1, status="completed", reason=None, verified=verified, merged_at=None)
        return "\n".join(render_page([ended], "", width, 9, is_away=False))

    assert "not verified" in shown(False)
    assert "verified" not in shown(True)


def test_what_has_ended_comes_last_whatever_it_is() -> None:
    def run(number: int, status: str, parent: int | None = None) -> Any:
        parent_id = parent and f"run_{parent}"
        return task(number, id=f"run_{number}", pattern="loop", status=status, parent_id=parent_id)

    items = [
        run(1, "cancelled"),
        task(2, run_id="run_1"),
        run(3, "running"),
        run(4, "completed", parent=3),
        task(5, status="queued", run_id="run_3"),
        task(6, status="waiting"),
        task(7, status="failed"),
        task(8),
    ]
    shown = sort_items({item["id"]: item for item in items})
    assert [int(item["id"].rpartition("_")[2]) for item in shown] == [3, 5, 2, 8, 6, 7, 1, 4]
