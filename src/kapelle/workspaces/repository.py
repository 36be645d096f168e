"""The user's repository: where it is, and the few harmless settings taken over from it.

It is found by reading files, so that core.worktree cannot lie.
"""

import hashlib
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
# What Kapelle's git is told by variables, and the programs that a filter calls are not.
_OURS = (
    "GIT_CONFIG_PARAMETERS GIT_CONFIG_COUNT GIT_CONFIG_GLOBAL GIT_CONFIG_NOSYSTEM GIT_INDEX_FILE "
    "GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_WORK_TREE GIT_SSH_COMMAND "
    "GIT_NO_LAZY_FETCH GIT_SHALLOW_FILE"
)
_MAX_IGNORE = 1_000_000
_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True)
class Checkout:
    """A work tree with its own git directory and the one it shares with its siblings."""

    toplevel: Path
    gitdir: Path
    common_dir: Path

    @property
    def variables(self) -> dict[str, str]:
        """What leads git here; all is named, so that a planted commondir cannot lead elsewhere."""
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
    """A checkout with what its repository and user ask of any git: conversions, ignored names.

    What is excluded stays out of commits.
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
        """Whether a text can be the full id of an object of this repository."""
        return len(text) == self.id_length and _HEX.fullmatch(text) is not None


def find_checkout(directory: Path) -> Checkout | None:
    """The innermost work tree that holds the directory, or None."""
    for candidate in _upwards(directory):
        if candidate.name == ".git":
            return None
        if (checkout := checkout_at(candidate)) is not None:
            return checkout
    return None


def checkouts_around(directory: Path) -> tuple[Path, ...]:
    """The work tree that holds the directory, and the repository's main one if it is another."""
    checkout = find_checkout(directory)
    if checkout is None:
        return ()
    if checkout.common_dir.name == ".git":
        main = checkout.common_dir.parent
    else:
        main = checkout.toplevel
    return tuple(dict.fromkeys((checkout.toplevel, main)))


def repository_of(directory: str) -> str:
    """The top of the repository that a directory is in, which its worktrees share; or itself."""
    tops = checkouts_around(Path(directory))
    if tops:
        return str(tops[-1])
    return os.path.realpath(directory)


def is_git_directory(directory: Path) -> bool:
    """Whether a directory belongs to git itself: inside a bare repository or a .git directory."""
    for candidate in _upwards(directory):
        has_parts = (candidate / "objects").is_dir() and (candidate / "refs").is_dir()
        if candidate.name == ".git" or (has_parts and (candidate / "HEAD").is_file()):
            return True
        if checkout_at(candidate) is not None:
            return False
    return False


def _upwards(directory: Path) -> tuple[Path, ...]:
    """A directory and all above it; nothing if there is none."""
    try:
        start = directory.resolve(strict=True)
    except OSError:
        return ()
    if start.is_dir():
        return (start, *start.parents)
    return ()


def checkout_at(toplevel: Path) -> Checkout | None:
    """The work tree whose top is exactly this directory, or None."""
    gitdir = linked_gitdir(toplevel / ".git")
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


def linked_gitdir(dot_git: Path) -> Path | None:
    """The git directory that a .git entry is or points to."""
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
    """The one line of a small file of git, or None."""
    line = small_file(Path(os.path.realpath(path)), _MAX_POINTER)
    if line is None or b"\0" in line:
        return None
    return line.rstrip(b"\n").decode("utf-8", "surrogateescape")


def small_file(path: Path, most: int) -> bytes | None:
    """The bytes of a regular file that is no link and not large; None for anything else."""
    stream = open_file(path)
    if stream is None:
        return None
    with stream:
        if os.fstat(stream.fileno()).st_size <= most:
            return stream.read(most)
        return None


def open_file(path: Path | str, directory: int | None = None) -> BinaryIO | None:
    """A regular file that is no link, to be read; None for anything else."""
    try:
        file = files.open_regular(str(path), directory)
    except OSError:
        return None
    if file is None:
        return None
    return os.fdopen(file, "rb")


def digests(checkout: Checkout) -> dict[str, str]:
    """What an agent in a worktree has no business to change: HEAD, configuration and hooks of the
    checkout, and the user's own configuration of git. What git itself notes of branches in the
    configuration does not count."""
    config = small_file(checkout.common_dir / "config", _MAX_IGNORE) or b""
    found = sorted((checkout.common_dir / "hooks").glob("*"))
    hooks = [hook for hook in found if hook.suffix != ".sample"]
    told = [(hook.name, small_file(hook, _MAX_IGNORE)) for hook in hooks]
    return {
        "HEAD": read_pointer(checkout.gitdir / "HEAD") or "",
        "configuration": digest_of(re.sub(rb'(?m)^\[branch ".*\n(?:[^\[].*\n?)*', b"", config)),
        "hooks": digest_of(repr(told).encode()),
        "your own configuration of git": digest_of(repr(_own_configuration_files()).encode()),
    }


