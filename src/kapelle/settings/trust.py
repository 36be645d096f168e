"""Decide which repositories may execute code, by place and by a digest of the content.

A person trusts the content of a repository's .kapelle directory. The trust is recorded in the home,
and any change of the content needs a new decision. The content is read once: what is shown, trusted
and executed is the same text.
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
from kapelle.domain.text import format_files, relocate_path
from kapelle.domain.views import Standing
from kapelle.home import Home, find_in_repository, read_own, read_small, require_ours, write_private
from kapelle.settings.files import Stamp, leaves, read_toml, stamp

VARIABLE = "KAPELLE_TRUST"
_LOCK_PATIENCE_S = 3.0
# Settings that only name things. The others may reach a process.
_HARMLESS = ("default_agent", "fallback_agents", "project", "difficulty", "roles", "health")
_LIMITS = "tasks"
_MOST_FILES = 200
_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, RecursionError)
_MOST_TEXT = 2_000_000


@dataclass(frozen=True, eq=False)
class Executable:
    """The content of a repository's .kapelle: settings, pattern sources and prompts.

    `items` holds, by name, everything that would be executed or reaches something that is.
    """

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
        """Return the items that need trust; limits do not, because only lower ones apply."""
        return [name for name in self.items if not name.startswith(f"{_LIMITS}.")]


@dataclass(frozen=True)
class TrustRecord:
    """A digest and the items that were trusted, and when; a dropped one stays for comparison."""

    digest: str
    items: Mapping[str, str]
    trusted_at: str
    dropped: bool = False


def find_executable(home: Home, directory: Path) -> Executable:
    """Read the nearest .kapelle from a directory up to its git toplevel."""
    paths = find_in_repository(
        home, directory, "config.toml", "playbook.toml", "patterns", "prompts"
    )
    places = [path.parent.parent for path in paths] or [Path(os.path.realpath(directory))]
    # Settings, patterns and prompts may lie in different directories; the innermost one counts.
    place = max(places, key=lambda path: len(path.parts))
    files = []
    problems = []
    for path in paths:
        for file in _files(path):
            try:
                # In a shared parent, another user may own any of these.
                for part in dict.fromkeys((path.parent, path, file)):
                    require_ours(part, directory)
                files.append((file, stamp(file)))
            except (OSError, InvalidInput) as error:
                if file == path and isinstance(error, InvalidInput):
                    raise
                problems.append(str(error))
    return _read(place, tuple(files), tuple(problems))


def _files(path: Path) -> list[Path]:
    """Return the files of one entry of .kapelle."""
    if path.name == "prompts":
        return list_pattern_files(path, "[!.]*/[!.]*.md")
    if path.name == "patterns":
        return list_pattern_files(path)
    return [path]


def list_pattern_files(place: Path, names: str = "[!.]*.py") -> list[Path]:
    """Return the pattern files of a directory; hidden files belong to editors."""
    paths = sorted(path for path in place.glob(names) if os.path.isfile(path))
    if len(paths) > _MOST_FILES:
        raise InvalidInput(f"{place} has more than {_MOST_FILES} files.")
    return paths


def source(path: Path) -> str:
    """Return the text of a pattern file in the encoding in which it is shown and compiled."""
    return read_small(path).decode("utf-8", "backslashreplace")


def determine_standing(home: Home, executable: Executable, environ: Mapping[str, str]) -> Standing:
    """Return whether the content is trusted, changed, untrusted, or needs no trust."""
    if not executable.items:
        return "not_needed"
    records_by_place = read_records(home)
    own_records: list[TrustRecord] = []
    if records_by_place:
        for place in map(str, _places(home, executable.place)):
            if place in records_by_place:
                own_records.append(records_by_place[place])
    if any(record.digest == executable.digest and not record.dropped for record in own_records):
        return "trusted"
    if is_trusted_by(environ, executable.place):
        return "trusted"
    if not executable.dangerous:
        return "not_needed"
    return "changed" if own_records else "not_trusted"


def require(executable: Executable, status: Standing) -> None:
    """Raise NotTrusted, with the command to type, unless the content may be executed."""
    if status in {"trusted", "not_needed"}:
        return
    if status == "changed":
        verb = "has changed since you trusted it"
    else:
        verb = "is not trusted"
    what = f"its .kapelle can execute commands: {format_files(executable.dangerous)}"
    raise refusal(f"{executable.place} {verb}; {what}.", executable.place)


def refusal(text: str, place: Path | str) -> NotTrusted:
    """Return a NotTrusted error whose hint ends with the place to trust."""
    where = shlex.quote(str(place))
    hint = f"Review it with `kapelle trust --show {where}`, then allow it: kapelle trust {where}"
    return NotTrusted(text, hint=hint)


def grant(home: Home, executable: Executable, digest: str | None = None) -> None:
    """Trust the present content; raises Conflict if a person reviewed another one."""
    if digest not in {None, executable.digest}:
        text = f"{executable.place} has changed since you reviewed it."
        raise Conflict(text, hint="Review it again.")
    now = datetime.now(UTC).isoformat()
    with _hold_records(home) as records_by_place:
        _write(
            home,
            {
                **records_by_place,
                str(executable.place): TrustRecord(executable.digest, executable.items, now),
            },
        )


def drop(home: Home, place: Path, *, forget: bool) -> bool:
    """Withdraw the trust; with `forget`, delete the record. Return False if there was none."""
    keys = {*map(str, _places(home, place))}
    with _hold_records(home) as records_by_place:
        remaining = dict(records_by_place)
        is_known = False
        for key in keys & records_by_place.keys():
            record = remaining.pop(key)
            is_known = is_known or forget or not record.dropped
            if not forget:
                remaining[key] = replace(record, dropped=True)
        if not is_known:
            return False
        _write(home, remaining)
    return True


def relocate(home: Home, old: str, new: str) -> Standing | None:
    """Move the trust in a repository that was moved; None if it was never trusted.

    Content that differs at the new place is not trusted: it counts as changed.
    """
    status: Standing | None = None
    if not any(relocate_path(place, old, new) != place for place in read_records(home)):
        return None
    with _hold_records(home) as records_by_place:
        remaining = dict(records_by_place)
        for place, record in records_by_place.items():
            target = relocate_path(place, old, new)
            if target == place:
                continue
            del remaining[place]
            if record.dropped or target in records_by_place:
                continue
            executable = _read_executable_at(home, Path(target))
            is_same = executable is not None and executable.digest == record.digest
            remaining[target] = replace(record, dropped=not is_same)
            if is_same and status != "changed":
                status = "trusted"
            else:
                status = "changed"
        _write(home, remaining)
    return status


def _read_executable_at(home: Home, place: Path) -> Executable | None:
    """Return the content of the .kapelle at exactly this place; None if unreadable."""
    try:
        repository = find_executable(home, place)
    except (OSError, InvalidInput):
        return None
    return repository if repository.place == place else None


def _places(home: Home, place: Path) -> list[Path]:
    """Return a place and its counterpart in the repository's main checkout.

    The counterpart counts only if the place is in a workspace of this home, or if the main
    checkout's git directory lists this linked worktree.
    """
    top = next((path for path in (place, *place.parents) if os.path.lexists(path / ".git")), place)
    if top.parent == Path(os.path.realpath(home.worktrees)):
        return [place, *_counterparts(place, top)]
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


def _counterparts(place: Path, workspace: Path) -> list[Path]:
    """Return the counterpart of a place in a workspace, by the marker beside the workspace."""
    try:
        record = json.loads(read_own(workspace.with_name(f"{workspace.name}.json")))
        common = Path(record["common_dir"])
    except (*_UNREADABLE, KeyError):
        return []
    return [common.parent / place.relative_to(workspace)]


def read_records(home: Home) -> dict[str, TrustRecord]:
    """Return all trust records by place; none if the file cannot be read."""
    return _read_cached_records(home.trust, stamp(home.trust))


def select_harmless(
    values: Mapping[str, Any], own: Mapping[str, Any], defaults: Any
) -> dict[str, Any]:
    """Return the settings of a repository that apply without trust.

    They name things, or lower a limit of the person's own settings.
    """
    selection = {key: values[key] for key in _HARMLESS if key in values}
    # Agents that only the repository defines: their commands need trust.
    foreign = set(values.get("agents", {})) - set(own.get("agents", {}))
    if selection.get("default_agent") in foreign:
        del selection["default_agent"]
    if "fallback_agents" in selection:
        selection["fallback_agents"] = [
            name for name in selection["fallback_agents"] if name not in foreign
        ]
    limits = {**defaults.model_dump(), **own.get(_LIMITS, {})}
    lower: dict[str, Any] = {}
    for key, value in values.get(_LIMITS, {}).items():
        most = limits[key]
        if most is None:
            is_lower = True
        elif key == "prove":
            is_lower = _proves(value, most)
        else:
            is_lower = value <= most
        if is_lower:
            lower[key] = value
    if lower:
        return {**selection, _LIMITS: lower}
    return selection


def drop_lower_proof(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trusted repository's settings without one that proves less.

    A repository cannot lower the `prove` setting of the person.
    """
    tasks = dict(values.get(_LIMITS, {}))
    minimum = own.get(_LIMITS, {}).get("prove")
    if minimum and "prove" in tasks and not _proves(tasks["prove"], minimum):
        del tasks["prove"]
    return {**values, _LIMITS: tasks}


