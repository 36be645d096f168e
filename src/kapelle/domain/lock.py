"""A lock: an exclusive hold on paths of a checkout, and when two of them are in each other's way.

A path covers what is below it; * and ? stand for letters of a name, ** for any number of folders.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import Directory, Name, Spec, Text
from kapelle.domain.task import Record

WHOLE = "**"
_TOKEN = re.compile(r"(?:^|(?<=/))\*\*(?:/|$)|\*+|.", re.DOTALL)
_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_FIELDS = ("file_path", "notebook_path", "absolute_path", "filePath", "path")
# Commands of git that may change any file of the checkout.
_GIT = re.compile(
    r"\bgit\b(?:\s+(?:-[Cc]\s+\S+|-\S+))*\s+(?:checkout|reset|clean|stash|restore|switch|rebase|merge"
    r"|pull|rm|mv|apply|am|cherry-pick|revert)\b"
)
# Of a shell: where output goes, where the next command begins, and what stands before a program.
_REDIRECTED = re.compile(r">+\|?\s*[\"']?([^\s;&|<>()\"']+)")
_NEXT = re.compile(r"[;&|\n()]+")
_NO_PROGRAM = re.compile(r"\w+=.*|sudo|env|command|exec|xargs")
_WRITERS = {
    "rm", "mv", "cp", "tee", "touch", "truncate", "dd", "ln", "install", "rsync", "patch", "unlink",
    "shred", "rmdir",
}  # fmt: skip
_IN_PLACE = {"sed": r"-[a-z]*i|--in-place", "perl": r"-[a-z]*i", "awk": "-i"}

Path = Annotated[Text, Field(min_length=1, max_length=500)]
Paths = Annotated[
    list[Path],
    Field(min_length=1, max_length=100, description="files, folders, globs; . is everything"),
]
Place = Annotated[
    Directory | None, Field(description="where relative paths begin; an attempt's own by default")
]


class LockSpec(Spec):
    """What is to be held, by whom it concerns, and for how long unless it is renewed."""

    paths: Paths
    directory: Place = None
    reason: Name | None = None
    ttl_s: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 600
    timeout_s: Annotated[float, Field(ge=0, le=55, allow_inf_nan=False)] = 25


class LockRelease(Spec):
    paths: list[Path] = Field(default=[], max_length=100, description="all of yours if empty")
    directory: Place = None


class ToolCall(Spec):
    """What an agent is about to do: a tool of its own with its input, and where it stands."""

    tool: Text
    input: dict[str, object] = Field(default={})
    directory: Directory


class Lock(Record):
    checkout: str
    path: str
    # "person", or the attempt that holds or wants it, and that one's task.
    owner: str
    task_id: str | None
    status: Literal["held", "waiting", "released"]
    reason: str | None
    taken_at: datetime
    left_s: float


class LocksView(Record):
    """Whether all paths are held now, and, if not, who is in the way; waiting goes on in the same
    place if it is asked for again within half a minute."""

    held: bool
    locks: list[Lock]
    waiting_for: list[Lock] = Field(default=[])


class Permission(Record):
    allowed: bool
    reason: str | None = None


def normalised(path: str, directory: str, checkout: str) -> str:
    """A path as it stands in a checkout; InvalidInput if it leads out of that."""
    whole = posixpath.normpath(posixpath.join(directory, path))
    if whole == checkout:
        return WHOLE
    if not whole.startswith(f"{checkout.rstrip('/')}/"):
        raise InvalidInput(f"{path} is not in {checkout}.", hint="Only what is in it can be held.")
    return whole[len(checkout.rstrip("/")) + 1 :]


def conflicts(paths: Iterable[str], others: Iterable[str]) -> bool:
    """Whether one of the paths and one of the others, or what is below them, are the same file."""
    known = list(others)
    return any(_meet(one, other) for one in paths for other in known)


@lru_cache(10_000)
def _meet(one: str, other: str) -> bool:
    pairs = ((one, other), (f"{one}/**", other), (one, f"{other}/**"))
    return any(_overlap(tuple(_TOKEN.findall(a)), tuple(_TOKEN.findall(b))) for a, b in pairs)


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether there is a text that both patterns match."""
    seen, open_ = set(), [(0, 0)]
    while open_:
        i, j = here = open_.pop()
        if here in seen:
            continue
        seen.add(here)
        if i == len(one) and j == len(other):
            return True
        a, b = one[i : i + 1], other[j : j + 1]
        for star, letter, past, along in (
            (a, b, (i + 1, j), (i, j + 1)), (b, a, (i, j + 1), (i + 1, j))
        ):  # fmt: skip
            if star and star[0][0] == "*":
                open_.append(past)
                if letter and (star[0][:2] == "**" or letter[0] != "/"):
                    open_.append(along)
        if a and b and (a == b or ("?" in (*a, *b) and "/" not in (*a, *b))):
            open_.append((i + 1, j + 1))
    return False


def written(given: Mapping[str, object]) -> list[str]:
    """The paths that a tool of an agent would evidently write, by what it is given."""
    command = given.get("command")
    text = "\n".join(map(str, command)) if isinstance(command, list) else str(command or "")
    named = [str(given[name]) for name in _FIELDS if isinstance(given.get(name), str)]
    for one in (*_list(given.get("paths")), *_list(given.get("changes"))):
        named.append(str(one["path"] if isinstance(one, Mapping) and "path" in one else one))
    if (named := named + _PATCHED.findall(text)) or not text:
        return named
    if _GIT.search(text):
        return [WHOLE]
    found = _REDIRECTED.findall(text)
    for part in _NEXT.split(text.replace("\n", " ") if isinstance(command, list) else text):
        words = [word.strip("\"'") for word in part.split() if not _NO_PROGRAM.fullmatch(word)]
        program = posixpath.basename(words[0]) if words else ""
        marked = any(re.match(_IN_PLACE.get(program, "$."), word) for word in words)
        if program in _WRITERS or marked:
            found += [word.removeprefix("of=") for word in words[1:] if word[:1] != "-"]
    return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
