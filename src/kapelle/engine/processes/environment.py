"""Build the environment of a process, and write the files beside it.

The base is the shell in which a person asked for the work. In a worktree, no variable may lead back
into the checkout; otherwise a check would test files that the agent never touched.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kapelle.agents.base import AgentAdapter, AgentCommand, AgentRequest
from kapelle.domain.environment import match_names, select_allowed
from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import Shell
from kapelle.engine.processes.output import SideLog
from kapelle.home import read_small
from kapelle.runner.shim import files as written
from kapelle.settings import Settings
from kapelle.settings.models import WorkspaceSettings
from kapelle.workspaces import checkouts_around

# Nothing runs without these, so the daemon's values replace those that a client did not send.
_NEEDED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR")
# Variables that name programs or code by their paths.
_PATHS = """
PATH VIRTUAL_ENV PYTHONPATH PYTHONHOME CONDA_PREFIX UV_PROJECT_ENVIRONMENT NODE_PATH GOPATH GOBIN
GOWORK CARGO_TARGET_DIR CLASSPATH GEM_HOME GEM_PATH RUBYLIB BUNDLE_GEMFILE BUNDLE_PATH PERL5LIB
LD_LIBRARY_PATH DYLD_LIBRARY_PATH LIBRARY_PATH CPATH PKG_CONFIG_PATH
""".split()  # noqa: SIM905 - names read better as words


@dataclass(frozen=True)
class Origin:
    """The shell that work was requested in, and the checkouts that its worktree replaces."""

    shell: Shell | None = None
    checkouts: tuple[Path, ...] = ()
    worktree: Path | None = None

    @classmethod
    def of(
        cls,
        shell: Shell | None,
        directory: Path,
        worktree: Path | None,
        settings: WorkspaceSettings,
    ) -> "Origin":
        replaces = worktree is not None and settings.checkout_paths == "replace"
        return cls(shell, checkouts_around(directory) if replaces else (), worktree)

    @classmethod
    def around(cls, directory: Path) -> "Origin":
        """Return the origin for a process without a task: a worktree replaces the main checkout."""
        tops = checkouts_around(directory)
        if len(tops) > 1:
            return cls(None, tops[1:], tops[0])
        return cls()


@dataclass(frozen=True)
class Variables:
    """The variables of a process, with the changed and the omitted paths."""

    values: dict[str, str]
    mapped: list[str]
    omitted: list[str]


def search_path_of(shell: Shell | None) -> str | None:
    """Return the PATH of the shell that requested the work; None if there is none."""
    if shell:
        return shell.variables.get("PATH")
    return None


def select_variables(
    environ: Mapping[str, str], allowed_names: Sequence[str], shell: Shell | None = None
) -> dict[str, str]:
    """Return the variables to pass on: those of the shell if there is one, else the daemon's."""
    if shell is None:
        return {name: environ[name] for name in select_allowed(environ, allowed_names)}
    names = match_names(environ, [*_NEEDED, *allowed_names])
    shell_names = select_allowed(shell.variables, allowed_names)
    return {name: environ[name] for name in names} | {
        name: shell.variables[name] for name in shell_names
    }


def agent_environment(
    environ: Mapping[str, str],
    settings: Settings,
    agent: AgentAdapter,
    origin: Origin = Origin(),  # noqa: B008 - it is frozen
) -> dict[str, str]:
    """Return an agent's variables, without those of its command and its task."""
    env = select_variables(environ, [*settings.environment.pass_, *agent.passes], origin.shell)
    # A variable that the agent needs itself is passed on even if a pattern drops it.
    dropped_names = match_names(env, agent.drops) - set(agent.passes)
    env = {name: value for name, value in env.items() if name not in dropped_names}
    return env | settings.environment.set | agent.settings.env


def map_into_worktree(env: Mapping[str, str], origin: Origin) -> Variables:
    """Return the variables for a process in the worktree; no path leads into the checkout."""
    variables = Variables(dict(env), [], [])
    if origin.worktree is None or not origin.checkouts:
        return variables
    for name in _PATHS:
        if name not in env:
            continue
        entries = [
            _map_entry(name, entry, origin, variables) for entry in env[name].split(os.pathsep)
        ]
        value = os.pathsep.join(entry for entry in entries if entry is not None)
        if value:
            variables.values[name] = value
        else:
            del variables.values[name]
    return variables


def _map_entry(name: str, entry: str, origin: Origin, variables: Variables) -> str | None:
    """Return one path of a variable: unchanged, mapped into the worktree, or None."""
    inside = _inside(entry, origin)
    if inside is None:
        if not _leads_back(Path(entry), origin):
            return entry
        variables.omitted.append(f"{name} {entry}, which is installed from your checkout")
        return None
    assert origin.worktree is not None
    own = origin.worktree / inside
    if not os.path.exists(own) or _leads_back(own, origin):
        variables.omitted.append(f"{name} {entry}")
        return None
    variables.mapped.append(f"{name} {entry} is {own}")
    return str(own)


