"""Names that become parts of references or paths, checked before git ever sees them."""

import re

from kapelle.domain.errors import InvalidInput

BRANCHES = "refs/heads/"
ARCHIVE = "refs/kapelle/archive/"
_OURS = "kapelle/"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)")


def plain_name(name: str) -> str:
    """An owner's id or archive name, unchanged; anything that is not plain letters is refused."""
    if not _PLAIN.fullmatch(name):
        raise InvalidInput(f"{name!r} cannot be used as a name in git.")
    return name


def branch_of(owner: str) -> str:
    return f"{_OURS}{plain_name(owner)}"


def owner_of(branch: str) -> str | None:
    """Whose branch it is by its name, or None when it is no branch of ours."""
    name = branch.removeprefix(BRANCHES)
    owner = name.removeprefix(_OURS)
    return owner if name.startswith(_OURS) and _PLAIN.fullmatch(owner) else None


def branch_ref(name: str) -> str | None:
    """The full reference of a branch, or None when no branch can have this name."""
    name = name.removeprefix(BRANCHES)
    if not is_text(name) or not name or name == "@" or _FORBIDDEN.search(name):
        return None
    if name.startswith(("/", ".")) or name.endswith(("/", ".")):
        return None
    return BRANCHES + name


def is_text(name: str) -> bool:
    """Whether a name can be given to a program at all."""
    try:
        return b"\0" not in name.encode()
    except UnicodeEncodeError:
        return False
