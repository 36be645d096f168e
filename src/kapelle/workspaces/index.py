"""Build a git tree of a work tree's content, with a temporary index and plumbing commands only.

`git add` is not used: it runs `git status` inside nested repositories, with their configuration.
"""

import asyncio
import functools
import hashlib
import json
import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kapelle.domain.errors import Conflict, FilterMissing, GitError, WorkspaceError
from kapelle.workspaces.git import GitLocation
from kapelle.workspaces.repository import WorkTree, compute_digest, open_file

_GITLINK = b"160000"
# Tags of ls-files -v for files that git does not examine: skip-worktree, and assume-unchanged in
# lower case.
_HIDDEN = (b"S", b"s", b"h")
# Tags for files that differ from the index, and for entries of a conflict.
_DIFFERING = (b"C", b"M")
_MAX_NESTING = 20
# About the size of an index of five million files.
_LARGEST_INDEX = 512 << 20
_CHUNK = 1 << 20
_RETRY_PAUSES_S = (0.01, 0.05, 0.2)


def make_files_location(place: GitLocation, work_tree: WorkTree, index: Path) -> GitLocation:
    """Return the context for commands that use the files of a work tree through an index."""
    top = work_tree.toplevel
    variables = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(top)}
    return GitLocation(place.git, top, {**place.variables, **variables}, work_tree.settings)


@dataclass(frozen=True)
class _IndexDifferences:
    """The differences between the files of a work tree and its index."""

    missing_names: list[bytes]
    changed_names: list[bytes]
    other_names: list[bytes]  # untracked and not ignored
    submodules: list[bytes]


