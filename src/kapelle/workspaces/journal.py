"""What a merge is about to do to checkouts, written down so that a crash can be made good."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.workspaces.marker import write_durably


@dataclass(frozen=True)
class Move:
    """A branch that goes from one commit to another, with the checkouts that go along."""

    ref: str
    old: str
    new: str
    toplevels: tuple[str, ...]
    task_id: str


class Journal:
    """At most one move for each repository."""

    def __init__(self, directory: Path, common_dir: Path) -> None:
        self._path = directory / f"{hashlib.sha256(os.fsencode(common_dir)).hexdigest()[:32]}.json"
        self._common_dir = str(common_dir)

    def write(self, move: Move) -> None:
        write_durably(
            self._path, json.dumps({"common_dir": self._common_dir, "move": asdict(move)})
        )

    def read(self) -> Move | None:
        try:
            record = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise WorkspaceError(f"{self._path} is damaged: {error}.") from error
        if record["common_dir"] != self._common_dir:
            return None
        move = record["move"]
        toplevels = tuple(move["toplevels"])
        task_id = move.get("task_id", "")
        return Move(move["ref"], move["old"], move["new"], toplevels, task_id)

    @staticmethod
    def repository_of(path: Path) -> Path | None:
        """The repository that a journal is about, or None when it is just being cleared."""
        try:
            return Path(json.loads(path.read_text("utf-8"))["common_dir"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise WorkspaceError(f"{path} is damaged: {error}.") from error

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
