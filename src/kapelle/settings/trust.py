"""Which repositories may have something executed: by place, and by a digest of what that is.

Trust is a person's word about what stands in a repository's .kapelle; it is kept in the home, and
whatever changes there needs a new word. It is read once: what is shown, trusted and used is the
same text.
"""

import fcntl
import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

from kapelle.domain.errors import Conflict, InvalidInput, NotTrusted, Unavailable
from kapelle.domain.specs import Prove
from kapelle.domain.text import counted_files, relocated
from kapelle.domain.views import Standing
from kapelle.home import Home, in_repository, read_own, read_small, require_ours, write_private
from kapelle.settings.files import Stamp, leaves, read_toml, stamp

VARIABLE = "KAPELLE_TRUST"
_LOCK_PATIENCE_S = 3.0
# These name things and lower limits; whatever else a repository sets reaches a process.
_HARMLESS = ("default_agent", "fallback_agents", "project", "difficulty", "roles", "health")
_LIMITS = "tasks"
_MOST_FILES = 200
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, RecursionError)
_MOST_TEXT = 2_000_000


@dataclass(frozen=True, eq=False)
class Executable:
    """What a repository's .kapelle holds: its settings, the files of its patterns with their texts,
    its prompts as PATTERN/ROLE, and of all this, by its name, what would be executed or would
    reach what is."""

    place: Path
    config: Path | None
    settings: Mapping[str, Any]
    sources: Mapping[Path, str]
    prompts: Mapping[str, str]
    problems: Sequence[str]
    items: Mapping[str, str]
    digest: str

    @property
    def dangerous(self) -> list[str]:
        """What work needs trust for; limits are not, for only lower ones hold without."""
        return [name for name in self.items if not name.startswith(f"{_LIMITS}.")]


@dataclass(frozen=True)
class TrustRecord:
    """What was trusted, and when; one that was dropped stays, so that a difference is shown."""

    digest: str
    items: Mapping[str, str]
    trusted_at: str
    dropped: bool = False


def executable(home: Home, directory: Path) -> Executable:
    """What stands in the nearest .kapelle from a directory up to its git toplevel."""
    found = in_repository(home, directory, "config.toml", "playbook.toml", "patterns", "prompts")
    places = [path.parent.parent for path in found] or [Path(os.path.realpath(directory))]
    place = max(places, key=lambda path: len(path.parts))
    files = []
    problems = []
    for path in found:
        for file in _files(path):
            try:
                for part in dict.fromkeys((path.parent, path, file)):
                    require_ours(part, directory)
                files.append((file, stamp(file)))
            except (OSError, InvalidInput) as error:
                if file == path and isinstance(error, InvalidInput):
                    raise
                problems.append(str(error))
    return _read(place, tuple(files), tuple(problems))


def _files(path: Path) -> list[Path]:
    if path.name == "prompts":
        return pattern_files(path, "[!.]*/[!.]*.md")
    if path.name == "patterns":
        return pattern_files(path)
    return [path]


def pattern_files(place: Path, names: str = "[!.]*.py") -> list[Path]:
    """The files with patterns; what begins with a dot is an editor's."""
    found = sorted(path for path in place.glob(names) if os.path.isfile(path))
    if len(found) > _MOST_FILES:
        raise InvalidInput(f"{place} has more than {_MOST_FILES} files.")
    return found


def source(path: Path) -> str:
    """The text of a file with patterns, in the one encoding in which it is shown and compiled."""
    return read_small(path).decode("utf-8", "backslashreplace")


def standing(home: Home, found: Executable, environ: Mapping[str, str]) -> Standing:
    """Whether what was found there is trusted."""
    if not found.items:
        return "not_needed"
    known = records(home)
    if known:
        ours = [known[key] for key in map(str, _places(found.place)) if key in known]
    else:
        ours = []
    if any(record.digest == found.digest and not record.dropped for record in ours):
        return "trusted"
    if is_trusted_by(environ, found.place):
        return "trusted"
    if not found.dangerous:
        return "not_needed"
    return "changed" if ours else "not_trusted"


def require(found: Executable, status: Standing) -> None:
    """Raise NotTrusted, with the command to type, where work would execute what is not trusted."""
    if status in {"trusted", "not_needed"}:
        return
    if status == "changed":
        verb = "has changed since you trusted it"
    else:
        verb = "is not trusted"
    what = f"its .kapelle holds what can execute: {counted_files(found.dangerous)}"
    raise refusal(f"{found.place} {verb}; {what}.", found.place)


