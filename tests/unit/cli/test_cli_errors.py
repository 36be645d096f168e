import json
from pathlib import Path

import pytest

from kapelle.cli.output import internal_error, show_error, wants_json
from kapelle.domain.errors import (
    InvalidInput,
    KapelleError,
    MergeConflict,
    NotFound,
    find_error_class,
)


def test_a_sentence_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(NotFound("There is no task x", hint="Try `kapelle list`."), as_json=False)
    shown = capsys.readouterr()
    assert shown.err == "error: There is no task x.\nhint: Try `kapelle list`.\n"
    assert shown.out == ""


def test_json_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(InvalidInput("wrong", hint="right"), as_json=True)
    shown = capsys.readouterr()
    assert json.loads(shown.err) == {
        "error": {"code": "invalid_input", "message": "wrong", "hint": "right"}
    }
    assert shown.out == ""


def test_hostile_text_in_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(NotFound("no task \x1b[2J\u202ex"), as_json=False)
    assert capsys.readouterr().err == "error: no task \\u202ex.\n"


def test_json_is_recognised_before_parsing() -> None:
    assert wants_json(["list", "--json", "--nonsense"])
    assert not wants_json(["run", "--", "--json"])


def test_codes_lead_back_to_their_classes() -> None:
    assert find_error_class("merge_conflict") is MergeConflict
    assert find_error_class("not_found") is NotFound
    assert find_error_class("from_the_future") is KapelleError


def test_an_unforeseen_error_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAPELLE_HOME", str(tmp_path / "home"))
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError as error:
        shown = internal_error(error)
    log = tmp_path / "home" / "cli-error.log"
    assert shown.exit_code == 2
    assert str(log) in (shown.hint or "")
    assert "Traceback" in log.read_text(encoding="utf-8")
    assert "Traceback" not in shown.message
