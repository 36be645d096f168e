"""`kapelle uninstall`: stop the daemon and remove what this home has left on the machine."""

import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kapelle.cli.daemon import installed_unit, stop_daemon
from kapelle.cli.figures import format_size
from kapelle.cli.interaction import can_ask, confirm
from kapelle.cli.mcp import configured_clients, remove_entry
from kapelle.cli.output import say
from kapelle.cli.parser import command, flag, reports
from kapelle.cli.result import Result
from kapelle.cli.view import repository_path
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Conflict, InvalidInput, KapelleError
from kapelle.domain.text import format_files
from kapelle.home import Home, write_private

if TYPE_CHECKING:
    from kapelle.client.records import WorkJson
    from kapelle.workspaces.uninstall import RepositoryLeftovers

WorkIdsByRepository: TypeAlias = dict[str, set[str]]

_SHELL_FILES = ("~/.bashrc", "~/.zshrc", "~/.config/fish/config.fish")
_COMPLETION = "kapelle completion "
# Directories beside config.toml with files that the user wrote.
_OWN_DIRECTORIES = ("patterns", "prompts")
# The first words of the file names in a home.
_NAMES_IN_HOME = frozenset(
    {
        "DS_Store", "attempts", "backups", "checks", "cli", "config", "containers", "credentials",
        "daemon", "files", "git", "identity", "kapelle", "library", "locks", "merges", "objects",
        "patterns", "processes", "prompts", "reserve", "runner", "runs", "said", "scratch",
        "search", "secrets", "sessions", "shares", "start", "tmp", "token", "trust", "worktrees",
    }
)  # fmt: skip


@dataclass(frozen=True)
class UninstallPlan:
    """Everything that `kapelle uninstall` removes, and the configuration that it keeps."""

    home: Home
    keep_work: bool
    repositories: "Sequence[RepositoryLeftovers]"
    service: str | None
    clients: list[str]
    shells: list[str]
    configuration: list[str]
    kept_configuration: list[str]

    def as_json(self) -> dict[str, object]:
        repositories = [
            {
                "repository": leftovers.repository,
                "worktrees": list(leftovers.worktrees),
                "merged": list(leftovers.merged),
                "unmerged": list(leftovers.unmerged),
                "archived": list(leftovers.archived),
            }
            for leftovers in self.repositories
        ]
        return {
            "home": str(self.home.root),
            "keep_work": self.keep_work,
            "repositories": repositories,
            "service": self.service,
            "clients": self.clients,
            "shells": self.shells,
            "configuration": self.configuration,
            "kept_configuration": self.kept_configuration,
        }

    def has_own_files(self) -> bool:
        """Tell whether patterns or prompts of the user are removed."""
        return any(Path(name).name != self.home.config.name for name in self.configuration)


@command("uninstall", "kapelle uninstall --dry-run", "kapelle uninstall --keep-work")
@flag(
    "--keep-work",
    help="Keep unmerged branches, archived content, your own patterns and prompts.",
)
@flag("--dry-run", help="A list of what would be removed, without a change.")
@flag("--yes", "-y", help="Remove it without a question.")
@reports
def uninstall(keep_work: bool, dry_run: bool, yes: bool) -> Result:
    """Stop the daemon and remove Kapelle's files from this machine.

    It lists everything first and asks: worktrees, branches, refs/kapelle, the service, entries in
    the files of MCP clients and shells, stored API keys, the user's configuration with its own
    patterns and prompts, and the home. Only what belongs to this home is removed. The program
    itself stays: `pipx uninstall kapelle` or `uv tool uninstall kapelle` removes it.
    """
    home = Home.default()
    _require_dedicated(home)
    owners: WorkIdsByRepository = {}
    if home.database.exists():
        owners = _list_work()
    plan = _make_plan(home, owners, keep_work)
    if dry_run:
        return Result(plan.as_json(), _plan_lines(plan))
    if not yes and not _confirm(plan):
        return Result({**plan.as_json(), "removed": False}, remarks=["Nothing was removed."])
    _remove(home, owners, keep_work)
    remarks = [
        "Kapelle is uninstalled. The program itself is removed by the tool that installed it:",
        "  pipx uninstall kapelle, or uv tool uninstall kapelle",
    ]
    return Result({**plan.as_json(), "removed": True}, remarks=remarks)


