"""The commits of an owner's branch."""

import re
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import InvalidInput
from kapelle.workspaces.commit import commit_now
from kapelle.workspaces.git import Git
from kapelle.workspaces.marker import Marker
from kapelle.workspaces.refs import commit_of, empty_tree, repository_place
from kapelle.workspaces.skeleton import Skeletons

_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True)
class Commit:
    """One commit: its full id, and the first paragraph of its message in one line."""

    id: str
    subject: str


async def tip_of(git: Git, marker: Marker) -> str:
    """The commit that the branch holds, or the base commit when there is no branch."""
    return await commit_now(git, marker) or marker.base_commit


async def require_commit(git: Git, marker: Marker, text: str) -> str:
    """The full id of a commit of the repository, unchanged; anything else raises InvalidInput."""
    is_full = len(text) == len(empty_tree(marker.object_format)) and _HEX.fullmatch(text)
    place = repository_place(Path(marker.common_dir))
    if not is_full or await commit_of(git, place, text) != text:
        raise InvalidInput(
            f"{text!r} is not the full id of a commit of {marker.toplevel}.",
            hint="`git rev-parse` gives the full id.",
        )
    return text


async def log_of(git: Git, skeletons: Skeletons, marker: Marker, limit: int | None) -> list[Commit]:
    """What the branch gained since its base, newest first; a branch taken in counts as one."""
    bound = () if limit is None else (f"--max-count={max(limit, 0)}",)
    output = await git.run(
        await skeletons.reading(marker.lender),
        *("rev-list", "--first-parent", "--no-commit-header", "--format=%H %s", *bound),
        *(await tip_of(git, marker), f"^{marker.base_commit}", "--"),
    )
    lines = output.stdout.decode("utf-8", "replace").split("\n")
    return [Commit(*line.split(" ", 1)) for line in lines if line]
