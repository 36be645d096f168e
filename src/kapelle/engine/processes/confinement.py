"""Decide which paths a confined process may reach, and by what means it is confined."""

import asyncio
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kapelle.agents.base import AgentFiles
from kapelle.domain.errors import InvalidInput, WorkspaceError
from kapelle.home import Home
from kapelle.runner.shim.request import Confinement
from kapelle.runner.spawner_client import install
from kapelle.settings.models import ConfineSettings

# The rungs of the ladder, the strongest first.
RUNGS = ("namespaces", "bubblewrap", "landlock")
# Those that can put the workspace at another path.
WITH_MOUNTS = frozenset({"namespaces", "bubblewrap"})
_PROBE_S = 30.0
INSTRUCTIONS = (
    "You work in a sandbox. You can write to your working directory, to /tmp and to the caches of "
    "package managers; everything else is read-only. Private files look empty or missing. Do not "
    "work around a refused access: name the path and the reason in your answer."
)
# Bounded, so that no output takes long to search.
_REFUSED = re.compile(
    r"(/[^\s:'\"`,;()]{1,300})['\"`]?: (?:Read-only file system|Permission denied)"
)
_ERROR_30 = re.compile(r"(?:\[Errno 30\]|EROFS)[^'\"\n]{0,100}['\"](/[^'\"\n]{1,300})['\"]")
_MOST_REFUSALS = 5
_TURN_OFF = "kapelle config set confine.level off runs agents without confinement."


class Confiner:
    """Knows which rungs of confinement hold on this machine, because it has tried them."""

    def __init__(self, home: Home) -> None:
        self._home = home
        # For each rung why it does not hold, None if it holds.
        self.problems: dict[str, str | None] = dict.fromkeys(RUNGS, "it was not tried yet")

    async def probe(self) -> None:
        """Try every rung, in a process of its own."""
        if sys.platform == "linux":
            self.problems = await self._try_all()
        else:
            self.problems = dict.fromkeys(RUNGS, "it needs Linux")

    def choose_rung(self, settings: ConfineSettings) -> str | None:
        """Return the rung for a process; None if the person has turned confinement off.

        Raises WorkspaceError if no rung holds, or not the one that the settings demand: a process
        is never started with less than that.
        """
        if settings.level == "off":
            return None
        if settings.level != "auto":
            problem = self.problems[settings.level]
            if problem is None:
                return settings.level
            raise WorkspaceError(
                f"Processes cannot be confined by {settings.level}: {problem}.", hint=_TURN_OFF
            )
        for rung in RUNGS:
            if self.problems[rung] is None:
                return rung
        reasons = "; ".join(f"{name}: {problem}" for name, problem in self.problems.items())
        raise WorkspaceError(f"Processes cannot be confined here ({reasons}).", hint=_TURN_OFF)

    async def _try_all(self) -> dict[str, str | None]:
        program = install(self._home.root).with_name("probe.py")
        root = str(self._home.root)
        command = [sys.executable, "-I", "-S", str(program), root]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_PROBE_S):
                output, errors = await process.communicate()
            problems: dict[str, str | None] = json.loads(output)
        except TimeoutError:
            process.kill()
            await process.wait()
            return dict.fromkeys(RUNGS, f"the probe did not end within {_PROBE_S:g} s")
        except ValueError:
            reason = errors.decode("utf-8", "replace").strip().splitlines()[-1:]
            return dict.fromkeys(RUNGS, f"the probe failed: {' '.join(reason)}")
        return problems


