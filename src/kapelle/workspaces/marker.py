"""The file that says that a worktree is complete, and all that is needed to work with it later."""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from kapelle.domain.errors import WorkspaceError
from kapelle.domain.specs import WorkspaceKind
from kapelle.domain.task import Workspace
from kapelle.workspaces.content import WorkTree
from kapelle.workspaces.discovery import linked_gitdir
from kapelle.workspaces.identity import is_real_directory, is_same_directory
from kapelle.workspaces.names import BRANCHES, plain_name
from kapelle.workspaces.skeleton import Lender


@dataclass(frozen=True)
class Marker:
    task_id: str
    path: str
    toplevel: str
    common_dir: str
    gitdir: str
    object_format: str
    branch: str
    base: str
    base_commit: str
    excluded: tuple[str, ...]
    settings: tuple[str, ...]
    ignore: str
    removed: bool = False
    inode: int | None = None

    @property
    def ref(self) -> str:
        return BRANCHES + self.branch

    @property
    def lender(self) -> Lender:
        return Lender(Path(self.common_dir), self.object_format)

    @property
    def present(self) -> bool:
        """Whether the worktree is on the disk and still the directory that Kapelle made."""
        if self.removed:
            return False
        if self.inode is None:
            # Written by an older Kapelle: the link into the repository has to do.
            pointer = linked_gitdir(Path(self.path) / ".git")
            return is_real_directory(Path(self.path)) and pointer == Path(self.gitdir).resolve()
        return is_same_directory(Path(self.path), self.inode)

    def require_present(self) -> None:
        """Raise unless the files at the path are those of the worktree."""
        if self.present:
            return
        first = f"Move {self.path} away. " if os.path.lexists(self.path) else ""
        raise WorkspaceError(
            f"The workspace {self.path} is not the directory that Kapelle made: "
            "it was removed or replaced.",
            hint=f"{first}What was committed is on {self.branch}; "
            "the task's next run makes the workspace anew.",
        )

    @property
    def has_repository(self) -> bool:
        return self.lender.objects.is_dir()

    @property
    def work_tree(self) -> WorkTree:
        return WorkTree(
            directory=Path(self.path),
            index=Path(self.gitdir) / "index",
            lender=self.lender,
            settings=self.settings,
            ignore=self.ignore,
            excluded=self.excluded,
        )

    def as_workspace(self, commit: str | None = None) -> Workspace:
        return Workspace(
            kind=WorkspaceKind.WORKTREE,
            path=self.path,
            branch=self.branch,
            base=self.base,
            base_commit=self.base_commit,
            commit=commit,
        )


class Markers:
    """Markers and intents, side by side with the worktrees they belong to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def worktree(self, task_id: str) -> Path:
        return self.directory / plain_name(task_id)

    def _marker(self, task_id: str) -> Path:
        return self.directory / f"{plain_name(task_id)}.json"

    def _intent(self, task_id: str) -> Path:
        return self.directory / f"{plain_name(task_id)}.making"

    def read(self, task_id: str) -> Marker | None:
        try:
            text = self._marker(task_id).read_text("utf-8")
        except FileNotFoundError:
            return None
        try:
            values = json.loads(text)
            known = {item.name for item in fields(Marker)}
            values = {key: value for key, value in values.items() if key in known}
            for name in ("excluded", "settings"):
                values[name] = tuple(values[name])
            # Derived, because the files at this path are cleaned and deleted.
            values["path"] = str(self.worktree(task_id))
            return Marker(**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WorkspaceError(f"{self._marker(task_id)} is damaged: {error}.") from error

    def require(self, task_id: str) -> Marker:
        marker = self.read(task_id)
        if marker is None:
            raise WorkspaceError(f"{task_id} has no worktree.", hint="Create it first.")
        return marker

    def write(self, marker: Marker) -> None:
        write_durably(self._marker(marker.task_id), json.dumps(asdict(marker), indent=1))

    def forget(self, task_id: str) -> None:
        self._marker(task_id).unlink(missing_ok=True)
        self._intent(task_id).unlink(missing_ok=True)

    def intend(self, task_id: str, common_dir: Path) -> None:
        write_durably(self._intent(task_id), str(common_dir))

    def intended(self, task_id: str) -> Path | None:
        """The repository in which a worktree was begun and perhaps not finished."""
        try:
            return Path(os.fsdecode(self._intent(task_id).read_bytes()))
        except FileNotFoundError:
            return None

    def fulfilled(self, task_id: str) -> None:
        self._intent(task_id).unlink(missing_ok=True)

    def traces(self) -> set[str]:
        """Every task of which anything is here, were it only the marker of what was removed."""
        return self._stems("", ".json", ".making")

    def standing(self) -> set[str]:
        """Every task whose worktree is on the disk, ready or half-made."""
        return self._stems("", ".making")

    def _stems(self, *suffixes: str) -> set[str]:
        # By names alone: there may be thousands of markers, and some of them damaged.
        try:
            names = [Path(name) for name in os.listdir(self.directory)]
        except FileNotFoundError:
            return set()
        return {
            name.stem for name in names if name.suffix in suffixes and not name.name.startswith(".")
        }


def write_durably(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one, whole."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as stream:
        stream.write(os.fsencode(text))
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
