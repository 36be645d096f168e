"""What changed: from a commit or a snapshot to the files as they are now."""

from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import InvalidInput, WorkspaceError
from kapelle.workspaces.commit import commit_now, read_heads, require_commit, tip_of
from kapelle.workspaces.files import shown_path
from kapelle.workspaces.git import CONTENT_TIMEOUT_S, Git, Place
from kapelle.workspaces.refs import empty_tree, head_commit
from kapelle.workspaces.repository import Checkout, find_checkout, read_settings
from kapelle.workspaces.shadow import Lender, Shadows
from kapelle.workspaces.staging import Staging, WorkTree
from kapelle.workspaces.worktree import Marker

MAX_PATCH = 64 * 1024 * 1024
_DIFF = ("diff-tree", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty")
_PATCH = ("-p", "--binary", "--full-index", "-M", "--src-prefix=a/", "--dst-prefix=b/")


@dataclass(frozen=True)
class Diff:
    """A patch that git can apply, its summary, and the paths it touches."""

    patch: bytes
    stat: str
    files: list[str]
    truncated: bool = False


async def diff_worktree(marker: Marker) -> Diff:
    """From the base commit to the worktree's files, or to the branch when the worktree is gone."""
    with marker.shadows.scratch() as scratch:
        place, new = await _content(marker, scratch)
        return await _diff(place, marker.base_commit, new)


async def worktree_changed(marker: Marker) -> bool:
    with marker.shadows.scratch() as scratch:
        place, new = await _content(marker, scratch)
        return await _differ(place, marker.base_commit, new)


async def uncommitted_files(marker: Marker) -> list[str]:
    """Files of the worktree that differ from what the branch holds."""
    with marker.shadows.scratch() as scratch:
        place, new = await _content(marker, scratch)
        return await _names(place, await tip_of(marker), new)


async def diff_commits(marker: Marker, old: str, new: str) -> Diff:
    """Between two commits of the repository, given by their full ids."""
    for commit in (old, new):
        await require_commit(marker, commit)
    return await _diff(await marker.reading(), old, new)


async def take_snapshot(shadows: Shadows, directory: Path) -> str:
    """The tree of a repository's files as they are now, kept in our own object store."""
    checkout, work_tree = await _in_place(shadows.git, directory)
    ours = await shadows.directory(work_tree.lender.object_format) / "objects"
    place = await shadows.writing_to(ours, work_tree.lender)
    with shadows.scratch() as scratch:
        staging = Staging(place, work_tree, scratch)
        return (await staging.stage(await head_commit(shadows.git, checkout))).tree


async def diff_since_snapshot(shadows: Shadows, directory: Path, tree: str) -> Diff:
    checkout, work_tree = await _in_place(shadows.git, directory)
    if len(tree) != len(empty_tree(work_tree.lender.object_format)) or not tree.isalnum():
        raise InvalidInput(f"{tree!r} is not a snapshot of this repository.")
    ours = await shadows.directory(work_tree.lender.object_format) / "objects"
    with shadows.scratch() as scratch:
        place = await shadows.writing_to(scratch / "objects", work_tree.lender, ours)
        staging = Staging(place, work_tree, scratch)
        staged = await staging.stage(await head_commit(shadows.git, checkout))
        return await _diff(place, tree, staged.tree)


async def _content(marker: Marker, scratch: Path) -> tuple[Place, str]:
    if marker.present:
        place = await marker.shadows.writing_to(scratch / "objects", marker.lender)
        try:
            heads = await read_heads(marker)
            staged = await Staging(place, marker.work_tree, scratch).stage(heads.parent)
        except WorkspaceError:
            if marker.present:
                raise
        else:
            # Replaced meanwhile, it may have been foreign files that were staged.
            if marker.present:
                return place, staged.tree
    branch = await commit_now(marker)
    return await marker.reading(), branch or marker.base_commit


async def _in_place(git: Git, directory: Path) -> tuple[Checkout, WorkTree]:
    checkout = find_checkout(directory)
    if checkout is None:
        raise WorkspaceError(f"{directory} is not in a git repository.")
    configured = await read_settings(git, checkout)
    lender = Lender(checkout.common_dir, configured.object_format)
    index = checkout.gitdir / "index"
    return checkout, WorkTree(
        checkout.toplevel, index, lender, configured.settings, configured.ignore
    )


async def _diff(place: Place, old: str, new: str) -> Diff:
    """Paths, summary and patch, in this order, out of one call: only the patch may be cut short."""
    output = await place.run(
        *(*_DIFF, *_PATCH, "-r", "-z", "--raw", "--stat=120", old, new, "--"),
        timeout_s=CONTENT_TIMEOUT_S,
        max_output=MAX_PATCH,
    )
    files: set[bytes] = set()
    rest = output.stdout
    while rest.startswith(b":"):
        header, rest = rest.split(b"\0", 1)
        # A rename names both paths.
        count = 2 if header.rsplit(b" ", 1)[1].startswith((b"R", b"C")) else 1
        *names, rest = rest.split(b"\0", count)
        files.update(names)
    stat, _, patch = rest.partition(b"\0")
    return Diff(
        patch=patch,
        stat=stat.decode("utf-8", "backslashreplace"),
        files=[shown_path(name) for name in sorted(files)],
        truncated=output.truncated,
    )


async def _names(place: Place, old: str, new: str) -> list[str]:
    arguments = (*_DIFF, "-r", "-z", "--name-only", "--no-renames", old, new, "--")
    return [shown_path(name) for name in (await place.run(*arguments)).fields]


async def _differ(place: Place, old: str, new: str) -> bool:
    output = await place.run(*_DIFF, "--quiet", old, new, "--", ok=(0, 1))
    return output.code == 1
