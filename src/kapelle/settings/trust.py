"""Which repositories may have something executed: by place, and by a digest of what that is.

Trust is a person's word about what stands in a repository's .kapelle; it is kept in the home, and
whatever changes there needs a new word.
"""

import hashlib
import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from kapelle.domain.errors import Conflict, InvalidInput, NotTrusted
from kapelle.domain.text import counted
from kapelle.home import Home, in_repository, read_small, write_private
from kapelle.settings.files import Stamp, leaves, read_toml, stamp

VARIABLE = "KAPELLE_TRUST"
# These name things and lower limits; whatever else a repository sets reaches a process.
_HARMLESS = ("default_agent", "fallback_agents", "project", "difficulty", "roles", "health")
_LIMITS = "tasks"
_NAMED = 3


class Standing(StrEnum):
    """What a person said about a repository."""

    NOT_NEEDED = "not_needed"
    TRUSTED = "trusted"
    CHANGED = "changed"
    NOT_TRUSTED = "not_trusted"


@dataclass(frozen=True)
class Executable:
    """What of a repository would be executed, or would reach what is: texts by their names."""

    place: Path
    items: Mapping[str, str]
    digest: str

    @property
    def is_dangerous(self) -> bool:
        """Whether work needs trust; limits alone do not, for only lower ones hold without."""
        return any(not name.startswith(f"{_LIMITS}.") for name in self.items)


@dataclass(frozen=True)
class Record:
    """What was trusted, and when; one that was dropped stays, so that a difference is shown."""

    digest: str
    items: Mapping[str, str]
    trusted_at: str
    dropped: bool = False


def executable(home: Home, directory: Path) -> Executable:
    """What stands in the nearest .kapelle from a directory up to its git toplevel."""
    names = ("config.toml", "patterns", "playbook.toml")
    config, patterns, playbook = (in_repository(home, directory, name) for name in names)
    found = [path for path in (config, patterns, playbook) if path is not None]
    if not found:
        return nothing(Path(os.path.realpath(directory)))
    place = max((path.parent.parent for path in found), key=lambda path: len(path.parts))
    files = [*([playbook] if playbook else ()), *(pattern_files(patterns) if patterns else ())]
    texts = tuple((path, stamp(path)) for path in files)
    return _read(place, config, config and stamp(config), texts)


def nothing(place: Path) -> Executable:
    """A place in which there is nothing to execute."""
    return _read(place, None, None, ())


def pattern_files(place: Path) -> list[Path]:
    """The files with patterns; what begins with a dot is an editor's."""
    return sorted(path for path in place.glob("[!.]*.py") if os.path.isfile(path))


def standing(home: Home, found: Executable, environ: Mapping[str, str]) -> Standing:
    """Whether what was found there is trusted."""
    record = records(home).get(str(found.place))
    if record and not record.dropped and record.digest == found.digest:
        return Standing.TRUSTED
    if is_trusted_by(environ, found.place):
        return Standing.TRUSTED
    if not found.is_dangerous:
        return Standing.NOT_NEEDED
    return Standing.CHANGED if record else Standing.NOT_TRUSTED


def is_trusted(home: Home, directory: Path, environ: Mapping[str, str]) -> bool:
    """Whether everything that a repository sets holds."""
    return standing(home, executable(home, directory), environ) is Standing.TRUSTED


def require(home: Home, directory: Path, environ: Mapping[str, str]) -> None:
    """Raise NotTrusted, with the command to type, where work would execute what is not trusted."""
    found = executable(home, directory)
    status = standing(home, found, environ)
    if status in {Standing.TRUSTED, Standing.NOT_NEEDED}:
        return
    names = [name for name in found.items if not name.startswith(f"{_LIMITS}.")]
    more = f" and {counted(len(names) - _NAMED, 'more thing')}" if len(names) > _NAMED else ""
    what = f"its .kapelle holds what can execute: {', '.join(names[:_NAMED])}{more}"
    verb = "has changed since you trusted it" if status is Standing.CHANGED else "is not trusted"
    where = shlex.quote(str(found.place))
    raise NotTrusted(
        f"{found.place} {verb}; {what}.",
        hint=f"Look with `kapelle trust --show {where}`; if it may, type: kapelle trust {where}",
    )


def grant(home: Home, found: Executable, digest: str | None = None) -> None:
    """Trust what stands there now; Conflict when it is not what somebody was shown."""
    if digest is not None and digest != found.digest:
        raise Conflict(
            f"{found.place} has changed since it was looked at.", hint="Look at it once more."
        )
    known, now = records(home), datetime.now(UTC).isoformat()
    _write(home, {**known, str(found.place): Record(found.digest, found.items, now)})


def drop(home: Home, place: Path, *, forget: bool) -> bool:
    """Trust it no more, and with forget not even know what was trusted; False if it was not."""
    known, key = records(home), str(place)
    if key not in known or (known[key].dropped and not forget):
        return False
    rest = {other: record for other, record in known.items() if other != key}
    last = known[key]
    kept = {} if forget else {key: Record(last.digest, last.items, last.trusted_at, dropped=True)}
    _write(home, {**rest, **kept})
    return True


def records(home: Home) -> dict[str, Record]:
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
        if limits[key] is None or value <= limits[key]
    }
    return {**kept, _LIMITS: lower} if lower else kept


def is_trusted_by(environ: Mapping[str, str], place: Path) -> bool:
    """KAPELLE_TRUST: all, or directories that are trusted with everything in them."""
    given = environ.get(VARIABLE, "")
    named = (os.path.realpath(path) for path in given.split(os.pathsep) if path.startswith("/"))
    return given == "all" or any(place.is_relative_to(path) for path in named)


@lru_cache(maxsize=256)
def _read(
    place: Path,
    config: Path | None,
    _version: Stamp | None,
    texts: tuple[tuple[Path, Stamp | None], ...],
) -> Executable:
    found: dict[str, str] = {}
    for key, value in leaves(read_toml(config)[1]) if config else ():
        if key.partition(".")[0] not in _HARMLESS:
            found[key] = json.dumps(value, ensure_ascii=False, default=str)
    for path, _ in texts:
        try:
            text = read_small(path).decode("utf-8", "backslashreplace")
        except (OSError, InvalidInput) as error:
            text = str(error)  # nobody can execute it either
        found[os.path.relpath(path, place)] = text
    digest = hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()
    return Executable(place, found, digest)


@lru_cache(maxsize=4)
def _records(path: Path, version: Stamp | None) -> dict[str, Record]:
    try:
        kept = json.loads(path.read_bytes()) if version else {}
        return {place: Record(**record) for place, record in kept.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(home: Home, known: Mapping[str, Record]) -> None:
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