def refusal(text: str, place: Path | str) -> NotTrusted:
    """A refusal whose last word is the place to trust."""
    where = shlex.quote(str(place))
    hint = f"Look with `kapelle trust --show {where}`; if it may, type: kapelle trust {where}"
    return NotTrusted(text, hint=hint)


def grant(home: Home, found: Executable, digest: str | None = None) -> None:
    """Trust what stands there now; Conflict when it is not what somebody was shown."""
    if digest not in {None, found.digest}:
        text = f"{found.place} has changed since it was looked at."
        raise Conflict(text, hint="Look at it once more.")
    now = datetime.now(UTC).isoformat()
    with _changing(home) as known:
        _write(home, {**known, str(found.place): TrustRecord(found.digest, found.items, now)})


def drop(home: Home, place: Path, *, forget: bool) -> bool:
    """Trust it no more, and with forget not even know what was trusted; False if it was not."""
    keys = {*map(str, _places(place))}
    with _changing(home) as known:
        if not any(key in known and (forget or not known[key].dropped) for key in keys):
            return False
        kept = {key: record for key, record in known.items() if key not in keys}
        if not forget:
            kept |= {key: replace(known[key], dropped=True) for key in keys & known.keys()}
        _write(home, kept)
    return True


def relocate(home: Home, old: str, new: str) -> Standing | None:
    """Move the trust in a repository that was moved; None if it was never trusted.

    What is another at the new place is not trusted there: it counts as changed since.
    """
    status: Standing | None = None
    if not any(relocated(place, old, new) != place for place in records(home)):
        return None
    with _changing(home) as known:
        kept = dict(known)
        for place, record in known.items():
            target = relocated(place, old, new)
            if target == place:
                continue
            del kept[place]
            if record.dropped or target in known:
                continue
            found = _executable_at(home, Path(target))
            is_same = found is not None and found.digest == record.digest
            kept[target] = replace(record, dropped=not is_same)
            if is_same and status != "changed":
                status = "trusted"
            else:
                status = "changed"
        _write(home, kept)
    return status


def _executable_at(home: Home, place: Path) -> Executable | None:
    """Return what stands in the .kapelle of exactly this place; None if that cannot be read."""
    try:
        found = executable(home, place)
    except (OSError, InvalidInput):
        return None
    return found if found.place == place else None


def _places(place: Path) -> list[Path]:
    """A place and, if it is in a linked worktree, the same one in the repository's main checkout,
    whose git directory must know of that worktree as well."""
    top = next((path for path in (place, *place.parents) if os.path.lexists(path / ".git")), place)
    try:
        text = read_small(top / ".git").decode()
        gitdir = Path(os.path.realpath(top / text.removeprefix("gitdir:").strip()))
        common = Path(os.path.realpath(gitdir / read_small(gitdir / "commondir").decode().strip()))
        back = gitdir / read_small(gitdir / "gitdir").decode().strip()
    except (OSError, ValueError, InvalidInput):
        return [place]
    is_linked = os.path.realpath(back) == str(top / ".git") and gitdir.parent.parent == common
    if is_linked:
        return [place, common.parent / place.relative_to(top)]
    return [place]


def records(home: Home) -> dict[str, TrustRecord]:
    """All that was ever said, by place; a file that cannot be read says nothing."""
    return _records(home.trust, stamp(home.trust))


def harmless(values: Mapping[str, Any], own: Mapping[str, Any], defaults: Any) -> dict[str, Any]:
    """What of a repository's settings holds without trust, over a person's own."""
    kept = {key: values[key] for key in _HARMLESS if key in values}
    foreign = set(values.get("agents", {})) - set(own.get("agents", {}))
    if kept.get("default_agent") in foreign:
        del kept["default_agent"]
    if "fallback_agents" in kept:
        kept["fallback_agents"] = [name for name in kept["fallback_agents"] if name not in foreign]
    limits = {**defaults.model_dump(), **own.get(_LIMITS, {})}
    lower = {
        key: value
        for key, value in values.get(_LIMITS, {}).items()
        if (most := limits[key]) is None
        or (_proves(value, most) if key == "prove" else value <= most)
    }
    if lower:
        return {**kept, _LIMITS: lower}
    return kept