def _inside(entry: str, origin: Origin) -> Path | None:
    """Return where in a checkout a path leads, by its name or by its links.

    Returns None if the path leads elsewhere.
    """
    if not os.path.isabs(entry) or origin.worktree is None:
        return None
    for path in (Path(os.path.normpath(entry)), Path(os.path.realpath(entry))):
        for top in () if path.is_relative_to(origin.worktree) else origin.checkouts:
            if path.is_relative_to(top):
                return path.relative_to(top)
    return None


def _leads_back(path: Path, origin: Origin) -> bool:
    """Return whether a path belongs to a virtual environment that imports a checkout."""
    environment = next(
        (candidate for candidate in (path, path.parent) if (candidate / "pyvenv.cfg").is_file()),
        None,
    )
    return environment is not None and leads_into(environment, origin.checkouts, origin.worktree)


def list_copies_and_links(
    settings: Settings, directory: str, rung: str | None
) -> tuple[list[str], list[str]]:
    """Return the paths to copy and the paths to link into a worktree.

    Paths through which code would come from the checkout are left out. Confined by namespaces,
    processes share these directories with the checkout, and no link is needed.
    """
    copies = paths_from_top(settings, "copy", Path(directory))
    links = paths_from_top(settings, "link", Path(directory))
    excluded = set(list_paths_into_checkout(settings, [*copies, *links], Path(directory)))
    copies = [path for path in copies if path not in excluded]
    if rung == "namespaces":
        return copies, []
    return copies, [path for path in links if path not in excluded]


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
    # A .kapelle below the top names paths relative to its own directory.
    inside = os.path.relpath(place, tops[0])
    return [os.path.join(inside, path) for path in paths]


def list_paths_into_checkout(
    settings: Settings, paths: Iterable[str], directory: Path
) -> list[str]:
    """Return those of the paths through which code would come from the checkout."""
    if settings.workspace.checkout_paths != "replace":
        return []
    tops = checkouts_around(directory)
    return [path for path in paths if tops and leads_into(tops[0] / path, tops)]


def leads_into(environment: Path, checkouts: Iterable[Path], but: Path | None = None) -> bool:
    """Return whether packages come from a checkout: an editable install, or links to it."""
    own = re.escape(str(but)) if but else r"(?!)"
    tops = "|".join(re.escape(str(top)) for top in checkouts)
    # The alternative that is excepted comes first, for its path may begin with that of a checkout.
    pattern = re.compile(f"{own}|(?P<top>(?:{tops})(?![\\w.-]))")
    for text in _read_references(environment):
        if any(match["top"] for match in pattern.finditer(text)):
            return True
    return False


def _read_references(place: Path) -> Iterator[str]:
    """Yield the texts that name the sources of the packages in an environment."""
    for pattern in ("*.pth", "*.egg-link", "__editable__*.py"):
        for file in place.glob(f"lib/python*/site-packages/{pattern}"):
            with suppress(OSError, InvalidInput):
                yield read_small(file).decode("utf-8", "replace")
    for pattern in ("*", "@*/*") if place.name == "node_modules" else ():
        for link in place.glob(pattern):
            real = Path(os.path.realpath(link))
            # A link inside, such as one to a scope's own package, is no foreign source.
            if link.is_symlink() and not real.is_relative_to(os.path.realpath(place)):
                yield str(real)


def explain_omitted(omitted: Sequence[str]) -> str:
    """Return a sentence about variables that lead into the checkout; empty if there are none."""
    if not omitted:
        return ""
    return (
        f"Not used in the worktree, because it is in your checkout: {', '.join(omitted)}. "
        "Let workspace.setup create it there (`kapelle init` proposes how)."
    )


def write_files(process_dir: Path, files: Mapping[str, str]) -> None:
    """Write files that only their owner can read, before the process starts."""
    process_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in files.items():
        written.replace(str(process_dir / name), content.encode("utf-8", "replace"))


def build_agent_command(
    agent: AgentAdapter, request: AgentRequest
) -> tuple[AgentCommand, SideLog | None]:
    """Return the command of an agent, and where the agent keeps a log of its own.

    Everything that the agent reads is written beside its prompt.
    """
    process_dir = request.prompt_file.parent
    write_files(process_dir, {request.prompt_file.name: request.prompt})
    command = agent.command(request)
    write_files(process_dir, command.files)
    if request.fork:
        session_id = None
    else:
        session_id = request.session_id
    if command.side_log is None:
        return command, None
    return command, SideLog(pattern=command.side_log, session_id=session_id)
