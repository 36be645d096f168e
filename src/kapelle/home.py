"""The private directory of one Kapelle instance, and the paths inside it."""

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kapelle.domain.errors import InvalidInput

# sun_path holds 104 bytes on macOS and 108 on Linux.
_LONGEST_SOCKET_PATH = 100
_LARGEST_FILE = 1_000_000
_LARGEST_OWN_FILE = 64_000_000


class _Inside:
    """A file or directory of this name inside a home."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, home: "Home", _owner: type | None = None) -> Path:
        return home.root / self._name


@dataclass(frozen=True)
class Home:
    """The state directory of one Kapelle instance; the user's config may be elsewhere."""

    root: Path
    config_directory: Path | None = None

    lock = _Inside("daemon.lock")
    info = _Inside("daemon.json")
    log = _Inside("daemon.log")
    token = _Inside("token")
    database = _Inside("kapelle.db")
    # Room on the disk that is given up when it is full, so that one can still cancel.
    reserve = _Inside("reserve")
    # The name of this home as a performer of work, which outlives a change of host name.
    identity = _Inside("identity")
    backups = _Inside("backups")
    attempts = _Inside("attempts")
    # What each run tells: events.jsonl, status.json, result.json, and its checks' output.
    runs = _Inside("runs")
    # Process directories of agents that are tried out, which no attempt owns.
    checks = _Inside("checks")
    # Process directories of what is run beside agents, under names that nobody can guess.
    processes = _Inside("processes")
    worktrees = _Inside("worktrees")
    # What is known of the containers of worktrees.
    containers = _Inside("containers")
    # The directory that stands at /tmp for the confined processes of a task or run.
    scratch = _Inside("scratch")
    # What confined processes change in shared directories, by workspace.
    shares = _Inside("shares")
    runner = _Inside("runner")
    git = _Inside("git")
    secrets = _Inside("secrets")
    # What people say to agents at work, by attempt, until it is read.
    said = _Inside("said")
    # Pictures of what agents saw, by attempt.
    files = _Inside("files")
    # The repositories that a person trusts, and with what.
    trust = _Inside("trust.json")
    # The digests of browsers' sessions.
    sessions = _Inside("sessions.json")
    # API keys that no keyring keeps.
    credentials = _Inside("credentials.json")

    @classmethod
    def default(cls, environ: Mapping[str, str] | None = None) -> "Home":
        """Return the home that KAPELLE_HOME names, else the platform's state directory."""
        path = (os.environ if environ is None else environ).get("KAPELLE_HOME")
        if path:
            return cls(Path(path).expanduser().absolute())
        import platformdirs

        state = platformdirs.user_state_path
        config = platformdirs.user_config_path
        return cls(state("kapelle"), config("kapelle"))

    @property
    def config(self) -> Path:
        """Return the path of the user's config.toml."""
        return (self.config_directory or self.root) / "config.toml"

    @property
    def socket(self) -> Path:
        """Return the path of the daemon's unix socket.

        It is in a private temporary directory if the path inside the home is too long for a socket.
        """
        inside = self.root / "daemon.sock"
        if len(os.fsencode(inside)) <= _LONGEST_SOCKET_PATH:
            return inside
        import hashlib
        import tempfile

        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"kapelle-{os.getuid()}-{digest}" / "daemon.sock"

    def keep_reserve(self) -> None:
        """Reserve a few megabytes while the disk has plenty, for a time when it is full."""
        free = os.statvfs(self.root)
        if not self.reserve.exists() and free.f_bavail * free.f_frsize > 4 * _RESERVE_BYTES:
            self.reserve.write_bytes(bytes(_RESERVE_BYTES))

    def give_up_reserve(self) -> bool:
        """Release the reserve on a full disk; return whether there was one."""
        try:
            self.reserve.unlink()
        except OSError:
            return False
        return True

    def create(self) -> None:
        """Make the directories, readable by their owner only."""
        for directory in (
            self.root, self.backups, self.attempts, self.runs, self.checks, self.processes,
            self.worktrees, self.scratch, self.shares, self.runner, self.git, self.secrets,
            self.said,
        ):  # fmt: skip
            _make_private(directory)
        if self.socket.parent != self.root:
            _make_private(self.socket.parent)