def _make_plan(home: Home, owners: WorkIdsByRepository, keep_work: bool) -> UninstallPlan:
    removed, kept = _divide_configuration(home, keep_work)
    return UninstallPlan(
        home=home,
        keep_work=keep_work,
        repositories=_find_leftovers(home, owners),
        service=_service_file(),
        clients=[str(path) for path in configured_clients()],
        shells=[str(path) for path in _shell_files()],
        configuration=removed,
        kept_configuration=kept,
    )


def _confirm(plan: UninstallPlan) -> bool:
    """Print the plan and ask; raise InvalidInput if nobody can answer."""
    for line in _plan_lines(plan):
        say(line)
    if not can_ask():
        raise InvalidInput(
            "Nothing was removed: this is no terminal, so nobody can confirm it.",
            hint="Add --yes to remove it, or --dry-run to list it only.",
        )
    if plan.has_own_files():
        return confirm("Remove all of this, your own patterns and prompts too?")
    return confirm("Remove all of this?")


def _require_dedicated(home: Home) -> None:
    """Raise Conflict if the home holds files that are not Kapelle's, such as a home directory."""
    if not home.root.is_dir():
        return
    names = sorted(entry.name for entry in home.root.iterdir())
    foreign = [name for name in names if _first_word(name) not in _NAMES_IN_HOME]
    if foreign:
        raise Conflict(
            f"{home.root} also holds files that are not Kapelle's: {format_files(foreign)}. "
            "Nothing was removed.",
            hint="Move them away, or remove by hand what belongs to Kapelle.",
        )


def _first_word(name: str) -> str:
    """Return a file name up to its first dot or hyphen, without a dot before it."""
    return re.split(r"[.-]", name.strip("."))[0]


def _list_work() -> WorkIdsByRepository:
    """Return the ids of all tasks and runs, by the path of their repository."""
    ids: WorkIdsByRepository = defaultdict(set)
    item: WorkJson
    query = {"archived": True, "nested": True, "light": True, "limit": 200}
    for item in DaemonConnection().pages("/work", query):
        ids[repository_path(item)].add(item["id"])
    return ids


def _service_file() -> str | None:
    unit = installed_unit()
    return str(unit.path) if unit else None


def _shell_files() -> list[Path]:
    """Return the start-up files of shells that load the completion."""
    files = []
    for name in _SHELL_FILES:
        path = Path(name).expanduser()
        with suppress(OSError, UnicodeDecodeError):
            if _COMPLETION in path.read_text(encoding="utf-8"):
                files.append(path)
    return files


def _divide_configuration(home: Home, keep_work: bool) -> tuple[list[str], list[str]]:
    """Return the files and links of the user's configuration to remove, and those to keep."""
    removed: list[str] = []
    kept: list[str] = []
    for entry in _configuration_entries(home):
        names = removed
        # The directory itself is an entry if it is a link.
        if keep_work and (entry.name in _OWN_DIRECTORIES or entry == home.config.parent):
            names = kept
        if entry.is_dir() and not entry.is_symlink():
            files = sorted(path for path in entry.rglob("*") if not path.is_dir())
            names += [str(path) for path in files if "__pycache__" not in path.parts]
        else:
            names.append(str(entry))
    return removed, kept


def _configuration_entries(home: Home) -> list[Path]:
    """Return the entries of the user's configuration directory.

    Where that is the home, they are config.toml and the directories of patterns and prompts.
    """
    directory = home.config.parent
    if directory != home.root:
        if directory.is_symlink():  # its target is not ours: it may be a repository of dotfiles
            return [directory]
        if directory.is_dir():
            return sorted(directory.iterdir())
        return []
    entries = [home.config, *(directory / name for name in _OWN_DIRECTORIES)]
    return [entry for entry in entries if entry.exists() or entry.is_symlink()]


