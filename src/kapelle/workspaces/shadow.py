"""Bare repositories of our own that borrow the user's objects and none of the configuration."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kapelle.workspaces.git import Git, Place

_LEFTOVER_AGE_S = 86_400


@dataclass(frozen=True)
class Lender:
    """A repository whose objects are borrowed."""

    common_dir: Path
    object_format: str

    @property
    def objects(self) -> Path:
        return self.common_dir / "objects"


class Shadows:
    """One shadow for each object format, made when first needed."""

    def __init__(self, git: Git, home: Path) -> None:
        self.git = git
        self._directory = home / "git"
        self._scratch = home / "tmp"
        self._making = asyncio.Lock()

    async def directory(self, object_format: str) -> Path:
        target = self._directory / f"{object_format}.git"
        async with self._making:
            if not (target / "HEAD").exists():
                await self._make(target, object_format)
        return target

    async def _make(self, target: Path, object_format: str) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.scratch() as scratch:
            fresh = scratch / "shadow.git"
            await Place(self.git, scratch).run(
                *("init", "--quiet", "--bare", "--template=", "--initial-branch=none"),
                *(f"--object-format={object_format}", "--", str(fresh)),
            )
            try:
                fresh.rename(target)
            except OSError:
                if not (target / "HEAD").exists():
                    raise

    async def reading(self, lender: Lender) -> Place:
        """For looking at commits and trees of the lender, and writing new ones there."""
        shadow = await self.directory(lender.object_format)
        variables = {"GIT_DIR": str(shadow), "GIT_OBJECT_DIRECTORY": str(lender.objects)}
        shallow = lender.common_dir / "shallow"
        if shallow.exists():
            variables["GIT_SHALLOW_FILE"] = str(shallow)
        return Place(self.git, shadow, variables)

    async def writing_to(self, objects: Path, lender: Lender, *more: Path) -> Place:
        """Like reading, but new objects go to a directory of ours."""
        objects.mkdir(parents=True, exist_ok=True)
        place = await self.reading(lender)
        return place.with_variables(
            GIT_OBJECT_DIRECTORY=str(objects),
            GIT_ALTERNATE_OBJECT_DIRECTORIES=_path_list((lender.objects, *more)),
        )

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private directory for throw-away indexes and objects."""
        self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def tidy(self, snapshot_age_days: int) -> None:
        """Drop old snapshots, and what killed processes left in the scratch directory."""
        for shadow in self._directory.glob("*.git"):
            expire = f"--expire={snapshot_age_days}.days.ago"
            await Place(self.git, shadow, {"GIT_DIR": str(shadow)}).run("prune", expire)
        await asyncio.to_thread(_remove_older, self._scratch, time.time() - _LEFTOVER_AGE_S)


def _path_list(paths: Sequence[Path]) -> str:
    # Quoted, because a path may hold the separator.
    escaped = (str(path).replace("\\", "\\\\").replace('"', '\\"') for path in paths)
    return os.pathsep.join(f'"{path}"' for path in escaped)


def _remove_older(directory: Path, before: float) -> None:
    for entry in directory.iterdir() if directory.exists() else ():
        if entry.lstat().st_mtime < before:
            shutil.rmtree(entry, ignore_errors=True)