def _make_private(directory: Path) -> None:
    """Make a directory that only its owner can read; raises InvalidInput if it is shared."""
    advice = "Set KAPELLE_HOME to a directory of your own."
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
        # Another user may have made the directory, or a link, in a shared temporary directory
        # first.
        if {status.st_uid, directory.lstat().st_uid} != {os.getuid()}:
            raise InvalidInput(f"{directory} belongs to another user.", hint=advice)
        if status.st_mode & stat.S_ISVTX:
            raise InvalidInput(f"{directory} is shared with other users.", hint=advice)
        if stat.S_IMODE(status.st_mode) != 0o700:
            directory.chmod(0o700)
    except OSError as error:
        raise InvalidInput(f"{directory} cannot be used: {error.strerror}.", hint=advice) from None


def find_in_repository(home: Home, directory: Path, *names: str) -> list[Path]:
    """Return the paths with these names in the nearest .kapelle that has them.

    Looks from a directory up to its git toplevel.
    """
    place = os.path.realpath(directory)
    above = ""
    paths = dict[str, Path]()
    while place != above:  # without pathlib, because every task does this several times
        folder = f"{place.rstrip('/')}/.kapelle"
        # KAPELLE_HOME may itself be called .kapelle and lie above the directory.
        if os.path.isdir(folder) and folder != os.path.realpath(home.config.parent):
            for name in names:
                # The nearest one counts, which was found first.
                if name not in paths and os.path.exists(f"{folder}/{name}"):
                    paths[name] = Path(folder, name)
        above = place
        place = os.path.dirname(place)
        if os.path.exists(f"{above}/.git"):
            break
    return [paths[name] for name in names if name in paths]


def require_ours(path: Path, directory: Path) -> None:
    """Raise InvalidInput for a path that another user put into a shared parent such as /tmp."""
    owners = {os.getuid(), 0}
    if os.path.exists(directory):  # it may be gone after a switch of branches
        owners.add(directory.stat().st_uid)
    if not {path.stat().st_uid, path.lstat().st_uid} <= owners:
        raise InvalidInput(f"{path} belongs to another user; remove it or change its owner.")


def read_small(path: Path) -> bytes:
    """Read a file that others may have put there: a regular file of at most 1 MB."""
    with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInput(f"{path} is not a regular file.")
        data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise InvalidInput(f"{path} is larger than 1 MB.")
    return data


class NoRegularFile(OSError):
    """A pipe, a device or a directory is in the place of a file, or the file is too large."""


def read_own(path: Path) -> bytes:
    """Return the content of a file that Kapelle wrote, though an agent may have replaced it.

    Raises NoRegularFile at once where a plain read would wait or read forever.
    """
    with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NoRegularFile(errno.EINVAL, "It is not a regular file", str(path))
        if status.st_size > _LARGEST_OWN_FILE:
            raise NoRegularFile(errno.EFBIG, "It is larger than 64 MB", str(path))
        return file.read(_LARGEST_OWN_FILE)


def read_file_identity(path: Path | int) -> tuple[int, int] | None:
    """Return the device and inode of a file by name or descriptor; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Enough for the rows of some thousand cancelled tasks.
_RESERVE_BYTES = 8_000_000


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically, readable by its owner only; a link to a file stays a link."""
    import tempfile

    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target = path  # replace a link to a device, not the device
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("wb", dir=target.parent, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise


def disk_use(*places: Path) -> tuple[int, int]:
    """Return the bytes and the inodes that directories use on the disk.

    Their content may change meanwhile.
    """
    size = count = 0
    pending = list(map(str, places))
    while pending:
        place = pending.pop()
        with suppress(OSError):
            status = os.lstat(place)
            size = size + status.st_blocks * 512
            count = count + 1
            if stat.S_ISDIR(status.st_mode):
                pending += [os.path.join(place, name) for name in os.listdir(place)]
    return size, count
