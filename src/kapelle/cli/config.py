"""`kapelle config`, and the repository that the current directory belongs to."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kapelle.cli.command import LightCommand, LightGroup
from kapelle.cli.format import one_line
from kapelle.cli.options import Json
from kapelle.cli.output import data, document, say
from kapelle.domain.errors import InvalidInput, NotFound
from kapelle.home import Home


def current() -> Path:
    """The directory the command was typed in."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InvalidInput(
            "The current directory no longer exists.", hint="Change to another one first."
        ) from None


def root(directory: Path) -> Path | None:
    """The top of the git working tree around a directory, found without running git."""
    start = Path(os.path.abspath(directory))
    return next((place for place in (start, *start.parents) if (place / ".git").exists()), None)


def config_file(directory: Path) -> Path:
    """Where the repository's settings are or would be."""
    return (root(directory) or Path(os.path.abspath(directory))) / ".kapelle" / "config.toml"


config = typer.Typer(
    cls=LightGroup,
    help="Show and change settings.",
    add_completion=False,
    rich_markup_mode=None,
)

Repo = Annotated[bool, typer.Option("--repo", help="The repository's config instead of yours.")]
Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="A setting, such as limits.max_attempts.", show_default=False
    ),
]


@config.callback()
def _group() -> None:
    """Show and change settings."""


@config.command(cls=LightCommand)
def show(repo: Repo = False, as_json: Json = False) -> None:
    """Show every setting and where its value came from."""
    entries = [entry for entry in _entries() if not repo or entry[2].startswith("repository")]
    if as_json:
        document({key: {"value": value, "origin": origin} for key, value, origin in entries})
        return
    from kapelle.cli.format import paint

    for key, value, origin in entries:
        shown = one_line(_written(value))
        note = "" if origin == "default" else paint(f"   # {one_line(origin)}", "dim")
        sys.stdout.write(f"{key} = {shown}{note}\n")
    if repo and not entries:
        say(f"{config_file(current())} sets nothing.")


@config.command(cls=LightCommand)
def get(key: Key, as_json: Json = False) -> None:
    """Print the value of one setting, or of all those under a name."""
    entries = [entry for entry in _entries() if entry[0] == key or entry[0].startswith(f"{key}.")]
    if not entries:
        raise NotFound(
            f"There is no setting {key!r}{_meant(key)}.", hint="`kapelle config show` lists all."
        )
    if as_json:
        document({name: {"value": value, "origin": origin} for name, value, origin in entries})
    elif len(entries) == 1 and entries[0][0] == key:
        _show_value(*entries[0][:2])
    else:
        for name, value, _ in entries:
            data(f"{name} = {one_line(_written(value))}")


@config.command("set", cls=LightCommand)
def set_(
    key: Key,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="Text, or a TOML value.", show_default=False)
    ],
    repo: Repo = False,
    as_json: Json = False,
) -> None:
    """Change one setting."""
    from kapelle.settings import set_value

    path = config_path(repo)
    set_value(path, key, value, "repository" if repo else "user")
    told("set", key, path, as_json)


@config.command(cls=LightCommand)
def reset(key: Key, repo: Repo = False, as_json: Json = False) -> None:
    """Take one setting out of the file, so that its default holds again."""
    from kapelle.settings import reset_value

    path = config_path(repo)
    reset_value(path, key, "repository" if repo else "user")
    told("reset", key, path, as_json)


@config.command(cls=LightCommand)
def path(repo: Repo = False, as_json: Json = False) -> None:
    """Print where the config file is."""
    file = config_path(repo)
    if as_json:
        document({"path": str(file), "exists": file.exists()})
    else:
        data(str(file))


def config_path(repo: bool) -> Path:
    """The file that is changed."""
    return config_file(current()) if repo else Home.default().config


def _entries() -> list[tuple[str, Any, str]]:
    from kapelle.settings import load

    return list(load(Home.default(), current(), os.environ).show())


def _meant(key: str) -> str:
    import difflib

    known = {name: None for name, _, _ in _entries()}
    sections = {name.rpartition(".")[0]: None for name in known}
    close = difflib.get_close_matches(key, [*known, *sections], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _written(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _show_value(key: str, value: Any) -> None:
    if value is None:
        say(f"{key} is not set.")
    else:
        data(value if isinstance(value, str) else json.dumps(value))


def told(action: str, key: str, path: Path, as_json: bool) -> None:
    """Say what was done to which file."""
    if as_json:
        document({"action": action, "key": key, "path": str(path)})
    else:
        say(f"{key} was {action} in {path}.")
