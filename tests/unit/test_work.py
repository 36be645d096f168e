"""What surrounds a merge: the trust that it costs, and the secrets that it must not carry."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kapelle.domain.errors import GitError
from kapelle.domain.specs import WorkspaceKind
from kapelle.engine.merge import MergeQueue
from kapelle.home import Home
from kapelle.settings import trust


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.mark.parametrize("error", [GitError("git diff failed."), OSError(28, "No space left")])
async def test_trust_is_dropped_where_it_is_not_known_what_was_merged(
    home: Home, tmp_path: Path, error: Exception
) -> None:
    home.root.mkdir()
    for name in ("mine", "other"):
        (tmp_path / name / ".git" / "objects").mkdir(parents=True)
        (tmp_path / name / ".git" / "refs").mkdir()
        (tmp_path / name / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
        (tmp_path / name / ".kapelle").mkdir()
        (tmp_path / name / ".kapelle/config.toml").write_text('checks = ["true"]', encoding="utf-8")
        trust.grant(home, trust.find_executable(home, tmp_path / name))

    async def recall(*_: object) -> None:
        raise error

    parts: Any = SimpleNamespace(home=home, db=None, workspaces=SimpleNamespace(recall=recall))
    workspace = SimpleNamespace(kind=WorkspaceKind.WORKTREE, branch="b", owner=None)
    merged: Any = SimpleNamespace(id="t", directory=str(tmp_path / "mine"), workspace=workspace)
    assert await MergeQueue(parts)._drop_trust(merged) is True
    dropped = {Path(place).name: kept.dropped for place, kept in trust.read_records(home).items()}
    assert dropped == {"mine": True, "other": False}
