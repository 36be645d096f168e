"""Find the user's repository, and read the few harmless settings that Kapelle takes from it.

The repository is found by reading files, so that core.worktree cannot redirect git.
"""

import hashlib
import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kapelle.domain.errors import WorkspaceError
from kapelle.runner.shim import files
from kapelle.workspaces.git import Git, GitLocation

_MAX_POINTER = 65_536
_HARMLESS = ("core.autocrlf", "core.eol", "core.filemode", "core.symlinks", "core.ignorecase")
_KEYS = r"^(core\.(autocrlf|eol|filemode|symlinks|ignorecase|excludesfile)|extensions\..*)$"
_FILTER_KEYS = r"^filter\..*\.(clean|smudge|process)$"
# Variables that Kapelle sets for git, and that a filter's own programs must not inherit.
_OURS = (
    "GIT_CONFIG_PARAMETERS GIT_CONFIG_COUNT GIT_CONFIG_GLOBAL GIT_CONFIG_NOSYSTEM GIT_INDEX_FILE "
    "GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_WORK_TREE GIT_SSH_COMMAND "
    "GIT_NO_LAZY_FETCH GIT_SHALLOW_FILE"
)
_MAX_IGNORE = 1_000_000
_MAX_MARKER = 1_000_000
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True)
class Checkout:
    """A work tree with its own git directory and the common one of the repository.

    For a workspace of Kapelle, the common one is that of the user's repository.
    """

    toplevel: Path
    gitdir: Path
    common_dir: Path

    @property
    def is_workspace(self) -> bool:
        """Tell whether this is a workspace of Kapelle with a repository of its own."""
        return self.gitdir != self.common_dir and self.gitdir == self.toplevel / ".git"

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables that select this repository.

        Both directories are named, so that a planted commondir file cannot redirect git. For a
        workspace, this is the user's repository: git never runs in that of an agent.
        """
        if self.is_workspace:
            return {"GIT_DIR": str(self.common_dir)}
        variables = {"GIT_DIR": str(self.gitdir)}
        if self.gitdir != self.common_dir:
            variables["GIT_COMMON_DIR"] = str(self.common_dir)
        return variables

    @property
    def index(self) -> Path:
        return self.gitdir / "index"

    @property
    def object_dir(self) -> Path:
        return self.common_dir / "objects"


@dataclass(frozen=True)
class WorkTree(Checkout):
    """A checkout with the conversions and ignored names of its repository and user.

    Excluded paths stay out of commits.
    """

    object_format: str
    settings: tuple[str, ...]
    ignore: str
    excluded: tuple[str, ...] = ()

    @property
    def id_length(self) -> int:
        if self.object_format == "sha256":
            return 64
        return 40

    def is_id(self, text: str) -> bool:
        """Tell whether a text can be the full id of an object of this repository."""
        return len(text) == self.id_length and _HEX.fullmatch(text) is not None


def find_checkout(directory: Path) -> Checkout | None:
    """Return the innermost work tree that contains the directory, or None."""
    for candidate in _upwards(directory):
        # A directory inside of .git belongs to no work tree.
        if candidate.name == ".git":
            return None
        if (checkout := read_checkout(candidate)) is not None:
            return checkout
    return None


def checkouts_around(directory: Path) -> tuple[Path, ...]:
    """Return the work tree around a directory, and the repository's main one if it differs."""
    checkout = find_checkout(directory)
    if checkout is None:
        return ()
    if checkout.common_dir.name == ".git":
        main = checkout.common_dir.parent
    else:
        main = checkout.toplevel
    return tuple(dict.fromkeys((checkout.toplevel, main)))


def repository_of(directory: str) -> str:
    """Return the top of the repository around a directory, or the directory itself.

    All worktrees of a repository have the same top.
    """
    tops = checkouts_around(Path(directory))
    if tops:
        return str(tops[-1])
    return os.path.realpath(directory)


def is_git_directory(directory: Path) -> bool:
    """Tell whether a directory is inside a bare repository or a .git directory."""
    for candidate in _upwards(directory):
        # The same parts by which git recognizes a bare repository.
        has_parts = (candidate / "objects").is_dir() and (candidate / "refs").is_dir()
        if candidate.name == ".git" or (has_parts and (candidate / "HEAD").is_file()):
            return True
        if read_checkout(candidate) is not None:
            return False
    return False


def _upwards(directory: Path) -> tuple[Path, ...]:
    """Return a directory and all directories above it; nothing if it does not exist."""
    try:
        start = directory.resolve(strict=True)
    except OSError:
        return ()
    if start.is_dir():
        return (start, *start.parents)
    return ()


def read_checkout(toplevel: Path) -> Checkout | None:
    """Return the work tree whose top is exactly this directory, or None."""
    origin = read_origin(toplevel)
    if origin is not None:
        return Checkout(toplevel, toplevel / ".git", origin)
    gitdir = read_gitdir(toplevel / ".git")
    if gitdir is None:
        return None
    common = read_pointer(gitdir / "commondir")
    if common:
        common_dir = (gitdir / common).resolve()
    else:
        common_dir = gitdir
    if not (common_dir / "objects").is_dir() or not (gitdir / "HEAD").exists():
        return None
    return Checkout(toplevel, gitdir, common_dir)


