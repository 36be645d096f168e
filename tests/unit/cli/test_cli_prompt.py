import io
import os
import sys
from pathlib import Path

import pytest

from kapelle.cli.values import MAX_PROMPT_BYTES, read_prompt
from kapelle.domain.errors import InvalidInput


class Stdin(io.TextIOWrapper):
    """A pipe that holds these bytes."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._read, write = os.pipe()
        os.close(write)

    def fileno(self) -> int:
        return self._read


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin("from the pipe ü".encode()))


def test_from_the_argument() -> None:
    assert read_prompt("do it", None) == "do it"


def test_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_text("do that ü", encoding="utf-8")
    assert read_prompt(None, file) == "do that ü"


@pytest.mark.usefixtures("piped")
@pytest.mark.parametrize("argument", ["-", None])
def test_from_stdin(argument: str | None) -> None:
    assert read_prompt(argument, None) == "from the pipe ü"


def test_an_argument_wins_over_an_inherited_stdin(piped: None) -> None:
    assert read_prompt("said", None) == "said"


def test_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="twice"):
        read_prompt("a", tmp_path / "b")


def test_none_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(InvalidInput, match="no prompt"):
            read_prompt(None, None)


def test_a_megabyte_is_the_most(tmp_path: Path) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(b"x" * MAX_PROMPT_BYTES)
    assert len(read_prompt(None, file)) == MAX_PROMPT_BYTES
    file.write_bytes("ü".encode() * (MAX_PROMPT_BYTES // 2) + b"x")
    with pytest.raises(InvalidInput, match="1 MB"):
        read_prompt(None, file)


@pytest.mark.parametrize("content", [b"", b" \n\t", b"a\0b", b"\xff\xfe"])
def test_what_is_no_prompt(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(content)
    with pytest.raises(InvalidInput):
        read_prompt(None, file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_prompt(None, tmp_path / "absent")
