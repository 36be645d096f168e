"""The environment that a process is given, and the files beside it.

It is that of the shell the work was asked for in. In a worktree nothing of it leads back into the
checkout that the worktree stands for, or a check would test files that the agent never touched.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kapelle.agents.base import AgentAdapter, AgentCommand, AgentRequest
from kapelle.domain.environment import allowed, fitting
from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import Shell
from kapelle.engine.output import SideLog
from kapelle.home import read_small
from kapelle.runner.shim import files as written
from kapelle.settings import Settings
from kapelle.settings.models import WorkspaceSettings
from kapelle.workspaces import checkouts_around

# Without these nothing runs, so the daemon's own stand in for what a client did not send.
_NEEDED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR")
# Variables that name programs or code by their paths.
_PATHS = """
PATH VIRTUAL_ENV PYTHONPATH PYTHONHOME CONDA_PREFIX UV_PROJECT_ENVIRONMENT NODE_PATH GOPATH GOBIN
GOWORK CARGO_TARGET_DIR CLASSPATH GEM_HOME GEM_PATH RUBYLIB BUNDLE_GEMFILE BUNDLE_PATH PERL5LIB
LD_LIBRARY_PATH DYLD_LIBRARY_PATH LIBRARY_PATH CPATH PKG_CONFIG_PATH
""".split()  # noqa: SIM905 - names read better as words


@dataclass(frozen=True)
class Origin:
    """What work was asked for in: a shell, and the checkouts that its worktree stands for."""

    shell: Shell | None = None
    checkouts: tuple[Path, ...] = ()
    worktree: Path | None = None

    @classmethod
    def of(
        cls, shell: Shell | None, directory: Path, worktree: Path | None, wanted: WorkspaceSettings
    ) -> "Origin":
        replaces = worktree is not None and wanted.checkout_paths == "replace"
        return cls(shell, checkouts_around(directory) if replaces else (), worktree)

    @classmethod
    def around(cls, directory: Path) -> "Origin":
        """For a process without a task: a linked worktree stands for the main checkout."""
        tops = checkouts_around(directory)
        if len(tops) > 1:
            return cls(None, tops[1:], tops[0])
        return cls()


@dataclass(frozen=True)
class Variables:
    """The variables of a process, with what was changed in them and what was left out."""

    values: dict[str, str]
    mapped: list[str]
    omitted: list[str]


def search_path_of(shell: Shell | None) -> str | None:
    """The PATH of the shell that work was asked for in; None where it is not known."""
    if shell:
        return shell.variables.get("PATH")
    return None


def passed(
    environ: Mapping[str, str], wanted: Sequence[str], shell: Shell | None = None
) -> dict[str, str]:
    """What may be passed on: of the shell if there is one, and what is wanted of the daemon's."""
    if shell is None:
        return {name: environ[name] for name in allowed(environ, wanted)}
    names = fitting(environ, [*_NEEDED, *wanted])
    sent = allowed(shell.variables, wanted)
    return {name: environ[name] for name in names} | {name: shell.variables[name] for name in sent}


def agent_environment(
    environ: Mapping[str, str],
    settings: Settings,
    agent: AgentAdapter,
    origin: Origin = Origin(),  # noqa: B008 - it is frozen
) -> dict[str, str]:
    """What an agent's process sees, before the variables of its command and its task."""
    env = passed(environ, [*settings.environment.pass_, *agent.passes], origin.shell)
    dropped = fitting(env, agent.drops) - set(agent.passes)
    env = {name: value for name, value in env.items() if name not in dropped}
    return env | settings.environment.set | agent.settings.env


def in_worktree(env: Mapping[str, str], origin: Origin) -> Variables:
    """The variables as a process in the worktree gets them: none leads into the checkout."""
    found = Variables(dict(env), [], [])
    if origin.worktree is None or not origin.checkouts:
        return found
    for name in _PATHS:
        if name not in env:
            continue
        entries = [_entry(name, entry, origin, found) for entry in env[name].split(os.pathsep)]
        kept = os.pathsep.join(entry for entry in entries if entry is not None)
        if kept:
            found.values[name] = kept
        else:
            del found.values[name]
    return found


def _entry(name: str, entry: str, origin: Origin, found: Variables) -> str | None:
    """One path of a variable as it is, the worktree's instead of it, or None."""
    inside = _inside(entry, origin)
    if inside is None:
        if not _leads_back(Path(entry), origin):
            return entry
        found.omitted.append(f"{name} {entry}, which is installed from your checkout")
        return None
    assert origin.worktree is not None
    own = origin.worktree / inside
    if not os.path.exists(own) or _leads_back(own, origin):
        found.omitted.append(f"{name} {entry}")
        return None
    found.mapped.append(f"{name} {entry} is {own}")
    return str(own)


