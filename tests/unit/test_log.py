"""The daemon's log: a line that comes again and again is counted."""

import io
import logging
from collections.abc import Iterator

import pytest

from kapelle.daemon import CountingHandler


@pytest.fixture
def handler() -> Iterator[CountingHandler]:
    made = CountingHandler(pause_s=60)
    made.stream = io.StringIO()
    yield made
    made.close()


def _record(text: str, at: float) -> logging.LogRecord:
    record = logging.LogRecord("kapelle.test", logging.ERROR, "", 0, text, None, None)
    record.created = at
    return record


def test_what_comes_again_is_counted(handler: CountingHandler) -> None:
    for number in range(1000):
        handler.emit(_record("too many open files", 100 + number / 1000))
    handler.emit(_record("another", 130))
    assert handler.stream.getvalue().splitlines() == ["too many open files", "another"]
    handler.emit(_record("later", 161))
    handler.emit(_record("too many open files", 162))
    assert handler.stream.getvalue().splitlines()[2:] == [
        "too many open files (and 999 times more)", "later", "too many open files",
    ]  # fmt: skip


def test_what_was_counted_is_told_at_the_end(handler: CountingHandler) -> None:
    for _ in range(3):
        handler.emit(_record("again", 100))
    handler.close()
    assert handler.stream.getvalue().splitlines() == ["again", "again (and 2 times more)"]
