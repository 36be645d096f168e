"""`kapelle uninstall`: stop the daemon and remove what this home has left on the machine."""

import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kapelle.cli.command import CommandOutput, flag
from kapelle.cli.daemon import installed_unit, stop_daemon
from kapelle.cli.format import repository_path, size
from kapelle.cli.mcp import configured_clients, remove_entry
from kapelle.cli.output import say
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Conflict, InvalidInput, KapelleError
from kapelle.domain.text import format_files
from kapelle.home import Home, write_private

if TYPE_CHECKING:
    from kapelle.client.records import WorkJson
    from kapelle.workspaces.uninstall import RepositoryLeftovers

_SHELL_FILES = ("~/.bashrc", "~/.zshrc", "~/.config/fish/config.fish")
_COMPLETION = "kapelle completion "
# Directories beside config.toml that hold what a person wrote.
_OWN_DIRECTORIES = ("patterns", "prompts")
# The names of the files in a home, up to the first dot or hyphen.
_NAMES_IN_HOME = frozenset(
    {
        "DS_Store", "attempts", "backups", "checks", "cli", "config", "containers", "credentials",
        "daemon", "files", "git", "identity", "kapelle", "library", "locks", "merges", "patterns",
        "processes", "prompts", "reserve", "runner", "runs", "said", "search", "secrets",
        "sessions", "start", "tmp", "token", "trust", "worktrees",
    }
)  # fmt: skip


def uninstall(
    keep_work: bool = flag("Keep unmerged branches, archived content, own patterns and prompts."),
    dry_run: bool = flag("Only list what would be removed."),
    yes: bool = flag("Remove it without asking.", "--yes", "-y"),
) -> CommandOutput:
    """Stop the daemon and remove what Kapelle has left on this machine.

    It lists everything first and asks: worktrees, branches, refs/kapelle, the service, entries in
    the files of MCP clients and shells, stored API keys, the user's configuration with its own
    patterns and prompts, and the home. Only what belongs to this home is removed. The program
    itself stays: `pipx uninstall kapelle` or `uv tool uninstall kapelle` removes it.
    """
    from kapelle.cli.follow import can_ask, read_line

    home = Home.default()
    _require_dedicated(home)
    if home.database.exists():
        owners = _owners()
    else:
        owners = {}
    leftovers = _leftovers(home, owners)
    plan: dict[str, Any] = {
        "home": str(home.root),
        "keep_work": keep_work,
        "repositories": [
            {
                "repository": one.repository,
                "worktrees": list(one.worktrees),
                "merged": list(one.merged),
                "unmerged": list(one.unmerged),
                "archived": list(one.archived),
            }
            for one in leftovers
        ],
        "service": _service(),
        "clients": [str(path) for path in configured_clients()],
        "shells": [str(path) for path in _shell_files()],
        **_configuration(home, keep_work),
    }
    if dry_run:
        yield plan
        yield from _lines(plan, home)
        return
    if not yes:
        for line in _lines(plan, home):
            say(line)
        if not can_ask():
            hint = "--yes removes it, --dry-run only lists it."
            raise InvalidInput("Nothing was removed: nobody is there to confirm it.", hint=hint)
        question = "Remove all of this? [y/N] "
        if any(Path(name).name != home.config.name for name in plan["configuration"]):
            question = "Remove all of this, your own patterns and prompts too? [y/N] "
        if (read_line(question) or "").strip().lower() not in {"y", "yes"}:
            yield {**plan, "removed": False}
            say("Nothing was removed.")
            return
    _remove(home, owners, keep_work)
    yield {**plan, "removed": True}
    say("Kapelle is uninstalled. The program itself is removed by the tool that installed it:")
    say("  pipx uninstall kapelle, or uv tool uninstall kapelle")


def _require_dedicated(home: Home) -> None:
    """Raise Conflict if the home holds files that are not Kapelle's, such as a home directory."""
    if not home.root.is_dir():
        return
    names = sorted(entry.name for entry in home.root.iterdir())
    foreign = [name for name in names if _stem(name) not in _NAMES_IN_HOME]
    if foreign:
        raise Conflict(
            f"{home.root} also holds files that are not Kapelle's: {format_files(foreign)}. "
            "Nothing was removed.",
            hint="Move them away, or remove by hand what belongs to Kapelle.",
        )


def _stem(name: str) -> str:
    return re.split(r"[.-]", name.strip("."))[0]


def _owners() -> dict[str, set[str]]:
    """Return the ids of all tasks and runs, by the path of their repository."""
    item: WorkJson
    owners: dict[str, set[str]] = defaultdict(set)
    query = {"archived": True, "nested": True, "light": True, "limit": 200}
    for item in DaemonConnection().pages("/work", query):
        owners[repository_path(item)].add(item["id"])
    return owners


def _service() -> str | None:
    unit = installed_unit()
    return str(unit.path) if unit else None


