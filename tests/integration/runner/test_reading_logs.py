"""Logs are read by offset, and lines are cut in bounded memory."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.runner.output import (
    LogLine,
    LogReader,
    find_tail_offset,
    read,
    read_lines,
    read_tail,
)


def test_reading_by_offset(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read(log, 0, 10) == b""
    log.write_bytes(b"0123456789")
    assert read(log, 0, 4) == b"0123"
    assert read(log, 8, 4) == b"89"
    assert read(log, 20, 4) == b""


@pytest.mark.parametrize("line", [b"x\n", b"word " * 5000 + b"\n", b"\n"])
@pytest.mark.parametrize("unfinished", [b"", b"unfinished"])
def test_the_last_lines(tmp_path: Path, line: bytes, unfinished: bytes) -> None:
    log = tmp_path / "log"
    log.write_bytes(line * 50 + unfinished)
    size = log.stat().st_size
    extra = 1 if unfinished else 0
    for wanted in (1, 3, 50, 51):
        whole = min(50, wanted - extra)
        assert find_tail_offset(log, wanted) == size - len(line) * whole - len(unfinished)
    assert find_tail_offset(log, 1000) == 0
    assert find_tail_offset(log, 0) == size
    assert find_tail_offset(tmp_path / "none", 5) == 0


@pytest.mark.parametrize("size", [1, 300, 1 << 20, (1 << 20) - 4, 3 << 20])
def test_the_last_of_what_takes_several_lines(tmp_path: Path, size: int) -> None:
    log = tmp_path / "log"
    document = b"{\n  " + b"x" * size + b"\n  {}\n}\n"
    log.write_bytes(b"noise\n" + document * 3)
    for wanted in (1, 2, 3):
        assert find_tail_offset(log, wanted, first=b"{[") == 6 + len(document) * (3 - wanted)
    assert find_tail_offset(log, 2, 6 + len(document) * 2, b"{[") == 6
    assert find_tail_offset(log, 4, first=b"{[") == 0


def test_the_end_as_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_tail(log, 10) == ""
    log.write_bytes("first\nsecönd\nthird\n".encode())
    assert read_tail(log, 1000) == "first\nsecönd\nthird\n"
    assert read_tail(log, 6) == "third\n"
    assert read_tail(log, 9) == "third\n"
    assert read_tail(log, 3) == "rd\n"
    log.write_bytes(b"\xff" * 100)
    assert read_tail(log, 5) == "\N{REPLACEMENT CHARACTER}" * 5


@given(st.lists(st.binary(max_size=30)), st.integers(1, 12))
def test_lines_do_not_depend_on_chunks(chunks: list[bytes], limit: int) -> None:
    with TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        reader = LogReader(log, max_line=limit)
        lines = []
        for chunk in chunks:
            with log.open("ab") as stream:
                stream.write(chunk)
            lines += reader.lines()
        lines += reader.lines(is_complete=True)
    *whole, rest = b"".join(chunks).split(b"\n")
    expected = whole + ([rest] if rest else [])
    assert [line.text for line in lines] == [
        line[:limit].decode("utf-8", "replace") for line in expected
    ]


def test_a_growing_log_gives_each_line_once_it_is_complete(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reader = LogReader(log)
    assert reader.lines(is_complete=True) == []
    log.write_bytes("ä\n\nbeg".encode())
    assert reader.lines() == [LogLine("ä", 3), LogLine("", 4)]
    assert reader.lines() == []
    with log.open("ab") as stream:
        stream.write(b"un\nlast")
    assert reader.lines() == [LogLine("begun", 10)]
    assert reader.lines() == []
    assert reader.lines(is_complete=True) == [LogLine("last", 14)]
    assert reader.lines(is_complete=True) == []
    assert LogReader(log, 4).lines() == [LogLine("begun", 10)]


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1_000_000 + b"\nnext\n")
    reader = LogReader(log, max_line=1000)
    assert reader.lines() == [LogLine("x" * 1000, 1_000_001), LogLine("next", 1_000_006)]
    assert list(read_lines(log, 6)) == ["", "next"]
