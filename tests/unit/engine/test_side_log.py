"""The log that some agents keep beside their output: found in directories that agents write."""

import glob
import os
from pathlib import Path

from kapelle.engine.processes.output import SideLog, newest_match


def test_the_newest_file_of_a_session_is_found(tmp_path: Path) -> None:
    for name in ("2026/01/rollout-a-1.jsonl", "2026/02/rollout-b-1.jsonl", "rollout-c-2.jsonl"):
        path = tmp_path / "s [1]" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n", encoding="utf-8")
    pattern = f"{glob.escape(str(tmp_path))}/s [[]1]/**/rollout-*-{{session}}.jsonl"
    log = SideLog(pattern=pattern, session_id=None)
    assert [*log.lines("1")] == ["2026/02/rollout-b-1.jsonl"]
    assert [*log.lines("3")] == [*log.lines(None)] == []
    resumed = SideLog(pattern=pattern, session_id="2").after_present()
    assert [*resumed.lines(None)] == []


def test_a_search_follows_no_links_and_ends(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "everything").symlink_to("/")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    assert newest_match(f"{tmp_path}/**/*") is None
    assert newest_match("/**/no such name*") is None
