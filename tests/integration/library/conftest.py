import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.library.team_setup import TeamSetup


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TeamSetup]:
    """A place to play in, in which no process and no temporary file is left behind."""
    made = TeamSetup(tmp_path)
    monkeypatch.setenv("KAPELLE_HOME", str(tmp_path / "kapelle"))
    monkeypatch.setenv("TMPDIR", str(made.temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(made.temporary))
    yield made
    assert made.processes() == []
    assert list(made.temporary.iterdir()) == []