def _proves(value: Prove, minimum: Prove) -> bool:
    """Tell whether one setting of `prove` proves at least as much as another."""
    order = get_args(Prove)
    return order.index(value) >= order.index(minimum)


def is_trusted_by(environ: Mapping[str, str], place: Path) -> bool:
    """Tell whether KAPELLE_TRUST trusts a place: `all`, or one of its directories."""
    value = environ.get(VARIABLE, "")
    directories = (
        os.path.realpath(path) for path in value.split(os.pathsep) if path.startswith("/")
    )
    return value == "all" or any(place.is_relative_to(path) for path in directories)


@lru_cache(maxsize=64)
def _read(
    place: Path, files: tuple[tuple[Path, Stamp | None], ...], problems: tuple[str, ...]
) -> Executable:
    config = None
    settings = {}
    errors = list(problems)
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
            errors.append(str(error))
            continue
        if path.suffix == ".py":
            sources[path] = text
        elif path.suffix == ".md":
            prompts[f"{path.parent.name}/{path.stem}"] = text
        if sum(map(len, [*sources.values(), *prompts.values()])) > _MOST_TEXT:
            raise InvalidInput(f"{place}/.kapelle holds more than 2 MB that could be executed.")
    # Sorted, so that the order of files and settings does not change the digest.
    digest = hashlib.sha256(json.dumps(sorted(items.items())).encode()).hexdigest()
    return Executable(place, config, settings, sources, prompts, errors, items, digest)


