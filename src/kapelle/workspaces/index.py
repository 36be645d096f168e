"""The content of a work tree as a git tree, made with a throw-away index and plumbing only.

`git add` is not used: it runs `git status` inside nested repositories, under their configuration.
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
from kapelle.workspaces.repository import WorkTree, digest_of, open_file

_GITLINK = b"160000"
# Tags of ls-files -v for what is not looked at: skip-worktree, and assume-unchanged in lower case.
_HIDDEN = (b"S", b"s", b"h")
# Those for what is not as the index has it, and for what a conflict left there several times.
_DIFFERING = (b"C", b"M")
_MAX_NESTING = 20
# An index of five million files has about this size.
_LARGEST_INDEX = 512 << 20
_CHUNK = 1 << 20
_RETRY_PAUSES_S = (0.01, 0.05, 0.2)


def files_place(place: GitLocation, work_tree: WorkTree, index: Path) -> GitLocation:
    """For commands that read or write the files of a work tree through an index."""
    top = work_tree.toplevel
    variables = {"GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(top)}
    return GitLocation(place.git, top, {**place.variables, **variables}, work_tree.settings)


@dataclass(frozen=True)
class _IndexDifferences:
    """How the files of a work tree differ from its index."""

    removed: list[bytes]
    changed: list[bytes]
    others: list[bytes]  # that it does not know, and that are not ignored
    submodules: list[bytes]


class Staging:
    """Brings a throw-away copy of a work tree's index up to date with its files."""

    def __init__(self, place: GitLocation, work_tree: WorkTree, scratch: Path) -> None:
        self._work_tree = work_tree
        self.index = scratch / "index"
        self._no_index = scratch / "no-index"
        self._is_touched = False
        self._added: list[bytes] = []
        self._untracked_at_top: list[bytes] = []
        ignore = scratch / "ignore"
        ignore.write_text(work_tree.ignore, "utf-8", "surrogateescape")
        files = files_place(place, work_tree, self.index)
        self._place = files.with_settings(f"core.excludesFile={ignore}")
        self._excluded = tuple(os.fsencode(path) for path in work_tree.excluded)

    async def stage(self, fallback: str | None, *, flatten: bool = False) -> str:
        """The tree of the files as they are; an unusable index is rebuilt from the fallback."""
        try:
            digest = await asyncio.to_thread(copy_index, self._work_tree.index, self.index)
            if digest is not None:
                return await self._stage(flatten, digest)
        except (Conflict, GitError):
            self.index.unlink(missing_ok=True)
        if fallback is not None:
            await self._place.run("read-tree", fallback)
        return await self._stage(flatten, None)

    async def include(self, paths: list[bytes]) -> str:
        """Stage these files as well, ignored or not; returns the tree with them."""
        await self._add([path for path in paths if self._can_be_added(path, is_link=False)])
        return await self._write_tree()

    async def require_filters(self, parent: str, tree: str) -> None:
        """Raise FilterMissing if a file staged since the parent needs a filter that may not run."""
        names = [name for name in self._added if not self._is_excluded(name)]
        await require_filters(self._place, self._work_tree, names, parent, tree)

    async def ignored(self, paths: list[bytes]) -> list[bytes]:
        """Those of the files that staging passed over."""
        known = set((await self._place.run("ls-files", "-z")).fields)
        left = [path for path in paths if path not in known and not self._is_excluded(path)]
        return [path for path in left if self._can_be_added(path, is_link=False)]

    async def nested_repositories(self, *, as_staged: bool = False) -> list[Path]:
        """Directories that hold a repository of their own and no file that the index knows.

        As staged means that nothing was changed since stage(), so that what it saw is good enough.
        """
        is_seen = as_staged and not self._is_touched
        if is_seen:
            found = self._untracked_at_top
        else:
            found = await self._others(self._place)
        names = [name for name in found if name.endswith(b"/")]
        kept = [name for name in names if not self._is_excluded(name.rstrip(b"/"))]
        return [self._work_tree.toplevel / os.fsdecode(name) for name in kept]

    async def _stage(self, flatten: bool, digest: str | None) -> str:
        self._is_touched = False
        self._added = []
        seen = await self._look()
        await self._remove(seen.removed)
        await self._add(seen.changed)
        flattened = flatten and await self._flatten(seen.submodules)
        # Where something went, git may find what it hid.
        if seen.removed or flattened:
            others = None
        else:
            others = seen.others
        await self._add(await self._untracked(self._place, others=others))
        tree = None
        if digest is not None and not self._is_touched:
            tree = self._place.git.index_trees.get((self._work_tree.common_dir, digest))
        return tree or await self._write_tree()

    async def _write_tree(self) -> str:
        tree = (await self._place.run("write-tree")).line
        # Elsewhere its objects do not last.
        if self._place.variables["GIT_OBJECT_DIRECTORY"] == str(self._work_tree.object_dir):
            digest = digest_of(await asyncio.to_thread(self.index.read_bytes))
            self._place.git.index_trees[self._work_tree.common_dir, digest] = tree
        return tree

    async def _look(self) -> "_IndexDifferences":
        """How the files differ from the index: one process for all of it."""
        arguments = ("-z", "-v", "--stage", "--modified", "--others", "--exclude-standard")
        fields = (await self._place.run("ls-files", *arguments)).fields
        others = [field[2:] for field in fields if field.startswith(b"? ")]
        # A tag, mode, object and stage, then the path.
        entries = [field.split(b"\t", 1) for field in fields if not field.startswith(b"? ")]
        if await self._unhide([path for head, path in entries if head[:1] in _HIDDEN]):
            return await self._look()
        is_submodule = {path: head[2:].startswith(_GITLINK) for head, path in entries}
        differing = {path for head, path in entries if head[:1].upper() in _DIFFERING}
        # It looks through a link in the place of a directory, and the link may be ignored.
        top = os.fsencode(self._work_tree.toplevel)
        known = set(map(os.path.dirname, is_submodule))
        behind = await asyncio.to_thread(_links, top, known)
        removed = {path for path in is_submodule if path.startswith(behind)}
        for path in differing - removed:
            if not self._can_be_added(path, is_link=is_submodule[path]):
                removed.add(path)
        submodules = {path for path in is_submodule if is_submodule[path]} - removed
        return _IndexDifferences(
            sorted(removed), sorted(differing - removed), others, sorted(submodules)
        )

    async def _unhide(self, paths: list[bytes]) -> bool:
        """Have git look at files that the index tells it not to, if they are there; whether any
        were. Those that a sparse checkout leaves out are not."""
        present = [path for path in paths if self._can_be_added(path, is_link=False)]
        for option in ("--no-assume-unchanged", "--no-skip-worktree") if present else ():
            await self._place.run("update-index", "-z", option, "--stdin", stdin=present)
        self._is_touched |= bool(present)
        return bool(present)

    def _can_be_added(self, path: bytes, *, is_link: bool) -> bool:
        try:
            mode = os.lstat(os.path.join(os.fsencode(self._work_tree.toplevel), path)).st_mode
        except OSError:
            return False
        return stat.S_ISREG(mode) or stat.S_ISLNK(mode) or (is_link and stat.S_ISDIR(mode))

    async def _untracked(
        self,
        place: GitLocation,
        prefix: bytes = b"",
        depth: int = 0,
        others: list[bytes] | None = None,
    ) -> list[bytes]:
        """Untracked files that are not ignored; nested repositories give their files.

        Others is what git says of this place, if it was asked.
        """
        if depth > _MAX_NESTING:
            raise WorkspaceError(f"Repositories are nested too deeply in {place.cwd}.")
        paths = []
        if others is None:
            others = await self._others(place)
        else:
            others = others
        if depth == 0:
            self._untracked_at_top = others
        for name in others:
            if name.endswith(b"/"):
                if not self._is_excluded(prefix + name.rstrip(b"/")):
                    paths += await self._nested(place, prefix, name, depth)
            else:
                paths.append(prefix + name)
        return paths

    async def _others(self, place: GitLocation) -> list[bytes]:
        arguments = ("ls-files", "-z", "--others", "--exclude-standard")
        return (await place.run(*arguments)).fields

    async def _nested(
        self, place: GitLocation, prefix: bytes, name: bytes, depth: int
    ) -> list[bytes]:
        directory = place.cwd / os.fsdecode(name)
        inside = replace(place, cwd=directory).with_variables(
            GIT_WORK_TREE=str(directory), GIT_INDEX_FILE=str(self._no_index)
        )
        return await self._untracked(inside, prefix + name, depth + 1)

    async def _flatten(self, submodules: list[bytes]) -> bool:
        """Replace each populated submodule by its files, so that unpublished work in it is kept.

        Returns whether there was one.
        """
        top = os.fsencode(self._work_tree.toplevel)
        found = [path for path in submodules if os.path.lexists(os.path.join(top, path, b".git"))]
        for path in found:
            await self._remove([path])
            await self._add(await self._nested(self._place, b"", path + b"/", 0))
        return bool(found)

    def _is_excluded(self, path: bytes) -> bool:
        return any(path == item or path.startswith(item + b"/") for item in self._excluded)

    async def _add(self, paths: list[bytes]) -> None:
        """Files may change under git's hands while an agent works: then it is asked again."""
        wanted = [path for path in paths if not self._is_excluded(path)]
        self._added += wanted
        for pause_s in _RETRY_PAUSES_S:
            try:
                await self._update(wanted, "--stdin")
                return
            except GitError:
                await asyncio.sleep(pause_s)
        await self._update(wanted, "--stdin")

    async def _remove(self, paths: list[bytes]) -> None:
        zero = b"0" * self._work_tree.id_length
        records = [b"0 %s\t%s" % (zero, path) for path in paths if not self._is_excluded(path)]
        await self._update(records, "--index-info")

    async def _update(self, records: list[bytes], mode: str) -> None:
        if records:
            self._is_touched = True
            options = ("-z", "--add", "--remove", "--replace", mode)
            await self._place.run("update-index", *options, stdin=records)