def _shell_files() -> list[Path]:
    """Return the start-up files of shells that load the completion."""
    found = []
    for name in _SHELL_FILES:
        path = Path(name).expanduser()
        with suppress(OSError, UnicodeDecodeError):
            if _COMPLETION in path.read_text(encoding="utf-8"):
                found.append(path)
    return found


def _configuration(home: Home, keep_work: bool) -> dict[str, list[str]]:
    """Return the files and links of the user's configuration that are removed, and those kept."""
    removed: list[str] = []
    kept: list[str] = []
    for entry in _configuration_entries(home):
        is_own = entry.name in _OWN_DIRECTORIES or entry == home.config.parent
        if keep_work and is_own:
            names = kept
        else:
            names = removed
        if entry.is_dir() and not entry.is_symlink():
            files = sorted(path for path in entry.rglob("*") if not path.is_dir())
            names += [str(path) for path in files if "__pycache__" not in path.parts]
        else:
            names.append(str(entry))
    return {"configuration": removed, "kept_configuration": kept}


def _configuration_entries(home: Home) -> list[Path]:
    """Return what lies in the user's configuration directory; in the home that is config.toml and
    the directories of patterns and prompts."""
    directory = home.config.parent
    if directory != home.root:
        if directory.is_symlink():  # what it leads to is not ours, such as somebody's dotfiles
            return [directory]
        if directory.is_dir():
            return sorted(directory.iterdir())
        return []
    entries = [home.config, *(directory / name for name in _OWN_DIRECTORIES)]
    return [entry for entry in entries if entry.exists() or entry.is_symlink()]


def _remove_directory(directory: Path, keep_own: bool) -> None:
    """Remove a directory with its content, but for the user's own patterns and prompts if those
    are kept."""
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


def _lines(plan: dict[str, Any], home: Home) -> Iterator[str]:
    """Return what is removed, and what is kept, as lines."""
    keep_work = plan["keep_work"]
    yield "The daemon is stopped with its agents, and this is removed:"
    for one in plan["repositories"]:
        yield f"  {one['repository']}"
        yield from _named(one["worktrees"], "worktrees")
        yield from _named(one["merged"], "merged branches")
        if not keep_work:
            yield from _named(one["unmerged"], "branches that are NOT merged")
            yield from _named(one["archived"], "archived content")
    for name in ("service", "clients", "shells"):
        if isinstance(plan[name], list):
            places = plan[name]
        else:
            places = [plan[name] or ""]
        words = {"service": "service", "clients": "MCP entry in", "shells": "completion in"}[name]
        yield from (f"  {words} {place}" for place in places if place)
    yield from (f"  configuration {path}" for path in plan["configuration"])
    stored = sum(path.lstat().st_size for path in home.root.rglob("*") if not path.is_dir())
    yield f"  {home.root} ({size(stored)}), with history, settings and API keys"
    if keep_work:
        yield "Kept: branches that are not merged, and refs/kapelle."
        yield from (f"  kept {path}" for path in plan["kept_configuration"])


def _named(refs: list[str], noun: str) -> Iterator[str]:
    if refs:
        yield f"    {noun} ({len(refs)}):"
        yield from (f"      {ref.removeprefix('refs/heads/')}" for ref in refs)


def _leftovers(home: Home, owners: dict[str, set[str]]) -> "list[RepositoryLeftovers]":
    from kapelle.workspaces.uninstall import find_leftovers

    found = [find_leftovers(path, home.root, ids) for path, ids in sorted(owners.items())]
    return [one for one in found if one is not None and not one.is_empty]


def _remove(home: Home, owners: dict[str, set[str]], keep_work: bool) -> None:
    from kapelle.secrets.vault import Vault
    from kapelle.settings import load
    from kapelle.workspaces.uninstall import remove

    if unit := installed_unit():
        with suppress(KapelleError):  # the service manager may be gone
            unit.tell("uninstall")
        unit.path.unlink()
    stop_daemon(agents=True)
    # Agents that were at work have moved their branches since they were listed.
    for one in _leftovers(home, owners):
        remove(one, home.root, keep_work=keep_work)
    for path in configured_clients():
        remove_entry(path)
    for path in _shell_files():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = "".join(line for line in lines if _COMPLETION not in line)
        mode = path.stat().st_mode & 0o777
        write_private(path, kept.encode())
        path.chmod(mode)
    vault = Vault(home)
    with suppress(KapelleError):  # settings that cannot be read name no agents
        for agent in load(home, None, os.environ).settings.agents:
            vault.forget(agent)
    _remove_directory(home.root, keep_work)
    configuration = home.config.parent
    if configuration != home.root and configuration.is_symlink():
        if not keep_work:
            configuration.unlink()
    else:
        _remove_directory(configuration, keep_work)
    sys.stdout.flush()