@lru_cache(maxsize=4)
def _read_cached_records(path: Path, version: Stamp | None) -> dict[str, TrustRecord]:
    try:
        return _parse_records(path) if version else {}
    except _UNREADABLE:
        return {}


def _parse_records(path: Path) -> dict[str, TrustRecord]:
    return {place: TrustRecord(**record) for place, record in json.loads(read_own(path)).items()}


@contextmanager
def _hold_records(home: Home) -> Iterator[dict[str, TrustRecord]]:
    """Yield all records while no other process changes them. Blocks.

    Raises Conflict if they cannot be read, and Unavailable if another process keeps the lock.
    """
    home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The directory itself is locked: the file of the records is replaced at each write.
    descriptor = os.open(home.root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _lock(descriptor, home)
        try:
            if os.path.lexists(home.trust):
                records_by_place = _parse_records(home.trust)
            else:
                records_by_place = {}
        except _UNREADABLE as error:
            raise Conflict(
                f"{home.trust} cannot be read: {error}.",
                hint="Correct it, or delete it and trust your repositories again.",
            ) from error
        yield records_by_place
    finally:
        os.close(descriptor)


def _lock(descriptor: int, home: Home) -> None:
    """Lock the home. A process that keeps the lock for seconds is not Kapelle."""
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"Another process holds the lock of {home.root}.",
                    hint="End that process (`lslocks` lists it), and try again.",
                ) from None
        time.sleep(0.05)


def _write(home: Home, records_by_place: Mapping[str, TrustRecord]) -> None:
    data = {place: vars(record) for place, record in records_by_place.items()}
    write_private(home.trust, json.dumps(data, indent=1, ensure_ascii=False).encode())


def list_differences(before: Mapping[str, str], now: Mapping[str, str]) -> Iterable[str]:
    """Return the removed and added lines, as in a patch, without context."""
    import difflib

    for line in difflib.unified_diff(_list_lines(before), _list_lines(now), lineterm="", n=0):
        if not line.startswith(("---", "+++", "@@")):
            yield line


def _list_lines(items: Mapping[str, str]) -> list[str]:
    """Return each line of the items after the name of its item."""
    lines: list[str] = []
    for name, text in sorted(items.items()):
        lines += [f"{name}: {line}" for line in text.splitlines()]
    return lines