def keeps_proof(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A trusted repository's settings, of which none proves less than a person asks for."""
    tasks = dict(values.get(_LIMITS, {}))
    wanted = own.get(_LIMITS, {}).get("prove")
    if wanted and "prove" in tasks and not _proves(tasks["prove"], wanted):
        del tasks["prove"]
    return {**values, _LIMITS: tasks}


def _proves(value: Prove, wanted: Prove) -> bool:
    """Whether as much is proved as is wanted."""
    order = get_args(Prove)
    return order.index(value) >= order.index(wanted)


def is_trusted_by(environ: Mapping[str, str], place: Path) -> bool:
    """KAPELLE_TRUST: all, or directories that are trusted with everything in them."""
    given = environ.get(VARIABLE, "")
    named = (os.path.realpath(path) for path in given.split(os.pathsep) if path.startswith("/"))
    return given == "all" or any(place.is_relative_to(path) for path in named)


@lru_cache(maxsize=64)
def _read(
    place: Path, files: tuple[tuple[Path, Stamp | None], ...], problems: tuple[str, ...]
) -> Executable:
    config = None
    settings = {}
    broken = list(problems)
    items: dict[str, str] = {}
    sources: dict[Path, str] = {}
    prompts: dict[str, str] = {}
    for path, _ in files:
        if path.name == "config.toml":
            config = path
            settings = read_toml(path)[1]
            for key, value in leaves(settings):
                if key.partition(".")[0] not in _HARMLESS:
                    items[key] = json.dumps(value, ensure_ascii=False, default=str)
            continue
        try:
            items[os.path.relpath(path, place)] = text = source(path)
        except (OSError, InvalidInput) as error:
            if path.suffix == ".toml":
                raise InvalidInput(f"{path} cannot be read: {error}") from None
            broken.append(str(error))
            continue
        if path.suffix == ".py":
            sources[path] = text
        elif path.suffix == ".md":
            prompts[f"{path.parent.name}/{path.stem}"] = text
        if sum(map(len, [*sources.values(), *prompts.values()])) > _MOST_TEXT:
            raise InvalidInput(f"{place}/.kapelle holds more than 2 MB that could be executed.")
    digest = hashlib.sha256(json.dumps(sorted(items.items())).encode()).hexdigest()
    return Executable(place, config, settings, sources, prompts, broken, items, digest)


@lru_cache(maxsize=4)
def _records(path: Path, version: Stamp | None) -> dict[str, TrustRecord]:
    try:
        return _kept(path) if version else {}
    except _UNREADABLE:
        return {}


def _kept(path: Path) -> dict[str, TrustRecord]:
    return {place: TrustRecord(**record) for place, record in json.loads(read_own(path)).items()}


@contextmanager
def _changing(home: Home) -> Iterator[dict[str, TrustRecord]]:
    """Yield all records while no other process changes them. Blocks.

    Raises Conflict if they cannot be read, and Unavailable if another process keeps the lock.
    """
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(home.root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _lock(descriptor, home)
        try:
            if os.path.lexists(home.trust):
                known = _kept(home.trust)
            else:
                known = {}
        except _UNREADABLE as error:
            raise Conflict(
                f"{home.trust} cannot be read, so it is not changed: {error}.",
                hint="Correct it, or delete it and trust your repositories again.",
            ) from error
        yield known
    finally:
        os.close(descriptor)


def _lock(descriptor: int, home: Home) -> None:
    """Lock the home; whoever holds the lock longer than a few seconds is no Kapelle."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"Another process holds the lock of {home.root}, so trust is not changed.",
                    hint="End that process (`lslocks` lists it), and try again.",
                ) from None
        time.sleep(0.05)


def _write(home: Home, known: Mapping[str, TrustRecord]) -> None:
    data = {place: vars(record) for place, record in known.items()}
    write_private(home.trust, json.dumps(data, indent=1, ensure_ascii=False).encode())


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> Iterable[str]:
    """The lines that went and came, as in a patch, without what stayed."""
    import difflib

    old, new = (
        [f"{name}: {line}" for name, text in sorted(items.items()) for line in text.splitlines()]
        for items in (before, now)
    )
    for line in difflib.unified_diff(old, new, lineterm="", n=0):
        if not line.startswith(("---", "+++", "@@")):
            yield line