def _inside(entry: str, origin: Origin) -> Path | None:
    """Where in a checkout a path leads, by its name or by its links; None if it does not."""
    if not os.path.isabs(entry) or origin.worktree is None:
        return None
    for path in (Path(os.path.normpath(entry)), Path(os.path.realpath(entry))):
        for top in () if path.is_relative_to(origin.worktree) else origin.checkouts:
            if path.is_relative_to(top):
                return path.relative_to(top)
    return None


def _leads_back(path: Path, origin: Origin) -> bool:
    """Whether this is of a virtual environment, by its name or its bin, that imports a checkout."""
    place = next((one for one in (path, path.parent) if (one / "pyvenv.cfg").is_file()), None)
    return place is not None and leads_into(place, origin.checkouts, origin.worktree)


def brought_along(settings: Settings, directory: str) -> tuple[list[str], list[str]]:
    """What is copied and what is linked into a worktree: nothing that leads into the checkout."""
    copied = paths_from_top(settings, "copy", Path(directory))
    linked = paths_from_top(settings, "link", Path(directory))
    back = set(leading_back(settings, [*copied, *linked], Path(directory)))
    return [path for path in copied if path not in back], [
        path for path in linked if path not in back
    ]


def paths_from_top(settings: Settings, how: str, directory: Path) -> list[str]:
    """Return the paths to copy or to link, from the top of the repository.

    Those of a configuration are relative to the directory that contains its .kapelle.
    """
    if how == "copy":
        paths = settings.workspace.copy_
    else:
        paths = settings.workspace.link
    place = settings.place_of(f"workspace.{how}")
    tops = checkouts_around(directory)
    if place is None or not tops or place == tops[0]:
        return paths
    inside = os.path.relpath(place, tops[0])
    return [os.path.join(inside, path) for path in paths]


def leading_back(settings: Settings, paths: Iterable[str], directory: Path) -> list[str]:
    """Those of the paths to be copied or linked by which code would come from the checkout."""
    replaces = settings.workspace.checkout_paths == "replace"
    if replaces:
        tops = checkouts_around(directory)
    else:
        tops = ()
    return [path for path in paths if tops and leads_into(tops[0] / path, tops)]


def leads_into(environment: Path, checkouts: Iterable[Path], but: Path | None = None) -> bool:
    """Whether packages come from a checkout: by an editable install, or as links to it."""
    own = re.escape(str(but)) if but else r"(?!)"
    tops = "|".join(re.escape(str(top)) for top in checkouts)
    found = re.compile(f"{own}|(?P<top>(?:{tops})(?![\\w.-]))")
    return any(match["top"] for text in _telling(environment) for match in found.finditer(text))


def _telling(place: Path) -> Iterator[str]:
    """What tells where the packages of a virtual environment or of node_modules come from."""
    for pattern in ("*.pth", "*.egg-link", "__editable__*.py"):
        for file in place.glob(f"lib/python*/site-packages/{pattern}"):
            with suppress(OSError, InvalidInput):
                yield read_small(file).decode("utf-8", "replace")
    for pattern in ("*", "@*/*") if place.name == "node_modules" else ():
        for link in place.glob(pattern):
            real = Path(os.path.realpath(link))
            # What is linked inside, such as a scope's own package, comes from nowhere else.
            if link.is_symlink() and not real.is_relative_to(os.path.realpath(place)):
                yield str(real)


def left_out(omitted: Sequence[str]) -> str:
    """A sentence about variables that lead into the checkout; empty if there are none."""
    if not omitted:
        return ""
    return (
        f"Not used in the worktree, because it lies in your checkout: {', '.join(omitted)}. "
        "Let workspace.setup make it there (`kapelle init` proposes how)."
    )


def place(process_dir: Path, files: Mapping[str, str]) -> None:
    """Write them, readable by their owner only, before the process is started."""
    process_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in files.items():
        written.replace(str(process_dir / name), content.encode("utf-8", "replace"))


def agent_command(
    agent: AgentAdapter, request: AgentRequest
) -> tuple[AgentCommand, SideLog | None]:
    """Return the command of an agent, and where it keeps a log of its own.

    All that the agent reads is written beside its prompt.
    """
    process_dir = request.prompt_file.parent
    place(process_dir, {request.prompt_file.name: request.prompt})
    command = agent.command(request)
    place(process_dir, command.files)
    if request.fork:
        resumed = None
    else:
        resumed = request.session_id
    if command.side_log is None:
        return command, None
    return command, SideLog(pattern=command.side_log, session_id=resumed)