class Staging:
    """Brings a temporary copy of a work tree's index up to date with its files."""

    def __init__(self, place: GitLocation, work_tree: WorkTree, scratch: Path) -> None:
        self._work_tree = work_tree
        self.index = scratch / "index"
        self._no_index = scratch / "no-index"
        self._is_touched = False
        self._added: list[bytes] = []
        self._untracked_at_top: list[bytes] = []
        ignore = scratch / "ignore"
        ignore.write_text(work_tree.ignore, "utf-8", "surrogateescape")
        files = make_files_location(place, work_tree, self.index)
        self._place = files.with_settings(f"core.excludesFile={ignore}")
        self._excluded = tuple(os.fsencode(path) for path in work_tree.excluded)

    async def stage(
        self, fallback: str | None, *, flatten: bool = False, use_index: bool = True
    ) -> str:
        """Return the tree of the present files; rebuild an unusable index from the fallback."""
        digest = None
        try:
            self.index.unlink(missing_ok=True)
            if use_index:
                digest = await asyncio.to_thread(copy_index, self._work_tree.index, self.index)
            if digest is not None:
                return await self._stage(flatten, digest)
        except (Conflict, GitError):
            self.index.unlink(missing_ok=True)
        if fallback is not None:
            await self._place.run("read-tree", fallback)
        return await self._stage(flatten, None)

    async def include(self, paths: list[bytes]) -> str:
        """Stage these files as well, ignored or not; return the tree with them."""
        await self._add([path for path in paths if self._can_be_added(path, is_link=False)])
        return await self._write_tree()

    async def require_filters(self, parent: str, tree: str) -> None:
        """Raise FilterMissing if a file staged since the parent needs a filter that may not run."""
        names = [name for name in self._added if not self._is_excluded(name)]
        await require_filters(self._place, self._work_tree, names, parent, tree)

    async def find_ignored(self, paths: list[bytes]) -> list[bytes]:
        """Return those of the files that staging left out."""
        names_in_index = set((await self._place.run("ls-files", "-z")).fields)
        names: list[bytes] = []
        for path in paths:
            if path in names_in_index or self._is_excluded(path):
                continue
            if self._can_be_added(path, is_link=False):
                names.append(path)
        return names

    async def find_nested_repositories(self, *, as_staged: bool = False) -> list[Path]:
        """Return directories with a repository of their own and no tracked file.

        `as_staged`: nothing was changed since stage(), so that its findings can be reused.
        """
        is_seen = as_staged and not self._is_touched
        if is_seen:
            others = self._untracked_at_top
        else:
            others = await self._list_others(self._place)
        directories: list[Path] = []
        for name in others:
            # git names a nested repository with a slash at the end.
            if name.endswith(b"/") and not self._is_excluded(name.rstrip(b"/")):
                directories.append(self._work_tree.toplevel / os.fsdecode(name))
        return directories

    async def _stage(self, flatten: bool, digest: str | None) -> str:
        self._is_touched = False
        self._added = []
        differences = await self._find_differences()
        await self._remove(differences.missing_names)
        await self._add(differences.changed_names)
        has_flattened = flatten and await self._flatten(differences.submodules)
        # Files that were hidden by a removed entry may be found now.
        if differences.missing_names or has_flattened:
            others = None
        else:
            others = differences.other_names
        await self._add(await self._list_untracked(self._place, others=others))
        tree = None
        if digest is not None and not self._is_touched:
            # Nothing differs from an index whose tree is known.
            tree = self._place.git.index_trees.get((self._work_tree.common_dir, digest))
        return tree or await self._write_tree()

    async def _write_tree(self) -> str:
        tree = (await self._place.run("write-tree")).line
        # Not cached otherwise: objects elsewhere are temporary.
        if self._place.variables["GIT_OBJECT_DIRECTORY"] == str(self._work_tree.object_dir):
            digest = compute_digest(await asyncio.to_thread(self.index.read_bytes))
            self._place.git.index_trees[self._work_tree.common_dir, digest] = tree
        return tree

    async def _find_differences(self) -> "_IndexDifferences":
        """Compare the files with the index, in a single process."""
        arguments = ("-z", "-v", "--stage", "--modified", "--others", "--exclude-standard")
        fields = (await self._place.run("ls-files", *arguments)).fields
        others: list[bytes] = []
        hidden_names: list[bytes] = []
        is_submodule: dict[bytes, bool] = {}
        differing: set[bytes] = set()
        for field in fields:
            if field.startswith(b"? "):
                others.append(field[2:])
                continue
            # Each entry: tag, mode, object and stage, then the path.
            head, path = field.split(b"\t", 1)
            tag = head[:1]
            is_submodule[path] = head[2:].startswith(_GITLINK)
            if tag in _HIDDEN:
                hidden_names.append(path)
            if tag.upper() in _DIFFERING:
                differing.add(path)
        if await self._unhide(hidden_names):
            return await self._find_differences()
        # git looks through a link in the place of a directory, and the link may be ignored.
        top = os.fsencode(self._work_tree.toplevel)
        directories = set(map(os.path.dirname, is_submodule))
        behind = await asyncio.to_thread(_find_links, top, directories)
        missing_names = {path for path in is_submodule if path.startswith(behind)}
        for path in differing - missing_names:
            if not self._can_be_added(path, is_link=is_submodule[path]):
                missing_names.add(path)
        submodules = {path for path in is_submodule if is_submodule[path]} - missing_names
        return _IndexDifferences(
            sorted(missing_names), sorted(differing - missing_names), others, sorted(submodules)
        )

    async def _unhide(self, paths: list[bytes]) -> bool:
        """Make git examine files that the index hides from it, if they exist.

        Returns whether there were any. Files that a sparse checkout leaves out do not exist.
        """
        present = [path for path in paths if self._can_be_added(path, is_link=False)]
        for option in ("--no-assume-unchanged", "--no-skip-worktree") if present else ():
            await self._place.run("update-index", "-z", option, "--stdin", stdin=present)
        self._is_touched |= bool(present)
        return bool(present)

    def _can_be_added(self, path: bytes, *, is_link: bool) -> bool:
        """Tell whether a path is a file or a link; with `is_link`, a directory too."""
        try:
            mode = os.lstat(os.path.join(os.fsencode(self._work_tree.toplevel), path)).st_mode
        except OSError:
            return False
        return stat.S_ISREG(mode) or stat.S_ISLNK(mode) or (is_link and stat.S_ISDIR(mode))

    async def _list_untracked(
        self,
        place: GitLocation,
        prefix: bytes = b"",
        depth: int = 0,
        others: list[bytes] | None = None,
    ) -> list[bytes]:
        """Return untracked files that are not ignored, also those of nested repositories.

        `others` is git's own list for this place, if it is known already.
        """
        if depth > _MAX_NESTING:
            raise WorkspaceError(f"Repositories are nested too deeply in {place.cwd}.")
        paths = []
        if others is None:
            others = await self._list_others(place)
        else:
            others = others
        if depth == 0:
            self._untracked_at_top = others
        for name in others:
            if name.endswith(b"/"):
                if not self._is_excluded(prefix + name.rstrip(b"/")):
                    paths += await self._list_nested(place, prefix, name, depth)
            else:
                paths.append(prefix + name)
        return paths

    async def _list_others(self, place: GitLocation) -> list[bytes]:
        arguments = ("ls-files", "-z", "--others", "--exclude-standard")
        return (await place.run(*arguments)).fields

    async def _list_nested(
        self, place: GitLocation, prefix: bytes, name: bytes, depth: int
    ) -> list[bytes]:
        directory = place.cwd / os.fsdecode(name)
        inside = replace(place, cwd=directory).with_variables(
            GIT_WORK_TREE=str(directory), GIT_INDEX_FILE=str(self._no_index)
        )
        return await self._list_untracked(inside, prefix + name, depth + 1)

    async def _flatten(self, submodules: list[bytes]) -> bool:
        """Replace each populated submodule by its files, so that unpublished work is kept.

        Returns whether there was one.
        """
        top = os.fsencode(self._work_tree.toplevel)
        populated_paths = [
            path for path in submodules if os.path.lexists(os.path.join(top, path, b".git"))
        ]
        for path in populated_paths:
            await self._remove([path])
            await self._add(await self._list_nested(self._place, b"", path + b"/", 0))
        return bool(populated_paths)

    def _is_excluded(self, path: bytes) -> bool:
        return any(path == item or path.startswith(item + b"/") for item in self._excluded)

    async def _add(self, paths: list[bytes]) -> None:
        """Add files; repeat it when they change while git reads them."""
        names = [path for path in paths if not self._is_excluded(path)]
        self._added += names
        for pause_s in _RETRY_PAUSES_S:
            try:
                await self._update(names, "--stdin")
                return
            except GitError:
                await asyncio.sleep(pause_s)
        await self._update(names, "--stdin")

    async def _remove(self, paths: list[bytes]) -> None:
        zero = b"0" * self._work_tree.id_length
        records = [b"0 %s\t%s" % (zero, path) for path in paths if not self._is_excluded(path)]
        await self._update(records, "--index-info")

    async def _update(self, records: list[bytes], mode: str) -> None:
        if records:
            self._is_touched = True
            options = ("-z", "--add", "--remove", "--replace", mode)
            await self._place.run("update-index", *options, stdin=records)


