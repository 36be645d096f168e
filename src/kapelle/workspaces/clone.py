"""The repository of a workspace: create it from the user's repository, repair and synchronize it.

It has references, settings, hooks and an index of its own, and borrows the objects of the user's
repository. Everything in it belongs to the agent, who may change or destroy it.
"""

import asyncio
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kapelle.workspaces.files import copy_inside
from kapelle.workspaces.git import Git
from kapelle.workspaces.gitdir import (
    open_directory,
    read_inside_git,
    remove_inside,
    replace_inside,
)
from kapelle.workspaces.refs import BRANCHES, Refs
from kapelle.workspaces.repository import (
    Checkout,
    find_checkout,
    read_configuration,
    read_small_file,
)

# References that a workspace begins with. Archives and stashes are nobody's business there.
_COPIED_REFS = (BRANCHES, "refs/remotes/", "refs/tags/", "refs/notes/")
# Files of the user's git directory that git reads in every work tree.
_COPIED_FILES = ("info/exclude", "info/attributes", "shallow")
_DIRECTORIES = ("objects/info", "objects/pack", "refs/heads", "refs/tags", "info", "hooks")
_ALTERNATES = ("objects", "info", "alternates")
# The file that tells Kapelle's repository from one that an agent made in its place. It holds the
# owner, and the commit of the branch when both repositories last agreed about it.
_NOTE = ("kapelle",)
# Settings that are true of the user's checkout only; a workspace is always a whole checkout.
_SKIPPED = frozenset(
    {
        "core.bare",
        "core.worktree",
        "core.repositoryformatversion",
        "core.sparsecheckout",
        "core.sparsecheckoutcone",
        "index.sparse",
    }
)
_SKIPPED_SECTIONS = ("include.", "includeif.", "extensions.")
_KEPT_EXTENSIONS = frozenset({"extensions.objectformat", "extensions.partialclone"})
# Settings that name another repository; a read-only agent's copy has none of them.
_ELSEWHERE = ("remote.", "branch.", "url.")
_MAX_SMALL = 16 << 20
_MOST_OWN_REFS = 100

ConfigurationEntries = list[tuple[str, str | None]]


class RepositoryState(StrEnum):
    """The states in which a workspace's repository can be found."""

    OURS = "ours"
    MISSING = "missing"
    FOREIGN = "foreign"


@dataclass(frozen=True)
class RepositoryTemplate:
    """References and settings that a workspace takes over from the user's repository."""

    common_dir: Path
    refs: bytes
    settings: ConfigurationEntries


async def read_template(git: Git, common_dir: Path) -> RepositoryTemplate:
    """Read what a workspace's repository takes over, without executing anything."""
    refs = Refs.of(git, common_dir)
    output, settings = await asyncio.gather(
        refs.run("for-each-ref", "--format=%(objectname) %(refname)", *_COPIED_REFS),
        read_configuration(git, common_dir),
    )
    return RepositoryTemplate(common_dir, output.stdout, settings)


def write_repository(
    gitdir: Path,
    template: RepositoryTemplate,
    *,
    owner: str,
    branch: str | None,
    commit: str,
    has_remotes: bool = True,
    workspace: Path | None = None,
) -> None:
    """Create a repository with a branch at a commit, or with a detached HEAD. Blocks.

    There must be nothing at the path. The workspace is named if the repository will be moved there.
    """
    gitdir.mkdir()
    for name in _DIRECTORIES:
        (gitdir / name).mkdir(parents=True, exist_ok=True)
    settings = template.settings
    if not has_remotes:
        settings = [pair for pair in settings if not pair[0].startswith(_ELSEWHERE)]
    (gitdir / "config").write_text(format_configuration(settings), "utf-8", "surrogateescape")
    (gitdir / "packed-refs").write_bytes(template.refs)
    (gitdir.joinpath(*_ALTERNATES)).write_bytes(
        _format_alternates(link_objects(workspace or gitdir.parent, template.common_dir))
    )
    for name in _COPIED_FILES:
        content = read_small_file(template.common_dir / name, _MAX_SMALL)
        if content is not None:
            (gitdir / name).write_bytes(content)
    _copy_hooks(template.common_dir, gitdir)
    if branch is None:
        head = f"{commit}\n"
    else:
        head = f"ref: {branch}\n"
        write_branch(gitdir, owner, branch, commit)
    (gitdir / "HEAD").write_text(head, "utf-8")


def _copy_hooks(common_dir: Path, gitdir: Path) -> None:
    """Copy the user's hooks, which the agent's git runs as in the user's checkout."""
    try:
        names = os.listdir(common_dir / "hooks")
    except OSError:
        return
    for name in names:
        if name.endswith(".sample"):
            continue
        hook = common_dir / "hooks" / name
        with suppress(OSError):
            if hook.is_symlink():
                os.symlink(os.readlink(hook), gitdir / "hooks" / name)
            else:
                copy_inside(common_dir, gitdir, f"hooks/{name}")