def read_origin(toplevel: Path) -> Path | None:
    """Return the git directory of the repository that a workspace was made from.

    The marker beside the workspace names it, where its agent has no business; None for any other
    directory.
    """
    if toplevel.parent.name != "worktrees":
        return None
    text = read_small_file(toplevel.with_name(f"{toplevel.name}.json"), _MAX_MARKER)
    if text is None:
        return None
    try:
        record = json.loads(text)
        common_dir = Path(record["common_dir"])
        is_ours = record["gitdir"] == str(toplevel / ".git") and not record["removed"]
    except (ValueError, KeyError, TypeError):
        return None
    if is_ours and (common_dir / "objects").is_dir():
        return common_dir
    return None


def read_gitdir(dot_git: Path) -> Path | None:
    """Return the git directory that a .git entry is or points to."""
    if dot_git.is_dir():
        return dot_git.resolve()
    if dot_git.exists():
        text = read_pointer(dot_git)
    else:
        text = None
    if text is None or not text.startswith("gitdir: "):
        return None
    return (dot_git.parent / text.removeprefix("gitdir: ")).resolve()


def read_pointer(path: Path) -> str | None:
    """Return the only line of one of git's small files, or None."""
    line = read_small_file(Path(os.path.realpath(path)), _MAX_POINTER)
    if line is None or b"\0" in line:
        return None
    return line.rstrip(b"\n").decode("utf-8", "surrogateescape")


def read_small_file(path: Path, most: int) -> bytes | None:
    """Return the bytes of a small regular file; None for anything else, such as a link."""
    stream = open_file(path)
    if stream is None:
        return None
    with stream:
        if os.fstat(stream.fileno()).st_size <= most:
            return stream.read(most)
        return None


def open_file(path: Path | str, directory: int | None = None) -> BinaryIO | None:
    """Open a regular file that is not a link, to read; None for anything else."""
    try:
        file = files.open_regular(str(path), directory)
    except OSError:
        return None
    if file is None:
        return None
    return os.fdopen(file, "rb")


def compute_digests(checkout: Checkout) -> dict[str, str]:
    """Return digests of what an agent in a worktree must not change.

    These are HEAD, configuration and hooks of the checkout, and the user's own configuration of
    git. Sections of branches, which git itself writes into the configuration, do not count.
    """
    config = read_small_file(checkout.common_dir / "config", _MAX_IGNORE) or b""
    paths = sorted((checkout.common_dir / "hooks").glob("*"))
    contents: list[tuple[str, bytes | None]] = []
    for hook in paths:
        if hook.suffix != ".sample":
            contents.append((hook.name, read_small_file(hook, _MAX_IGNORE)))
    return {
        "HEAD": read_pointer(checkout.gitdir / "HEAD") or "",
        "configuration": compute_digest(
            re.sub(rb'(?m)^\[branch ".*\n(?:[^\[].*\n?)*', b"", config)
        ),
        "hooks": compute_digest(repr(contents).encode()),
        "your own configuration of git": compute_digest(repr(_own_configuration_files()).encode()),
    }


def _own_configuration_files() -> list[bytes | None]:
    """Return the contents of the files that git reads for this user; None if missing."""
    variables = make_configuration_variables()
    base = variables.get("XDG_CONFIG_HOME") or str(Path(variables.get("HOME", "/")) / ".config")
    paths = [variables.get("GIT_CONFIG_GLOBAL"), str(Path(base) / "git" / "config")]
    return [read_small_file(Path(os.path.realpath(path)), _MAX_IGNORE) for path in paths if path]


def is_moved_by_kapelle(checkout: Checkout, ref: str, old: str) -> bool:
    """Tell whether only Kapelle's merges moved a branch since it held a commit."""
    log = read_small_file(checkout.common_dir / "logs" / ref, _MAX_IGNORE) or b""
    since = log.rpartition(b" %s " % old.encode())[2].splitlines()[1:]
    return bool(since) and all(line.partition(b"\t")[2].startswith(b"kapelle: ") for line in since)


def compute_digest(content: bytes) -> str:
    """Return the SHA-256 digest as text."""
    return hashlib.sha256(content).hexdigest()


def count_loose_objects(objects: Path) -> int:
    """Return how many objects of a repository are files of their own."""
    count = 0
    for number in range(256):
        directory = objects / f"{number:02x}"
        if directory.is_dir():
            count += len(os.listdir(directory))
    return count