@dataclass(frozen=True)
class ConfinedPlace:
    """Where a process works, and what it needs of Kapelle's own files."""

    # The workspace on the disk, and the path at which the process sees it.
    workspace: Path
    path: Path
    # The private directory that stands at /tmp.
    tmp: Path
    # Files of Kapelle that the process reads, and those that it writes, such as a log beside its
    # prompt.
    shown: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    # Paths below writable ones, or in the workspace, that stay as they are.
    pinned: tuple[Path, ...] = ()
    # Objects of repositories that the workspace borrows: (directory, neutral path).
    objects: tuple[tuple[Path, Path], ...] = ()
    overlays: tuple[tuple[tuple[Path, ...], Path, Path, Path], ...] = ()
    is_read_only: bool = False
    # Whether the workspace is a repository that Kapelle made.
    has_own_repository: bool = False


@dataclass(frozen=True)
class ConfinementPolicy:
    """The paths that processes may reach by the settings of the person."""

    settings: ConfineSettings
    person_home: Path
    kapelle_home: Path
    kapelle_config: Path
    # Variables of the process, some of which name directories with programs or caches.
    variables: Mapping[str, str] = field(default_factory=dict)
    agent: AgentFiles = field(default_factory=AgentFiles)

    def confine(self, rung: str, place: ConfinedPlace) -> Confinement:
        """Return the confinement of one process.

        Raises InvalidInput if a setting would let it write a directory with programs.
        """
        allowed = set(self._find(self._allowed_paths()))
        own = [str(self.kapelle_home), str(self.kapelle_config)]
        hidden = [
            path for path in self._find([*_defaults()["hidden"], *own]) if path not in allowed
        ]
        hidden += self._find(self.settings.hide)
        writable = self._writable_paths()
        pinned = [*self._pin_files(writable), *self._find(map(str, place.pinned))]
        writable += self._find(map(str, place.writable))
        workspace = (os.path.realpath(place.workspace), os.path.realpath(place.path))
        binds = []
        read_only_binds = [(os.path.realpath(top), str(path)) for top, path in place.objects]
        if place.is_read_only:
            read_only_binds.append(workspace)
        elif rung == "landlock":
            # Nothing can be mounted, so the workspace stays where it is.
            writable.append(workspace[0])
            allowed |= {os.path.realpath(top) for top, _ in place.objects}
        else:
            binds.append(workspace)
            repository = os.path.join(workspace[0], ".git")
            if place.has_own_repository and os.path.isdir(repository):
                # Mounted by itself, it cannot be replaced by another one.
                binds.append((repository, os.path.join(workspace[1], ".git")))
        shown = [*self._find(_defaults()["shown"]), *allowed, *self._find_programs()]
        # The home directory itself may lie in /tmp, which is replaced.
        shown += self._find([str(self.person_home), *map(str, place.shown)])
        return Confinement(
            {
                "rung": rung,
                "hidden": tuple(_outermost(hidden)),
                "shown": tuple(path for path in dict.fromkeys(shown) if _is_covered(path, hidden)),
                "writable": tuple(writable),
                "pinned": tuple(pinned),
                "binds": tuple(binds),
                "read_only_binds": tuple(read_only_binds),
                "overlays": tuple(
                    (tuple(map(str, layers)), str(changes), str(work), str(path))
                    for layers, changes, work, path in place.overlays
                ),
                "sockets": tuple(self._find(self._allowed_sockets())),
                "tmp": os.path.realpath(place.tmp),
                "devices": tuple(_list_devices()),
                "network": self.settings.network,
            }
        )

    def _allowed_paths(self) -> list[str]:
        paths = [*self.settings.read, *self.settings.write, *self._allowed_sockets()]
        for name in self.settings.allow:
            paths += _defaults()["presets"][name].get("read", [])
        return paths

    def _allowed_sockets(self) -> list[str]:
        sockets: list[str] = []
        for name in self.settings.allow:
            sockets += _defaults()["presets"][name].get("sockets", [])
        return sockets

    def _find_programs(self) -> list[str]:
        """Return the directories with programs, which may lie in a covered directory."""
        directories = [sys.prefix, sys.base_prefix, str(Path(__file__).parents[3])]
        for entry in self.variables.get("PATH", os.defpath).split(os.pathsep):
            if os.path.isabs(entry) and os.path.isdir(entry):
                is_environment = os.path.exists(os.path.join(entry, "..", "pyvenv.cfg"))
                directories.append(os.path.dirname(entry) if is_environment else entry)
        return self._find(directories)

    def _writable_paths(self) -> list[str]:
        """Return the paths outside the workspace that can be written."""
        caches = list(_defaults()["caches"])
        for name in _defaults()["cache_variables"]:
            if os.path.isabs(self.variables.get(name, "")):
                caches.append(self.variables[name])
        paths = self._find([*caches, *self.agent.state])
        own = self._find(self.settings.write)
        for path in own:
            self._refuse_programs(path)
        return _outermost([*paths, *own])

    def _refuse_programs(self, path: str) -> None:
        for directory in self.variables.get("PATH", os.defpath).split(os.pathsep):
            if directory and _is_below(os.path.realpath(directory), path):
                raise InvalidInput(
                    f"confine.write cannot hold {path}: {directory} is on your PATH.",
                    hint="An agent could replace a program that you start. Name a directory in it.",
                )

    def _pin_files(self, writable: Sequence[str]) -> list[str]:
        """Create the files of the agent that are missing; return those that can be pinned."""
        pinned = []
        for name in self.agent.pinned:
            path = os.path.join(self.person_home, name.rstrip("/"))
            if not os.path.isdir(os.path.dirname(path)):
                continue
            if not os.path.lexists(path):
                _create_empty(path, is_directory=name.endswith("/"))
            real = os.path.realpath(path)
            if any(_is_below(real, top) for top in writable):
                pinned.append(real)
        return pinned

    def _find(self, paths: Iterable[str]) -> list[str]:
        """Return the real paths of those that exist, each once."""
        real = []
        for path in paths:
            absolute = os.path.join(self.person_home, os.path.expanduser(path))
            if os.path.exists(absolute):
                real.append(os.path.realpath(absolute))
        return list(dict.fromkeys(real))