def borrowed_path(workspace: Path, common_dir: Path) -> Path:
    """Return the path at which a workspace finds the user's objects.

    A confined process finds them at the same path, although its workspace covers the user's
    repository. On the disk it is a link.
    """
    digest = hashlib.sha256(os.fsencode(common_dir)).hexdigest()[:16]
    return workspace.parents[1] / "objects" / digest


def list_borrowed_objects(workspace: Path, checkout: Path) -> list[tuple[Path, Path]]:
    """Return where the objects lie that a workspace borrows, and the path at which it finds them.

    What the workspace itself says about that may come from an agent.
    """
    repository = find_checkout(checkout)
    if repository is None:
        return []
    common_dir = repository.common_dir
    return [(common_dir / "objects", borrowed_path(workspace, common_dir))]


def exclude_paths(workspace: Path, names: Iterable[str]) -> None:
    """Have the git of a workspace ignore these paths at its top. Blocks."""
    place = ("info", "exclude")
    content = read_inside_git(workspace / ".git", place, _MAX_SMALL) or b""
    lines = content.splitlines()
    missing = [line for line in (os.fsencode(f"/{name}") for name in names) if line not in lines]
    if missing:
        with suppress(OSError):
            replace_inside(workspace / ".git", place, b"\n".join([*lines, *missing, b""]))


