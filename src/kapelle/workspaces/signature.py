"""Signatures of a person's merges, and the hooks that Kapelle's git does not run.

How commits are signed is read from the person's own git configuration only. A repository's
configuration names programs, so anybody who can write into it could have a program executed.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kapelle.workspaces.git import Git, GitLocation
from kapelle.workspaces.repository import find_checkout, make_configuration_variables, read_person

_SIGNING_KEYS = r"^(gpg\..*|user\.signingkey)$"
# Variables with which the programs that sign find their keys and agents.
_VARIABLES = ("HOME", "GNUPGHOME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "GPG_TTY")
_HOOKS = (
    "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "pre-merge-commit",
    "post-merge", "post-rewrite",
)  # fmt: skip
_TRUE = "commit.gpgsign"
_HOOKS_PATH = "core.hookspath"


@dataclass(frozen=True)
class Signing:
    """Settings and variables with which git signs a commit as its person configured."""

    settings: tuple[str, ...]
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Habits:
    """The signatures and hooks of a person's own commits in a repository."""

    signs: bool
    # True if only the repository's configuration asks for signatures.
    repository_signs: bool
    hooks: tuple[str, ...]
    # True if git is configured with a name and an address for this person.
    has_identity: bool


async def read_signing(git: Git, common_dir: Path) -> Signing | None:
    """Return how this person's own configuration signs commits; None if it does not."""
    place = _make_location(git, common_dir)
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
    """Return the signatures and hooks of a person's own commits in a repository."""
    place = _make_location(git, common_dir)
    signs = await _is_on(place, "--global")
    is_asked_for = await _is_on(place)
    output = await place.run("config", "-z", "--type=path", "--get", _HOOKS_PATH, ok=(0, 1))
    text = output.stdout.decode("utf-8", "surrogateescape").rstrip("\0")
    if text:
        hooks = Path(os.path.join(common_dir.parent, text))
    else:
        hooks = common_dir / "hooks"
    active_hooks = tuple(name for name in _HOOKS if os.access(hooks / name, os.X_OK))
    person = await read_person(git, common_dir)
    has_identity = {"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL"} <= person.keys()
    return Habits(signs, is_asked_for and not signs, active_hooks, has_identity)


async def read_habits_of(directory: Path) -> Habits | None:
    """Return the habits for the repository around a directory; None outside of one."""
    checkout = find_checkout(directory)
    if checkout is None:
        return None
    git = Git("git", Path(os.devnull), "Kapelle", "kapelle@localhost")
    try:
        return await read_habits(git, checkout.common_dir)
    finally:
        git.close()


def _make_location(git: Git, common_dir: Path) -> GitLocation:
    if "HOME" in os.environ:
        home = {"HOME": os.environ["HOME"]}
    else:
        home = {}
    variables = {"GIT_DIR": str(common_dir), **home, **make_configuration_variables()}
    return _Plain(git, common_dir, variables)


class _Plain(GitLocation):
    """Git without Kapelle's settings, to read a person's configuration; it executes nothing."""

    @property
    def hardening(self) -> tuple[str, ...]:
        return ()


async def _is_on(place: GitLocation, *scope: str) -> bool:
    options = ("--includes", "--type=bool", "--get", _TRUE)
    output = await place.run("config", *scope, *options, ok=(0, 1, 128))
    return output.line == "true"