def _links(top: bytes, directories: set[bytes]) -> tuple[bytes, ...]:
    """How paths begin that lead through a link in the place of a directory, or of one above it."""
    seen = set[bytes]()
    links = list[bytes]()
    for directory in directories:
        while directory and directory not in seen:
            seen.add(directory)
            if os.path.islink(os.path.join(top, directory)):
                links.append(directory + b"/")
            directory = os.path.dirname(directory)
    return tuple(links)


async def require_filters(
    place: GitLocation, work_tree: WorkTree, names: list[bytes], old: str, new: str
) -> None:
    """Raise FilterMissing if a file that changed from old to new has a filter that may not run.

    The place reads the files of the work tree, whose attributes count.
    """
    if not names:
        return
    attributes = work_tree.common_dir / "info" / "attributes"
    asking = place.with_settings(f"core.attributesFile={attributes}")
    output = await asking.run("check-attr", "-z", "--stdin", "filter", stdin=names)
    fields = iter(output.fields)
    told = zip(fields, fields, fields, strict=True)
    found = {name: os.fsdecode(value) for name, _, value in told}
    running = {item.split(".")[1] for item in work_tree.settings if item.startswith("filter.")}
    none = {"unspecified", "unset", "set", *running}
    wanting = {name for name, value in found.items() if value not in none}
    if not wanting:
        return
    options = ("-r", "-z", "--name-only", "--ignore-submodules=all", "--diff-filter=AMT")
    changed = (await place.run("diff-tree", *options, old, new, "--")).fields
    if bad := sorted(wanting & set(changed)):
        name = found[bad[0]]
        if len(bad) > 1:
            more = f" and {len(bad) - 1} more"
        else:
            more = ""
        allowed = place.git.filters
        missing = f"filter.{name}.clean"
        why = "is not allowed to run it"
        hint = shlex.quote(json.dumps([*allowed, name]))
        hint = f"kapelle config set git.filters {hint}, and try again."
        if name in allowed:
            why = f"has no {missing}"
            hint = f"Set it as that tool says: git config {missing} …"
        text = f"{os.fsdecode(bad[0])}{more} goes through the filter {name} (.gitattributes), and "
        text += f"Kapelle's git {why}: committed as it is, the file would stand there unfiltered."
        raise FilterMissing(text, hint=hint)


