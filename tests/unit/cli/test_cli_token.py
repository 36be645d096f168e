from pathlib import Path

import pytest

from kapelle.cli.output import internal_error
from kapelle.client.address import Address
from kapelle.domain.errors import InvalidInput
from kapelle.home import Home


def address(home: Path) -> Address:
    return Address(Home(home), "http://127.0.0.1:1")


def test_space_around_a_token_is_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAPELLE_TOKEN", " secret\n")
    assert address(tmp_path).headers() == {"Authorization": "Bearer secret"}


def test_an_impossible_token_is_refused_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAPELLE_TOKEN", "sec\nret")
    with pytest.raises(InvalidInput, match="from KAPELLE_TOKEN") as refused:
        address(tmp_path).headers()
    assert "sec" not in refused.value.message


def test_a_token_is_never_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAPELLE_HOME", str(tmp_path))
    shown = internal_error(ValueError("Invalid header value b'Bearer hidden'"))
    assert "hidden" not in shown.message
    assert "hidden" not in (tmp_path / "cli-error.log").read_text(encoding="utf-8")
