"""`kapelle config`, and the repository that the current directory belongs to."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from kapelle.cli.command import CommandOutput, argument, command_group, flag, meant
from kapelle.cli.format import one_line, paint
from kapelle.cli.output import data, say
from kapelle.cli.values import refuse
from kapelle.domain.errors import NotFound
from kapelle.home import Home

if TYPE_CHECKING:
    from kapelle.settings import LoadedSettings

# A setting's dotted key, its value, and where that came from.
ConfigEntry = tuple[str, Any, str]


def current() -> Path:
    """The directory the command was typed in; if it is gone, the command ends with that error."""
    return Path.cwd()


def root(directory: Path) -> Path | None:
    """The top of the git working tree around a directory, found without running git."""
    start = Path(os.path.abspath(directory))
    return next((place for place in (start, *start.parents) if (place / ".git").exists()), None)


def config_file(directory: Path) -> Path:
    """Where the repository's settings are or would be."""
    return (root(directory) or Path(os.path.abspath(directory))) / ".kapelle" / "config.toml"


config = command_group("Show and change settings.\n\nWithout a command it shows all of them.")

Repo = Annotated[bool, flag("The repository's config instead of yours.", "--repo")]
SettingKeyArgument = Annotated[str, argument("KEY", "A setting, such as limits.max_attempts.")]


@config.command()
def show(
    key: str | None = argument("[KEY]", "Only this setting, or those under a name."),
    repo: Repo = False,
) -> CommandOutput:
    """Show settings and where their values came from."""
    if key is not None:
        refuse((repo, "--repo shows all that the repository sets.", "Leave KEY or --repo out."))
        yield from shown_entries(_entries_of(key))
        return
    found = loaded()
    entries = [e for e in found.show() if not repo or e[0] in found.by_repository]
    yield from shown_entries(entries)
    if repo and not entries and not found.held_back:
        say(f"{config_file(current())} sets nothing.")
    if found.held_back:
        names = one_line(", ".join(found.held_back), 200)
        say(f"Not trusted, so these of the repository do not hold: {names} (kapelle trust)")


@config.command()
def get(key: SettingKeyArgument) -> CommandOutput:
    """Print the value of one setting, or of all those under a name."""
    entries = _entries_of(key)
    yield next(shown_entries(entries))
    value = entries[0][1]
    if entries[0][0] != key:
        # Where one value came from is no part of several.
        _, *lines = shown_entries([(*entry[:2], "default") for entry in entries])
        yield from lines
    elif value is None:
        say(f"{key} is not set.")
    else:
        data(value if isinstance(value, str) else json.dumps(value))


def _entries_of(key: str) -> list[ConfigEntry]:
    """Return the setting of a name, or all settings under it."""
    known = list(loaded().show())
    entries = [entry for entry in known if entry[0] == key or entry[0].startswith(f"{key}.")]
    if not entries:
        names = dict.fromkeys(
            part for name, _, _ in known for part in (name, name.rpartition(".")[0])
        )
        raise NotFound(
            f"There is no setting {key!r}{meant(key, names)}.",
            hint="`kapelle config show` lists all.",
        )
    return entries


@config.command("set")
def set_(
    key: SettingKeyArgument,
    value: str = argument("VALUE", "Text, or a TOML value."),
    repo: Repo = False,
) -> CommandOutput:
    """Change one setting."""
    return change(key, value, repo)


@config.command()
def reset(key: SettingKeyArgument, repo: Repo = False) -> CommandOutput:
    """Take one setting out of the file, so that its default holds again."""
    return change(key, None, repo)


@config.command()
def path(repo: Repo = False) -> CommandOutput:
    """Print where the config file is."""
    file = _path(repo)
    yield {"path": str(file), "exists": file.exists()}
    data(str(file))


def loaded() -> "LoadedSettings":
    """The settings that hold here, and where each came from."""
    from kapelle.settings import load

    return load(Home.default(), current(), os.environ)


def shown_entries(entries: Iterable[ConfigEntry]) -> CommandOutput:
    """Settings with their values and, where it is not the default, where each came from."""
    yield {key: {"value": value, "origin": origin} for key, value, origin in entries}
    for key, value, origin in entries:
        if value is None:
            shown = "not set"
        else:
            shown = json.dumps(value, ensure_ascii=False)
        if origin == "default":
            note = ""
        else:
            note = paint(f"   # {one_line(origin)}", "dim")
        yield f"{key} = {one_line(shown)}{note}"


def change(key: str, value: str | None, repo: bool) -> CommandOutput:
    """Set a value in a file, or take the setting out of it, and say so."""
    from kapelle.cli.trust import ask
    from kapelle.settings import reset_value, set_value
    from kapelle.settings.trust import refusal

    if key == "default_agent" and not repo and (name := (value or "").strip("\"' ")):
        from kapelle.agents.registry import type_of
        from kapelle.settings import load

        # Better told now than by the next task; what a repository defines is not everywhere.
        type_of(name, load(Home.default(), None, os.environ).settings)
    path = _path(repo)
    if repo:
        scope: Literal["repository", "user"] = "repository"
    else:
        scope = "user"
    if value is None:
        reset_value(path, key, scope)
    else:
        set_value(path, key, value, scope)
    action = "reset" if value is None else "set"
    holds = not (repo and loaded().held_back)
    yield {"action": action, "key": key, "path": str(path), "holds": holds}
    say(f"{key} was {action} in {path}.")
    if not holds and not ask(refusal("", path.parent.parent)):
        say("It holds as soon as you trust what stands there: kapelle trust")


def _path(repo: bool) -> Path:
    if repo:
        return config_file(current())
    return Home.default().config
