"""`kapelle config`, and the repository that the current directory belongs to."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kapelle.cli.layout import paint
from kapelle.cli.output import plain_line
from kapelle.cli.parser import CliGroup, argument, flag, reports
from kapelle.cli.result import Result
from kapelle.cli.text import one_line
from kapelle.cli.usage_errors import did_you_mean
from kapelle.cli.values import refuse
from kapelle.domain.errors import NotFound
from kapelle.home import Home

if TYPE_CHECKING:
    from kapelle.settings import LoadedSettings

# A setting's dotted key, its value, and where that came from.
ConfigEntry = tuple[str, Any, str]


def current() -> Path:
    """Return the current directory; raises FileNotFoundError if it is gone."""
    return Path.cwd()


def root(directory: Path) -> Path | None:
    """Return the top of the git working tree around a directory, without running git."""
    start = Path(os.path.abspath(directory))
    return next((place for place in (start, *start.parents) if (place / ".git").exists()), None)


def config_file(directory: Path) -> Path:
    """Return the path of the repository's settings, which may not exist."""
    return (root(directory) or Path(os.path.abspath(directory))) / ".kapelle" / "config.toml"


config = CliGroup(
    "config",
    help="Show and change settings.\n\nWithout a command it shows all of them.",
    default_command="show",
    examples=["kapelle config show limits", "kapelle config set limits.max_attempts 8"],
)

repo_flag = flag("--repo", help="The repository's configuration instead of yours.")
key_argument = argument(
    "key", metavar="KEY", help="Name of a setting, such as limits.max_attempts."
)


@config.command("show")
@argument(
    "key", metavar="KEY", required=False, help="Setting to show, or the beginning of several."
)
@repo_flag
@reports
def show(key: str | None, repo: bool) -> Result:
    """Show settings and where their values came from."""
    if key is not None:
        refuse((repo, "--repo shows all that the repository sets.", "Leave KEY or --repo out."))
        return show_entries(_entries_of(key))
    settings = loaded()
    entries = list(settings.show())
    if repo:
        entries = [entry for entry in entries if entry[0] in settings.by_repository]
    remarks = []
    if repo and not entries and not settings.held_back:
        remarks.append(f"{config_file(current())} sets nothing.")
    if settings.held_back:
        names = one_line(", ".join(settings.held_back), 200)
        remarks.append(
            f"These settings of the repository apply only when you trust it: {names} "
            "(kapelle trust)"
        )
    return replace(show_entries(entries), remarks=remarks)


@config.command("get")
@key_argument
@reports
def get(key: str) -> Result:
    """Print the value of one setting, or of all those under a name."""
    entries = _entries_of(key)
    result = show_entries(entries)
    name, value, _ = entries[0]
    if name != key:
        # Where each of several values came from is left out.
        lines = entry_lines([(name, value, "default") for name, value, _ in entries])
        return replace(result, lines=lines)
    if value is None:
        return replace(result, lines=(), remarks=[f"{key} is not set."])
    text = value if isinstance(value, str) else json.dumps(value)
    return replace(result, lines=[plain_line(text)])


def _entries_of(key: str) -> list[ConfigEntry]:
    """Return the setting of a name, or all settings under it."""
    settings = list(loaded().show())
    entries = [entry for entry in settings if entry[0] == key or entry[0].startswith(f"{key}.")]
    if entries:
        return entries
    names: dict[str, None] = {}
    for name, _, _ in settings:
        names[name] = None
        names[name.rpartition(".")[0]] = None
    raise NotFound(
        f"There is no setting {key!r}{did_you_mean(key, names)}.",
        hint="`kapelle config show` lists all.",
    )


@config.command("set", examples=["kapelle config set default_agent claude"])
@key_argument
@argument("value", metavar="VALUE", help="Text, or a TOML value.")
@repo_flag
@reports
def set_(key: str, value: str, repo: bool) -> Result:
    """Change one setting."""
    return change(key, value, repo)


@config.command("reset")
@key_argument
@repo_flag
@reports
def reset(key: str, repo: bool) -> Result:
    """Remove one setting from the file, so that its default applies again."""
    return change(key, None, repo)


@config.command("path")
@repo_flag
@reports
def path(repo: bool) -> Result:
    """Print the path of the configuration file."""
    file = _file(repo)
    return Result({"path": str(file), "exists": file.exists()}, [plain_line(str(file))])


def loaded() -> "LoadedSettings":
    """Return the settings that apply here, and where each came from."""
    from kapelle.settings import load

    return load(Home.default(), current(), os.environ)


def show_entries(entries: Sequence[ConfigEntry]) -> Result:
    """Return settings with their values and where each came from."""
    data = {key: {"value": value, "origin": origin} for key, value, origin in entries}
    return Result(data, entry_lines(entries))


def entry_lines(entries: Iterable[ConfigEntry]) -> Iterator[str]:
    """Return a line for each setting, with the origin of a value that is not the default."""
    for key, value, origin in entries:
        text = "not set"
        if value is not None:
            text = json.dumps(value, ensure_ascii=False)
        line = f"{key} = {one_line(text)}"
        if origin != "default":
            line += paint(f"   # {one_line(origin)}", "dim")
        yield line


def change(key: str, value: str | None, repo: bool) -> Result:
    """Set a value in a file, or remove the setting from the file."""
    from kapelle.settings import reset_value, set_value

    if key == "default_agent" and not repo:
        _require_agent((value or "").strip("\"' "))
    path = _file(repo)
    scope: Literal["repository", "user"] = "repository" if repo else "user"
    if value is None:
        action = "reset"
        reset_value(path, key, scope)
    else:
        action = "set"
        set_value(path, key, value, scope)
    holds = not (repo and loaded().held_back)
    data = {"action": action, "key": key, "path": str(path), "holds": holds}
    return Result(data, remarks=_change_remarks(key, action, path, holds))


def _change_remarks(key: str, action: str, path: Path, holds: bool) -> Iterator[str]:
    """Return the remarks about a change; ask whether to trust the repository if need be."""
    from kapelle.cli.trust import ask
    from kapelle.settings.trust import refusal

    yield f"{key} was {action} in {path}."
    if not holds and not ask(refusal("", path.parent.parent)):
        yield "It applies as soon as you trust the repository: kapelle trust"


def _require_agent(name: str) -> None:
    """Raise AgentNotFound for an unknown agent, before the next task would."""
    if not name:
        return
    from kapelle.agents.registry import type_of
    from kapelle.settings import load

    # Agents that a repository defines do not exist elsewhere.
    type_of(name, load(Home.default(), None, os.environ).settings)


def _file(repo: bool) -> Path:
    if repo:
        return config_file(current())
    return Home.default().config