def _own_configuration_files() -> list[bytes | None]:
    """The contents of the files that git reads for this user, each None where there is none."""
    variables = own_configuration()
    base = variables.get("XDG_CONFIG_HOME") or str(Path(variables.get("HOME", "/")) / ".config")
    paths = [variables.get("GIT_CONFIG_GLOBAL"), str(Path(base) / "git" / "config")]
    return [small_file(Path(os.path.realpath(path)), _MAX_IGNORE) for path in paths if path]


def moved_by_kapelle(checkout: Checkout, ref: str, old: str) -> bool:
    """Whether all that moved a branch since it held a commit were merges of ours."""
    log = small_file(checkout.common_dir / "logs" / ref, _MAX_IGNORE) or b""
    since = log.rpartition(b" %s " % old.encode())[2].splitlines()[1:]
    return bool(since) and all(line.partition(b"\t")[2].startswith(b"kapelle: ") for line in since)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def count_loose(objects: Path) -> int:
    """How many objects of a repository are files of their own."""
    names = (f"{number:02x}" for number in range(256))
    return sum(len(os.listdir(objects / name)) for name in names if (objects / name).is_dir())


async def read_work_tree(git: Git, checkout: Checkout) -> WorkTree:
    """Read with `git config`, which runs nothing; the user's own configuration counts as well."""
    variables = {**checkout.variables, **own_configuration()}
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
    ignored = [small_file(Path(os.path.realpath(path)), _MAX_IGNORE) or b"" for path in places]
    own = [f"{key}={values[key]}" for key in _HARMLESS if values.get(key, "").isalnum()]
    return WorkTree(
        checkout.toplevel,
        checkout.gitdir,
        checkout.common_dir,
        object_format=object_format,
        settings=(*own, *filters),
        ignore=b"\n".join(ignored).decode("utf-8", "surrogateescape"),
    )


async def read_person(git: Git, common_dir: Path) -> dict[str, str]:
    """Who works in the repository by its configuration and the user's own, as variables of git;
    nothing of what neither says."""
    place = GitLocation(git, common_dir, {"GIT_DIR": str(common_dir), **own_configuration()})
    output = await place.run("config", "-z", "--get-regexp", r"^user\.(name|email)$", ok=(0, 1))
    found = dict(record.decode("utf-8", "replace").split("\n", 1) for record in output.fields)
    told = {key.removeprefix("user.").upper(): name for key, name in found.items() if name.strip()}
    roles = ("AUTHOR", "COMMITTER")
    return {f"GIT_{role}_{key}": name for key, name in told.items() for role in roles}


async def _allowed_filters(place: GitLocation) -> tuple[str, ...]:
    """The filters that the user allows, as settings for a git that reads no configuration."""
    values: dict[str, str] = {}
    # The user's own last: what an agent wrote into a repository's must not take its place.
    for scope in ((), ("--global",)):
        output = await place.run("config", "-z", *scope, "--get-regexp", _FILTER_KEYS, ok=(0, 1))
        for record in output.fields:
            key, _, value = record.decode("utf-8", "surrogateescape").partition("\n")
            name = key.removeprefix("filter.").rpartition(".")[0]
            if name in place.git.filters and value:
                values[key] = _filter(place.cwd, value)
                # Git would take the file as it is where a filter fails that is not required.
                values[f"filter.{name}.required"] = "true"
    return tuple(f"{key}={value}" for key, value in values.items())


def _filter(common_dir: Path, command: str) -> str:
    """A filter's command in the repository itself: it keeps its keys and objects there."""
    own = {"GIT_DIR": str(common_dir), **own_configuration()}
    own.pop("GIT_CONFIG_GLOBAL", None)
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
    return f"unset {_OURS}; export {variables}; ".replace("%", "%%") + command


def own_configuration() -> dict[str, str]:
    """Return the variables by which git reads this person's own configuration."""
    home = os.environ.get("HOME", "")
    variables = {"HOME": home} if home else {}
    for name in ("GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME"):
        if name in os.environ:
            variables[name] = os.environ[name]
    if "GIT_CONFIG_GLOBAL" not in variables and home:
        usual = Path(home) / ".gitconfig"
        other = Path(variables.get("XDG_CONFIG_HOME") or Path(home) / ".config") / "git" / "config"
        if other.exists() and not usual.exists():
            found = other
        else:
            found = usual
        variables["GIT_CONFIG_GLOBAL"] = str(found)
    return variables


def _own_ignore_file(configured: str | None) -> Path:
    if configured:
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME") or Path(os.environ.get("HOME", "/")) / ".config"
    return Path(base) / "git" / "ignore"