def copy_index(source: Path, target: Path) -> str | None:
    """Copy an index with its time, by which git tells files changed in the same instant. Blocks.

    Returns the digest of its bytes, None if there is no index. Raises Conflict for one that is
    larger than any real index: an agent can make it of any size without using the disk.
    """
    stream = open_file(source)
    if stream is None:
        return None
    with stream:
        status = os.fstat(stream.fileno())
        if status.st_size > _LARGEST_INDEX:
            text = f"{source} is no usable index of git: it is larger than 512 MB."
            raise Conflict(text, hint="Remove it, type git reset in its checkout, and try again.")
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
    """Put an index in the place of another, which may be on another file system."""
    fresh = target.with_name("index.kapelle")
    fresh.unlink(missing_ok=True)
    copy_index(source, fresh)
    fresh.replace(target)


async def obstacles(reading: GitLocation, directory: Path, tree: str, goal: str) -> list[bytes]:
    """What lies in the directory where the goal has files that the tree does not have."""
    options = ("-r", "-z", "--name-only", "--no-renames", "--diff-filter=A")
    what = ("--ignore-submodules=all", tree, goal, "--")
    output = await reading.run("diff-tree", *options, *what)
    return await asyncio.to_thread(_in_the_way, os.fsencode(directory), output.fields)


def _in_the_way(top: bytes, names: list[bytes]) -> list[bytes]:
    @functools.cache  # most names share their directories
    def mode(path: bytes) -> int | None:
        try:
            return os.lstat(os.path.join(top, path)).st_mode
        except OSError:
            return None

    found: set[bytes] = set()
    for name in names:
        parts = name.split(b"/")
        for length in range(1, len(parts) + 1):
            path = b"/".join(parts[:length])
            at = mode(path)
            if at is None or not stat.S_ISDIR(at):
                found |= set() if at is None else {path}
                break
        else:
            found.update(_below(top, name))
    return sorted(found)


def _below(top: bytes, directory: bytes) -> Iterator[bytes]:
    """Every file and link below a directory, but nothing of a repository inside it."""
    try:
        entries = list(os.scandir(os.path.join(top, directory)))
    except OSError:
        return  # git will not get at it either
    for entry in entries:
        path = os.path.join(directory, entry.name)
        if entry.name.lower() == b".git":
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _below(top, path)
        else:
            yield path
