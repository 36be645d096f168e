"""A packed process directory reads like the directory that it was."""

import os
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from kapelle.runner import pack
from kapelle.runner.output import find_tail_offset, read, read_lines, read_tail
from kapelle.runner.process_dir import read_exit


@pytest.mark.parametrize("size", [0, 5, 300_000, (8 << 20) + 12_345])
def test_every_way_of_reading_gives_the_same(tmp_path: Path, size: int) -> None:
    process_dir, check = tmp_path / "attempt", tmp_path / "unguessable"
    log = process_dir / "out.log"
    content = (b"0123456789abcde\n" * (size // 16 + 1))[:size]
    for directory in (process_dir, check):
        directory.mkdir()
        (directory / "out.log").write_bytes(content)

    def readings() -> list[object]:
        return [
            [read(log, offset, 1000) for offset in (0, 7, size - 3, size, size + 9) if offset >= 0],
            [find_tail_offset(log, lines) for lines in (0, 1, 40)],
            read_tail(log, 100),
            list(read_lines(log, 500)),
        ]

    before = readings()
    pack.pack(process_dir, {"checks/0": check})
    assert os.listdir(tmp_path) == ["attempt.zip"]
    assert pack.pack_path(process_dir).stat().st_mode & 0o777 == 0o600
    assert readings() == before
    assert read(process_dir / "none.log", 0, 10) == b""
    with zipfile.ZipFile(pack.pack_path(process_dir)) as archive:
        assert archive.read("checks/0/out.log") == content


def test_links_and_pipes_that_an_agent_planted_are_left_out(tmp_path: Path) -> None:
    process_dir = tmp_path / "attempt"
    process_dir.mkdir()
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    (process_dir / "out.log").write_bytes(b"said")
    (process_dir / "err.log").symlink_to(tmp_path / "secret")
    os.mkfifo(process_dir / "pipe")
    (process_dir / "elsewhere").symlink_to(tmp_path)
    pack.pack(process_dir, {})
    assert read(process_dir / "out.log", 0, 10) == b"said"
    assert read(process_dir / "err.log", 0, 10) == b""
    assert (tmp_path / "secret").exists()
    assert b"secret" not in pack.pack_path(process_dir).read_bytes()


def test_a_planted_or_damaged_pack_says_nothing_about_a_process(tmp_path: Path) -> None:
    process_dir = tmp_path / "attempt"
    process_dir.mkdir()
    (process_dir / "exit.json").write_bytes(b"{}")
    pack.pack(process_dir, {})
    process_dir.mkdir()
    assert read_exit(process_dir, b"secret") is None
    pack.pack_path(process_dir).write_bytes(b"PK nonsense")
    assert read(process_dir / "exit.json", 0, 10) == b""


def test_two_who_pack_the_same_at_once_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_dir = tmp_path / "attempt"
    process_dir.mkdir()
    for number in range(50):
        (process_dir / f"{number:02}.log").write_bytes(b"said" * 1000)
    met = threading.Barrier(2)

    def add_slowly(archive: zipfile.ZipFile, path: Path, name: str) -> None:
        with suppress(threading.BrokenBarrierError):
            met.wait(0.01)
        add(archive, path, name)

    add = pack._add
    monkeypatch.setattr(pack, "_add", add_slowly)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(pack.pack, process_dir, {}) for _ in range(2)]:
            done.result()
    with zipfile.ZipFile(pack.pack_path(process_dir)) as archive:
        assert len(archive.namelist()) == 50
        assert archive.testzip() is None
    assert os.listdir(tmp_path) == ["attempt.zip"]


def test_what_was_not_written_as_it_should_be_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_dir = tmp_path / "attempt"
    process_dir.mkdir()
    (process_dir / "out.log").write_bytes(b"said")

    def lose(descriptor: int) -> None:
        os.pwrite(descriptor, b"?????", len("out.log") + 30)

    monkeypatch.setattr(os, "fsync", lose)
    with pytest.raises(OSError, match=r"attempt\.zip was not written as it should be"):
        pack.pack(process_dir, {})
    assert not pack.pack_path(process_dir).exists()
    assert read(process_dir / "out.log", 0, 10) == b"said"


def test_what_an_agent_wrote_under_the_name_of_a_check_is_not_taken_for_it(tmp_path: Path) -> None:
    process_dir, check = tmp_path / "attempt", tmp_path / "unguessable"
    check.mkdir()
    (check / "out.log").write_bytes(b"3 failed")
    for _ in range(2):  # the second time as after a crash, when the check is gone already
        for name in ("checks/0", "checks/1", "mine"):
            (process_dir / name).mkdir(parents=True)
            (process_dir / name / "out.log").write_bytes(b"all passed")
        (process_dir / "checks" / "0" / "exit.json").write_bytes(b"{}")
        pack.pack(process_dir, {"checks/0": check})
        with zipfile.ZipFile(pack.pack_path(process_dir)) as archive:
            found = {name: archive.read(name) for name in archive.namelist()}
        assert found == {"checks/0/out.log": b"3 failed", "mine/out.log": b"all passed"}


def test_names_and_sizes_that_an_agent_chose_do_not_keep_an_attempt_from_being_packed(
    tmp_path: Path,
) -> None:
    process_dir = tmp_path / "attempt"
    process_dir.mkdir()
    (process_dir / os.fsdecode(b"caf\xe9")).write_bytes(b"drunk")
    with (process_dir / "huge").open("wb") as huge:
        for place in (0, 1 << 30, 1 << 40):
            huge.seek(place)
            huge.write(b"here")
    for closed in (process_dir / "closed", process_dir / "inner" / "closed"):
        closed.parent.mkdir(exist_ok=True)
        closed.write_bytes(b"")
        closed.chmod(0)
    (process_dir / "inner").chmod(0)
    pack.pack(process_dir, {})
    with zipfile.ZipFile(pack.pack_path(process_dir)) as archive:
        assert archive.read("caf\\xe9") == b"drunk"
        assert archive.read("huge").replace(b"\0", b"") == b"here" * 3
    assert os.listdir(tmp_path) == ["attempt.zip"]
