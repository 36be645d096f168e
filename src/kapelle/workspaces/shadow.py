"""Bare repositories of our own that borrow the user's objects and none of the configuration."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kapelle.domain.errors import Conflict
from kapelle.workspaces.git import Git, GitLocation
from kapelle.workspaces.repository import WorkTree
from kapelle.workspaces.signature import Signing

_LEFTOVER_AGE_S = 86_400
_SNAPSHOT_AGE_DAYS = 30


class Objects(GitLocation):
    """The commits and trees of one repository, looked at and added to through a shadow."""

    @property
    def _repository(self) -> Path:
        return Path(self.variables["GIT_OBJECT_DIRECTORY"]).parent

    async def is_ancestor(self, old: str, new: str) -> bool:
        if old == new:
            return True
        output = await self.run("merge-base", "--is-ancestor", old, new, ok=(0, 1))
        return output.code == 0

    async def tree_of(self, commit: str, *, remembered: bool = True) -> str:
        """The tree of a commit; asked of git again when it has to be there still."""
        if remembered and (known := self.git.trees.get((self._repository, commit))) is not None:
            return known
        options = ("rev-parse", "--verify", "--quiet", "--end-of-options")
        tree = (await self.run(*options, f"{commit}^{{tree}}")).line
        self.git.trees[self._repository, commit] = tree
        return tree

    async def commit(
        self,
        tree: str,
        parents: list[str],
        message: str,
        signing: Signing | None = None,
        **variables: str,
    ) -> str:
        """A new commit of the tree; variables of git say who made it and when.

        Raises Conflict if it is to be signed and cannot be.
        """
        ancestry = [argument for parent in parents for argument in ("-p", parent)]
        text = message.replace("\0", "").encode("utf-8", "backslashreplace")
        place = self.with_variables(**variables)
        arguments = ("commit-tree", *ancestry, "-F", "-")
        if signing is None:
            output = await place.run(*arguments, tree, stdin=text + b"\n")
        else:
            place = place.with_settings(*signing.settings).with_variables(**signing.variables)
            output = await place.run(*arguments, "-S", tree, stdin=text + b"\n", ok=(0, 1, 128))
            if output.code != 0:
                raise _unsigned(output.stderr)
        commit = output.line
        self.git.trees[self._repository, commit] = tree
        return commit

    async def commit_unless_held(self, tree: str, parents: list[str], message: str) -> str:
        """A commit of the tree, or the only parent itself when it holds that tree already."""
        if len(parents) == 1 and await self.tree_of(parents[0]) == tree:
            return parents[0]
        return await self.commit(tree, parents, message)


def _unsigned(stderr: str) -> Conflict:
    """The error of a commit that could not be signed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    told = [line for line in lines if "failed to write commit object" not in line]
    return Conflict(
        f"The commit could not be signed, and nothing was changed: {' '.join(told)[:500]}",
        hint="Does `git commit -S --allow-empty -m test` work without a question? "
        "`kapelle config set git.sign never` makes unsigned merges.",
    )


class Shadows:
    """One shadow for each object format, made when first needed."""

    def __init__(self, git: Git, home: Path) -> None:
        self.git = git
        self._directory = home / "git"
        self._scratch = home / "tmp"

    def objects(self, tree: WorkTree) -> Objects:
        """For looking at commits and trees of a repository, and writing new ones there."""
        shadow = self._shadow(tree.object_format)
        variables = {"GIT_DIR": str(shadow), "GIT_OBJECT_DIRECTORY": str(tree.object_dir)}
        shallow = tree.common_dir / "shallow"
        if shallow.exists():
            variables["GIT_SHALLOW_FILE"] = str(shallow)
        return Objects(self.git, shadow, variables)

    def objects_in(self, directory: Path, tree: WorkTree, *more: Path) -> Objects:
        """Like objects, but new ones go to a directory of ours."""
        directory.mkdir(parents=True, exist_ok=True)
        return self.objects(tree).with_variables(
            GIT_OBJECT_DIRECTORY=str(directory),
            GIT_ALTERNATE_OBJECT_DIRECTORIES=_path_list((tree.object_dir, *more)),
        )

    def snapshots(self, object_format: str) -> Path:
        """Where objects are kept that no repository of the user's is to hold."""
        return self._shadow(object_format) / "objects"

    def _shadow(self, object_format: str) -> Path:
        target = self._directory / f"{object_format}.git"
        if (target / "HEAD").exists():
            return target
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.scratch() as scratch:
            for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
                (scratch / name).mkdir(parents=True)
            config = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n[extensions]\n"
            (scratch / "config").write_text(f"{config}\tobjectformat = {object_format}\n")
            (scratch / "HEAD").write_text("ref: refs/heads/none\n")
            try:
                scratch.rename(target)
            except OSError:
                if not (target / "HEAD").exists():
                    raise
        return target

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private directory for throw-away indexes and objects."""
        self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def tidy(self) -> None:
        """Drop old snapshots, and what killed processes left in the scratch directory."""
        for shadow in self._directory.glob("*.git"):
            expire = f"--expire={_SNAPSHOT_AGE_DAYS}.days.ago"
            await GitLocation(self.git, shadow, {"GIT_DIR": str(shadow)}).run("prune", expire)
        await asyncio.to_thread(_remove_older, self._scratch, time.time() - _LEFTOVER_AGE_S)


def _path_list(paths: Sequence[Path]) -> str:
    # Quoted, because a path may hold the separator.
    escaped = (str(path).replace("\\", "\\\\").replace('"', '\\"') for path in paths)
    return os.pathsep.join(f'"{path}"' for path in escaped)


def _remove_older(directory: Path, before: float) -> None:
    for entry in directory.iterdir() if directory.exists() else ():
        if entry.lstat().st_mtime < before:
            shutil.rmtree(entry, ignore_errors=True)
