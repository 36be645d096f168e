"""Bare repositories of Kapelle that borrow the user's objects but not the configuration."""

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
    """The commits and trees of one repository, read and written through a shadow repository."""

    @property
    def _repository(self) -> Path:
        return Path(self.variables["GIT_OBJECT_DIRECTORY"]).parent

    async def is_ancestor(self, old: str, new: str) -> bool:
        """Tell whether a commit is an ancestor of another one, or the same."""
        if old == new:
            return True
        output = await self.run("merge-base", "--is-ancestor", old, new, ok=(0, 1))
        return output.code == 0

    async def tree_of(self, commit: str, *, use_cache: bool = True) -> str:
        """Return the tree of a commit; without the cache, git confirms that it still exists."""
        if use_cache and (tree := self.git.trees.get((self._repository, commit))) is not None:
            return tree
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
        """Create a commit of the tree; variables of git give author, committer and dates.

        Raises Conflict if it is to be signed and cannot be.
        """
        ancestry: list[str] = []
        for parent in parents:
            ancestry += ["-p", parent]
        text = message.replace("\0", "").encode("utf-8", "backslashreplace")
        place = self.with_variables(**variables)
        arguments = ("commit-tree", *ancestry, "-F", "-")
        if signing is None:
            output = await place.run(*arguments, tree, stdin=text + b"\n")
        else:
            place = place.with_settings(*signing.settings).with_variables(**signing.variables)
            output = await place.run(*arguments, "-S", tree, stdin=text + b"\n", ok=(0, 1, 128))
            if output.code != 0:
                raise _make_signing_error(output.stderr)
        commit = output.line
        self.git.trees[self._repository, commit] = tree
        return commit

    async def commit_unless_held(self, tree: str, parents: list[str], message: str) -> str:
        """Create a commit of the tree, or return the only parent if it has that tree."""
        if len(parents) == 1 and await self.tree_of(parents[0]) == tree:
            return parents[0]
        return await self.commit(tree, parents, message)


def _make_signing_error(stderr: str) -> Conflict:
    """Return the error for a commit that could not be signed."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = [line for line in lines if "failed to write commit object" not in line]
    return Conflict(
        f"The commit could not be signed; nothing was changed: {' '.join(lines)[:500]}",
        hint="Test that `git commit -S --allow-empty -m test` works without a prompt. "
        "To merge unsigned: `kapelle config set git.sign never`.",
    )


class Shadows:
    """One shadow repository for each object format, created on first use."""

    def __init__(self, git: Git, home: Path) -> None:
        self.git = git
        self._directory = home / "git"
        self._scratch = home / "tmp"

    def objects(self, tree: WorkTree) -> Objects:
        """Return the objects of a repository; new ones are written there."""
        shadow = self._make_shadow(tree.object_format)
        variables = {"GIT_DIR": str(shadow), "GIT_OBJECT_DIRECTORY": str(tree.object_dir)}
        shallow = tree.common_dir / "shallow"
        if shallow.exists():
            variables["GIT_SHALLOW_FILE"] = str(shallow)
        return Objects(self.git, shadow, variables)

    def objects_in(self, directory: Path, tree: WorkTree, *more: Path) -> Objects:
        """Return the objects of a repository; new ones are written to a directory of ours."""
        directory.mkdir(parents=True, exist_ok=True)
        return self.objects(tree).with_variables(
            GIT_OBJECT_DIRECTORY=str(directory),
            GIT_ALTERNATE_OBJECT_DIRECTORIES=_path_list((tree.object_dir, *more)),
        )

    def objects_with_intake(self, directory: Path, tree: WorkTree, *more: Path) -> Objects:
        """Return the objects of a repository and of a workspace; new ones are written apart."""
        intake = intake_path(tree.toplevel)
        if tree.is_workspace and intake.is_dir():
            more = (*more, intake)
        return self.objects_in(directory, tree, *more)

    def snapshots(self, object_format: str) -> Path:
        """Return where objects are kept that must not appear in the user's repository."""
        return self._make_shadow(object_format) / "objects"

    def _make_shadow(self, object_format: str) -> Path:
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
                # Renamed as a whole, so that a repository is either complete or absent.
                scratch.rename(target)
            except OSError:
                if not (target / "HEAD").exists():
                    raise
        return target

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Make a private directory for temporary indexes and objects, and remove it at the end."""
        self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def tidy(self) -> None:
        """Delete old snapshots, and what killed processes left in the scratch directory."""
        for shadow in self._directory.glob("*.git"):
            expire = f"--expire={_SNAPSHOT_AGE_DAYS}.days.ago"
            await GitLocation(self.git, shadow, {"GIT_DIR": str(shadow)}).run("prune", expire)
        await asyncio.to_thread(_remove_older, self._scratch, time.time() - _LEFTOVER_AGE_S)


def intake_path(toplevel: Path) -> Path:
    """Return where the objects are kept that were copied from a workspace's repository."""
    return toplevel.with_name(f".{toplevel.name}.intake") / "objects"


def fresh_path(toplevel: Path) -> Path:
    """Return where a new repository for a workspace is made before it is moved there."""
    return toplevel.with_name(f".{toplevel.name}.repository")


def _path_list(paths: Sequence[Path]) -> str:
    # Quoted, because a path may contain the separator.
    texts: list[str] = []
    for path in paths:
        text = str(path).replace("\\", "\\\\").replace('"', '\\"')
        texts.append(f'"{text}"')
    return os.pathsep.join(texts)


def _remove_older(directory: Path, before: float) -> None:
    for entry in directory.iterdir() if directory.exists() else ():
        if entry.lstat().st_mtime < before:
            shutil.rmtree(entry, ignore_errors=True)
