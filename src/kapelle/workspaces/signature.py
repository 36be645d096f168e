"""Signatures of a person's merges, and the hooks that Kapelle's git does not run.

How commits are signed is read from the person's own configuration of git alone: a repository's
names programs, and whoever can write into a repository would choose what is executed.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kapelle.workspaces.git import Git, GitLocation
from kapelle.workspaces.repository import find_checkout, own_configuration, read_person

_SIGNING_KEYS = r"^(gpg\..*|user\.signingkey)$"
# What the programs that sign need to find their keys and agents.
_VARIABLES = ("HOME", "GNUPGHOME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "GPG_TTY")
_HOOKS = (
    "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "pre-merge-commit",
    "post-merge", "post-rewrite",
)  # fmt: skip
_TRUE = "commit.gpgsign"
_HOOKS_PATH = "core.hookspath"


@dataclass(frozen=True)
class Signing:
    """Settings and variables by which git signs a commit as its person configured it."""

    settings: tuple[str, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Habits:
    """What git does at a person's own commits in a repository."""

    signs: bool
    # Whether only the repository's own configuration asks for signatures.
    repository_signs: bool
    hooks: tuple[str, ...]
    # Whether git knows a name and an address for this person.
    has_identity: bool


async def read_signing(git: Git, common_dir: Path) -> Signing | None:
    """Return how this person's own configuration signs commits; None if it does not."""
    place = _place(git, common_dir)
    if not await _is_on(place, "--global"):
        return None
    options = ("-z", "--global", "--includes", "--get-regexp", _SIGNING_KEYS)
    output = await place.run("config", *options, ok=(0, 1, 128))
    values = {"gpg.program": "gpg"}
    for record in output.fields:
        key, _, value = record.decode("utf-8", "surrogateescape").partition("\n")
        values[key] = value
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return Signing(tuple(f"{key}={value}" for key, value in values.items()), variables)


async def read_habits(git: Git, common_dir: Path) -> Habits:
    """Return what git would do at a person's own commits: signatures and hooks."""
    place = _place(git, common_dir)
    signs = await _is_on(place, "--global")
    is_asked_for = await _is_on(place)
    output = await place.run("config", "-z", "--type=path", "--get", _HOOKS_PATH, ok=(0, 1))
    text = output.stdout.decode("utf-8", "surrogateescape").rstrip("\0")
    if text:
        hooks = Path(os.path.join(common_dir.parent, text))
    else:
        hooks = common_dir / "hooks"
    found = tuple(name for name in _HOOKS if os.access(hooks / name, os.X_OK))
    person = await read_person(git, common_dir)
    has_identity = {"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL"} <= person.keys()
    return Habits(signs, is_asked_for and not signs, found, has_identity)


async def read_habits_of(directory: Path) -> Habits | None:
    """Return what git does at a person's own commits around a directory; None outside of git."""
    checkout = find_checkout(directory)
    if checkout is None:
        return None
    git = Git("git", Path(os.devnull), "Kapelle", "kapelle@localhost")
    try:
        return await read_habits(git, checkout.common_dir)
    finally:
        git.close()


def _place(git: Git, common_dir: Path) -> GitLocation:
    if "HOME" in os.environ:
        home = {"HOME": os.environ["HOME"]}
    else:
        home = {}
    variables = {"GIT_DIR": str(common_dir), **home, **own_configuration()}
    return _Plain(git, common_dir, variables)


class _Plain(GitLocation):
    """Git without Kapelle's own settings, to read what a person configured; it runs nothing."""

    @property
    def hardening(self) -> tuple[str, ...]:
        return ()


async def _is_on(place: GitLocation, *scope: str) -> bool:
    options = ("--includes", "--type=bool", "--get", _TRUE)
    output = await place.run("config", *scope, *options, ok=(0, 1, 128))
    return output.line == "true"