async def read_work_tree(git: Git, checkout: Checkout) -> WorkTree:
    """Read the settings of a checkout with `git config`, which executes nothing.

    The user's own configuration counts as well.
    """
    variables = {**checkout.variables, **make_configuration_variables()}
    place = GitLocation(git, checkout.common_dir, variables)
    output = await place.run("config", "-z", "--get-regexp", _KEYS, ok=(0, 1))
    values: dict[str, str] = {}
    for record in output.fields:
        key, _, value = record.decode("utf-8", "surrogateescape").partition("\n")
        if not (key == "core.excludesfile" and value == "/dev/null"):
            values[key] = value
    object_format = values.get("extensions.objectformat", "sha1").lower()
    if object_format not in {"sha1", "sha256"}:
        raise WorkspaceError(f"The object format {object_format!r} is not supported.")
    if git.filters:
        filters = await _allowed_filters(place)
    else:
        filters = ()
    mine = _own_ignore_file(values.get("core.excludesfile"))
    places = (mine, checkout.common_dir / "info/exclude")
    ignore_files: list[bytes] = []
    for path in places:
        ignore_files.append(read_small_file(Path(os.path.realpath(path)), _MAX_IGNORE) or b"")
    own = [f"{key}={values[key]}" for key in _HARMLESS if values.get(key, "").isalnum()]
    return WorkTree(
        checkout.toplevel,
        checkout.gitdir,
        checkout.common_dir,
        object_format=object_format,
        settings=(*own, *filters),
        ignore=b"\n".join(ignore_files).decode("utf-8", "surrogateescape"),
    )


async def read_configuration(git: Git, common_dir: Path) -> list[tuple[str, str | None]]:
    """Return the settings of a repository itself, with those of included files.

    A setting without a value is true.
    """
    place = GitLocation(
        git, common_dir, {"GIT_DIR": str(common_dir), **make_configuration_variables()}
    )
    output = await place.run("config", "-z", "--local", "--includes", "--list", ok=(0, 1))
    settings: list[tuple[str, str | None]] = []
    for record in output.fields:
        key, separator, value = record.decode("utf-8", "surrogateescape").partition("\n")
        settings.append((key, value if separator else None))
    return settings


async def read_person(git: Git, common_dir: Path) -> dict[str, str]:
    """Return git variables for the person who works in the repository.

    They come from the repository's and the user's configuration; what neither has is left out.
    """
    place = GitLocation(
        git, common_dir, {"GIT_DIR": str(common_dir), **make_configuration_variables()}
    )
    output = await place.run("config", "-z", "--get-regexp", r"^user\.(name|email)$", ok=(0, 1))
    variables: dict[str, str] = {}
    for record in output.fields:
        key, value = record.decode("utf-8", "replace").split("\n", 1)
        name = key.removeprefix("user.").upper()
        for variable in (f"GIT_AUTHOR_{name}", f"GIT_COMMITTER_{name}"):
            # The last value counts, and an empty one takes an earlier one away.
            variables.pop(variable, None)
            if value.strip():
                variables[variable] = value
    return variables


async def _allowed_filters(place: GitLocation) -> tuple[str, ...]:
    """Return the filters that the user allows, as settings for git."""
    values: dict[str, str] = {}
    # The user's own configuration comes last, so that an agent cannot replace it in the
    # repository's.
    for scope in ((), ("--global",)):
        output = await place.run("config", "-z", *scope, "--get-regexp", _FILTER_KEYS, ok=(0, 1))
        for record in output.fields:
            key, _, value = record.decode("utf-8", "surrogateescape").partition("\n")
            name = key.removeprefix("filter.").rpartition(".")[0]
            if name in place.git.filters and value:
                values[key] = _make_filter_command(place.cwd, value)
                # Without this, git takes the file unfiltered when the filter fails.
                values[f"filter.{name}.required"] = "true"
    return tuple(f"{key}={value}" for key, value in values.items())


def _make_filter_command(common_dir: Path, command: str) -> str:
    """Return a filter's command that runs in the repository itself.

    Filters such as lfs keep their keys and objects there.
    """
    own = {"GIT_DIR": str(common_dir), **make_configuration_variables()}
    own.pop("GIT_CONFIG_GLOBAL", None)
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
    return f"unset {_OURS}; export {variables}; ".replace("%", "%%") + command


def make_configuration_variables() -> dict[str, str]:
    """Return the variables with which git reads this person's own configuration."""
    home = os.environ.get("HOME", "")
    variables = {"HOME": home} if home else {}
    for name in ("GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME"):
        if name in os.environ:
            variables[name] = os.environ[name]
    if "GIT_CONFIG_GLOBAL" not in variables and home:
        usual = Path(home) / ".gitconfig"
        other = Path(variables.get("XDG_CONFIG_HOME") or Path(home) / ".config") / "git" / "config"
        if other.exists() and not usual.exists():
            path = other
        else:
            path = usual
        variables["GIT_CONFIG_GLOBAL"] = str(path)
    return variables


def _own_ignore_file(path: str | None) -> Path:
    if path:
        return Path(path).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or Path(os.environ.get("HOME", "/")) / ".config"
    return Path(base) / "git" / "ignore"