def find_refusals(output: str, workspace: Path) -> list[str]:
    """Return the paths outside the workspace that a confined process was refused to write.

    They are read from messages of programs, so there may be others that no program reported.
    """
    paths = [match[1] for match in _REFUSED.finditer(output)]
    paths += [match[1] for match in _ERROR_30.finditer(output)]
    outside = [path for path in dict.fromkeys(paths) if not _is_below(path, str(workspace))]
    return outside[:_MOST_REFUSALS]


def explain_refusals(paths: Sequence[str]) -> str:
    """Return what was refused, and the setting that would allow it."""
    places = json.dumps(sorted({os.path.dirname(path) for path in paths}))
    return (
        f"The sandbox refused to write {', '.join(paths)}. To allow it: "
        f"kapelle config set confine.write {shlex.quote(places)}"
    )


@cache
def _defaults() -> dict[str, Any]:
    file = Path(__file__).with_suffix(".toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _list_devices() -> list[str]:
    names = []
    present = os.listdir("/dev")
    for pattern in _defaults()["devices"]:
        if pattern.endswith("*"):
            names += [name for name in present if name.startswith(pattern[:-1])]
        elif pattern in present:
            names.append(pattern)
    return [f"/dev/{name}" for name in names]


def _create_empty(path: str, *, is_directory: bool) -> None:
    """Create an empty file or directory; an empty JSON file holds an empty object."""
    if is_directory:
        os.mkdir(path, 0o700)
        return
    content = b"{}\n" if path.endswith(".json") else b""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


def _is_covered(path: str, hidden: Sequence[str]) -> bool:
    return any(_is_below(path, top) for top in (*hidden, "/run", "/tmp", "/var/tmp"))


def _outermost(paths: Sequence[str]) -> list[str]:
    """Leave out paths below others.

    An agent could have replaced an inner path by a link to a place outside.
    """
    return [
        path
        for path in dict.fromkeys(paths)
        if not any(path != top and _is_below(path, top) for top in paths)
    ]