def link_objects(workspace: Path, common_dir: Path) -> Path:
    """Create that link if it is missing, and return its path. Blocks."""
    link = borrowed_path(workspace, common_dir)
    target = str(common_dir / "objects")
    if not os.path.islink(link) or os.readlink(link) != target:
        link.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = link.with_name(f"{link.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            fresh.unlink()
        fresh.symlink_to(target)
        fresh.replace(link)
    return link


def _format_alternates(objects: Path) -> bytes:
    """Return the line that borrows the user's objects."""
    path = os.fsencode(objects)
    if path.startswith((b"#", b'"')) or b"\n" in path:
        text = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
        return b'"' + text + b'"\n'
    return path + b"\n"


def format_configuration(settings: Iterable[tuple[str, str | None]]) -> str:
    """Return the text of a configuration file with these settings of a user's repository."""
    entries: ConfigurationEntries = [("core.repositoryformatversion", "0"), ("core.bare", "false")]
    for key, value in settings:
        if key in _KEPT_EXTENSIONS:
            entries[0] = ("core.repositoryformatversion", "1")
        elif key in _SKIPPED or key.startswith(_SKIPPED_SECTIONS):
            continue
        entries.append((key, value))
    lines: list[str] = []
    header = None
    for key, value in entries:
        section, _, rest = key.partition(".")
        subsection, separator, name = rest.rpartition(".")
        if separator:
            name_text = subsection.replace("\\", "\\\\").replace('"', '\\"')
            section = f'{section} "{name_text}"'
        if section != header:
            lines.append(f"[{section}]")
            header = section
        if value is None:
            lines.append(f"\t{name}")
        else:
            lines.append(f"\t{name} = {_quote(value)}")
    return "\n".join(lines) + "\n"


def _quote(value: str) -> str:
    for character, text in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        value = value.replace(character, text)
    return f'"{value}"'


def examine_repository(checkout: Checkout, owner: str) -> RepositoryState:
    """Tell what stands in the place of a workspace's repository."""
    try:
        with open_directory(checkout.gitdir, ()):
            pass
    except OSError:
        if stat.S_ISDIR(_read_mode(checkout.gitdir)):
            return RepositoryState.FOREIGN  # unreadable
        return RepositoryState.MISSING
    if _read_note(checkout.gitdir)[0] == owner:
        return RepositoryState.OURS
    return RepositoryState.FOREIGN


def _read_mode(path: Path) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def repair_repository(checkout: Checkout, branch: str) -> None:
    """Restore what git needs to find the repository, its branch and the user's objects. Blocks."""
    gitdir = checkout.gitdir
    for name in ("objects/pack", "refs/heads"):
        with open_directory(gitdir, name.split("/"), create=True):
            pass
    alternates = _format_alternates(link_objects(checkout.toplevel, checkout.common_dir))
    if read_inside_git(gitdir, _ALTERNATES, _MAX_SMALL) != alternates:
        replace_inside(gitdir, _ALTERNATES, alternates)
    if not os.path.lexists(gitdir / "HEAD"):
        replace_inside(gitdir, ("HEAD",), f"ref: {branch}\n".encode())


def has_configuration(checkout: Checkout) -> bool:
    """Tell whether the repository still has a configuration."""
    return read_inside_git(checkout.gitdir, ("config",), 1) is not None


def write_configuration(checkout: Checkout, template: RepositoryTemplate) -> None:
    """Write the configuration that a new workspace would have."""
    text = format_configuration(template.settings)
    replace_inside(checkout.gitdir, ("config",), text.encode("utf-8", "surrogateescape"))


def restore_settings(checkout: Checkout, template: RepositoryTemplate) -> None:
    """Undo what an agent changed in configuration, attributes and hooks. Blocks.

    They could run a command when a person next uses git in the workspace.
    """
    text = format_configuration(template.settings).encode("utf-8", "surrogateescape")
    if read_inside_git(checkout.gitdir, ("config",), _MAX_SMALL) != text:
        replace_inside(checkout.gitdir, ("config",), text)
    for name in ("config.worktree", "info/attributes"):
        remove_inside(checkout.gitdir, name.split("/"))
    attributes = read_small_file(template.common_dir / "info/attributes", _MAX_SMALL)
    if attributes is not None:
        replace_inside(checkout.gitdir, ("info", "attributes"), attributes)
    with suppress(OSError), open_directory(checkout.gitdir, (), create=True) as directory:
        shutil.rmtree("hooks", dir_fd=directory, ignore_errors=True)
        with suppress(OSError):
            os.unlink("hooks", dir_fd=directory)
        os.mkdir("hooks", 0o755, dir_fd=directory)
    _copy_hooks(template.common_dir, checkout.gitdir)


def write_branch(gitdir: Path, owner: str, ref: str, commit: str) -> None:
    """Set the branch of a workspace's repository, and note that both repositories agree."""
    replace_inside(gitdir, ref.split("/"), f"{commit}\n".encode())
    replace_inside(gitdir, _NOTE, f"{owner}\n{commit}\n".encode())


def read_agreed(gitdir: Path) -> str | None:
    """Return the commit of the branch when both repositories last agreed about it."""
    return _read_note(gitdir)[1]


def _read_note(gitdir: Path) -> tuple[str, str | None]:
    content = read_inside_git(gitdir, _NOTE, _MAX_SMALL) or b""
    owner, *rest = content.decode("utf-8", "replace").splitlines() or [""]
    if rest:
        return owner, rest[0]
    return owner, None


def clear_locks(checkout: Checkout, ref: str) -> None:
    """Remove the locks of a killed git, which only the agent can have started."""
    for name in ("index", "HEAD", ref):
        remove_inside(checkout.gitdir, f"{name}.lock".split("/"))


def list_own_commits(gitdir: Path, present: Mapping[str, str]) -> list[str]:
    """Return the commits of branches and stashes that the user's repository does not hold.

    `present` has the references of the user's repository.
    """
    commits: dict[str, None] = {}
    for ref, commit in _read_own_refs(gitdir).items():
        if present.get(ref) != commit and commit not in present.values():
            commits[commit] = None
    stashes = read_inside_git(gitdir, ("logs", "refs", "stash"), _MAX_SMALL) or b""
    for line in stashes.splitlines():
        words = line.decode("utf-8", "replace").split(" ", 2)
        if len(words) == 3 and words[1].isalnum():
            commits[words[1]] = None
    return list(commits)[:_MOST_OWN_REFS]


def _read_own_refs(gitdir: Path) -> dict[str, str]:
    """Return branches and stash of the repository by name."""
    refs: dict[str, str] = {}
    packed_refs = read_inside_git(gitdir, ("packed-refs",), _MAX_SMALL) or b""
    for line in packed_refs.decode("utf-8", "replace").splitlines():
        commit, _, ref = line.partition(" ")
        if commit.isalnum() and ref.startswith((BRANCHES, "refs/stash")):
            refs[ref] = commit
    top = gitdir / "refs" / "heads"
    names: list[tuple[str, ...]] = [("refs", "stash")]
    for place, _, files in os.walk(top):
        for name in files:
            names.append(Path(place, name).relative_to(gitdir).parts)
    for parts in names:
        content = read_inside_git(gitdir, parts, 100) or b""
        commit = content.decode("utf-8", "replace").strip()
        if commit.isalnum():
            refs["/".join(parts)] = commit
    return refs


def adopt_state(source: Path, gitdir: Path, names: Iterable[str]) -> None:
    """Copy files and directories of another git directory, such as that of a linked worktree."""
    for name in names:
        place = source / name
        with suppress(OSError, shutil.Error):
            if place.is_dir():
                shutil.copytree(place, gitdir / name, symlinks=True, dirs_exist_ok=True)
            elif place.is_file():
                shutil.copyfile(place, gitdir / name)