def _remove_directory(directory: Path, keep_own: bool) -> None:
    """Remove a directory with its content; keep_own keeps the user's patterns and prompts."""
    if not directory.is_dir():
        return
    for entry in directory.iterdir():
        if keep_own and entry.name in _OWN_DIRECTORIES:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    with suppress(OSError):  # it is not empty, or a link
        directory.rmdir()


def _plan_lines(plan: UninstallPlan) -> Iterator[str]:
    """Yield what is removed, and what is kept."""
    yield "The daemon is stopped with its agents, and this is removed:"
    for leftovers in plan.repositories:
        yield f"  {leftovers.repository}"
        yield from _ref_lines("worktrees", leftovers.worktrees)
        yield from _ref_lines("merged branches", leftovers.merged)
        if not plan.keep_work:
            yield from _ref_lines("branches that are NOT merged", leftovers.unmerged)
            yield from _ref_lines("archived content", leftovers.archived)
    if plan.service:
        yield f"  service {plan.service}"
    for path in plan.clients:
        yield f"  MCP entry in {path}"
    for path in plan.shells:
        yield f"  completion in {path}"
    for path in plan.configuration:
        yield f"  configuration {path}"
    root = plan.home.root
    size = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir())
    yield f"  {root} ({format_size(size)}), with history, settings and API keys"
    if plan.keep_work:
        yield "Kept: branches that are not merged, and refs/kapelle."
        for path in plan.kept_configuration:
            yield f"  kept {path}"


def _ref_lines(noun: str, refs: Collection[str]) -> Iterator[str]:
    """Yield how many refs or worktrees there are, and each of them."""
    if refs:
        yield f"    {noun} ({len(refs)}):"
        for ref in refs:
            yield f"      {ref.removeprefix('refs/heads/')}"


def _find_leftovers(home: Home, owners: WorkIdsByRepository) -> "list[RepositoryLeftovers]":
    """Return what the tasks and runs of this home have left in their repositories."""
    from kapelle.workspaces.uninstall import find_leftovers

    nonempty = []
    for path, ids in sorted(owners.items()):
        leftovers = find_leftovers(path, home.root, ids)
        if leftovers is not None and not leftovers.is_empty:
            nonempty.append(leftovers)
    return nonempty


def _remove(home: Home, owners: WorkIdsByRepository, keep_work: bool) -> None:
    """Stop the daemon and remove everything of the plan."""
    from kapelle.workspaces.uninstall import bring_over_work, remove

    unit = installed_unit()
    if unit:
        with suppress(KapelleError):  # the service manager may be gone
            unit.tell("uninstall")
        unit.path.unlink()
    stop_daemon(agents=True)
    bring_over_work(home.root)
    # Listed again: agents may have moved their branches since the plan was made.
    for leftovers in _find_leftovers(home, owners):
        remove(leftovers, home.root, keep_work=keep_work)
    for path in configured_clients():
        remove_entry(path)
    for path in _shell_files():
        _remove_completion(path)
    _forget_keys(home)
    _remove_directory(home.root, keep_work)
    configuration = home.config.parent
    if configuration == home.root or not configuration.is_symlink():
        _remove_directory(configuration, keep_work)
    elif not keep_work:
        configuration.unlink()
    sys.stdout.flush()


def _remove_completion(path: Path) -> None:
    """Remove the line that loads the completion from the start-up file of a shell."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if _COMPLETION not in line)
    mode = path.stat().st_mode & 0o777
    write_private(path, text.encode())
    path.chmod(mode)


def _forget_keys(home: Home) -> None:
    """Remove the stored API keys of all agents in the settings."""
    from kapelle.secrets.vault import Vault
    from kapelle.settings import load

    vault = Vault(home)
    with suppress(KapelleError):  # settings that cannot be read name no agents
        for agent in load(home, None, os.environ).settings.agents:
            vault.forget(agent)