def _find_links(top: bytes, directories: set[bytes]) -> tuple[bytes, ...]:
    """Return the beginnings of paths that lead through a link in the place of a directory."""
    visited_directories = set[bytes]()
    links = list[bytes]()
    for directory in directories:
        while directory and directory not in visited_directories:
            visited_directories.add(directory)
            if os.path.islink(os.path.join(top, directory)):
                links.append(directory + b"/")
            directory = os.path.dirname(directory)
    return tuple(links)


async def require_filters(
    place: GitLocation, work_tree: WorkTree, names: list[bytes], old: str, new: str
) -> None:
    """Raise FilterMissing if a changed file has a filter that may not run.

    The place reads the files of the work tree, whose attributes count.
    """
    if not names:
        return
    attributes = work_tree.common_dir / "info" / "attributes"
    asking = place.with_settings(f"core.attributesFile={attributes}")
    output = await asking.run("check-attr", "-z", "--stdin", "filter", stdin=names)
    fields = iter(output.fields)
    triples = zip(fields, fields, fields, strict=True)
    filters = {name: os.fsdecode(value) for name, _, value in triples}
    running = {item.split(".")[1] for item in work_tree.settings if item.startswith("filter.")}
    none = {"unspecified", "unset", "set", *running}
    wanting = {name for name, value in filters.items() if value not in none}
    if not wanting:
        return
    options = ("-r", "-z", "--name-only", "--ignore-submodules=all", "--diff-filter=AMT")
    changed_names = (await place.run("diff-tree", *options, old, new, "--")).fields
    if bad := sorted(wanting & set(changed_names)):
        name = filters[bad[0]]
        if len(bad) > 1:
            more = f" and {len(bad) - 1} more"
        else:
            more = ""
        allowed_filters = place.git.filters
        missing = f"filter.{name}.clean"
        why = "may not run it"
        hint = shlex.quote(json.dumps([*allowed_filters, name]))
        hint = f"kapelle config set git.filters {hint}, and try again."
        if name in allowed_filters:
            why = f"has no {missing}"
            hint = f"Set it as the tool documents: git config {missing} …"
        text = f"{os.fsdecode(bad[0])}{more} needs the filter {name} (.gitattributes), but "
        text += f"Kapelle's git {why}: the file would be committed unfiltered."
        raise FilterMissing(text, hint=hint)


def copy_index(source: Path, target: Path) -> str | None:
    """Copy an index with its modification time; return its digest, None if there is none. Blocks.

    git uses the time to notice files that changed in the same instant. Raises Conflict for an index
    that is larger than any real one: an agent can make one of any size without using the disk.
    """
    stream = open_file(source)
    if stream is None:
        return None
    with stream:
        status = os.fstat(stream.fileno())
        if status.st_size > _LARGEST_INDEX:
            text = f"{source} is not a usable git index: it is larger than 512 MB."
            raise Conflict(text, hint="Remove it, run `git reset` in its checkout, and try again.")
        digest = hashlib.sha256()
        with open(target, "wb") as copy:
            remaining = status.st_size
            while chunk := stream.read(min(remaining, _CHUNK)):
                remaining -= len(chunk)
                digest.update(chunk)
                copy.write(chunk)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    return digest.hexdigest()


def install_index(source: Path, target: Path) -> None:
    """Replace an index by another, which may be on another file system."""
    fresh = target.with_name("index.kapelle")
    fresh.unlink(missing_ok=True)
    copy_index(source, fresh)
    fresh.replace(target)


async def find_obstacles(
    reading: GitLocation, directory: Path, tree: str, goal: str
) -> list[bytes]:
    """Return existing paths where the goal has files that the tree does not have."""
    options = ("-r", "-z", "--name-only", "--no-renames", "--diff-filter=A")
    what = ("--ignore-submodules=all", tree, goal, "--")
    output = await reading.run("diff-tree", *options, *what)
    return await asyncio.to_thread(_find_blocking_paths, os.fsencode(directory), output.fields)


def _find_blocking_paths(top: bytes, names: list[bytes]) -> list[bytes]:
    @functools.cache  # most names share their directories
    def mode(path: bytes) -> int | None:
        try:
            return os.lstat(os.path.join(top, path)).st_mode
        except OSError:
            return None

    blocking_paths: set[bytes] = set()
    for name in names:
        parts = name.split(b"/")
        for length in range(1, len(parts) + 1):
            path = b"/".join(parts[:length])
            path_mode = mode(path)
            if path_mode is None or not stat.S_ISDIR(path_mode):
                blocking_paths |= set() if path_mode is None else {path}
                break
        else:
            blocking_paths.update(_list_below(top, name))
    return sorted(blocking_paths)


def _list_below(top: bytes, directory: bytes) -> Iterator[bytes]:
    """Yield every file and link below a directory, without nested repositories."""
    try:
        entries = list(os.scandir(os.path.join(top, directory)))
    except OSError:
        return  # git cannot read it either
    for entry in entries:
        path = os.path.join(directory, entry.name)
        # Some file systems ignore case.
        if entry.name.lower() == b".git":
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _list_below(top, path)
        else:
            yield path
