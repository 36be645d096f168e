"""A lock: an exclusive hold on paths of a checkout, and when two of them are in each other's way.

A path covers what is below it; * and ? stand for letters of a name, ** for any number of folders.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import Directory, Name, Spec, Text, WaitSeconds
from kapelle.domain.task import Record

WHOLE = "**"
# Globs are compared with each other while everybody waits.
MAX_PATHS = 100
MAX_GLOBS = 20
_MAX_GLOB = 200
_MAX_STARS = 10
_LONGEST = 4096
_LONGEST_COMMAND = 50_000
_TOKEN = re.compile(r"(?:^|(?<=/))\*\*(?:/|$)|\*+|.", re.DOTALL)
_STARS = re.compile(r"\*+|\?")
_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_FIELDS = ("file_path", "notebook_path", "absolute_path", "filePath", "path")
# Commands of git that may change any file of the checkout.
_GIT = re.compile(
    r"\bgit\b(?:\s+(?:-[Cc]\s+\S+|-(?![Cc]\s)\S+)){0,9}\s+(?:checkout|reset|clean|stash|restore"
    r"|switch|rebase|merge|pull|rm|mv|apply|am|cherry-pick|revert)\b"
)
# Of a shell: where output goes, where the next command begins, and what stands before a program.
_REDIRECTED = re.compile(r"(?<!>)>+\|?\s*[\"']?([^\s;&|<>()\"']+)")
_NEXT = re.compile(r"[;&|\n()]+")
_NO_PROGRAM = re.compile(r"\w+=.*|sudo|env|command|exec|xargs")
_WRITERS = {
    "rm", "mv", "cp", "tee", "touch", "truncate", "dd", "ln", "install", "rsync", "patch", "unlink",
    "shred", "rmdir",
}  # fmt: skip
_IN_PLACE = {"sed": r"-[a-z]*i|--in-place", "perl": r"-[a-z]*i", "awk": "-i"}


def is_glob(path: str) -> bool:
    return "*" in path or "?" in path


def _modest(path: str) -> str:
    if is_glob(path) and (len(path) > _MAX_GLOB or len(_STARS.findall(path)) > _MAX_STARS):
        most = f"{_MAX_GLOB} characters and {_MAX_STARS} wildcards"
        raise ValueError(f"a glob has at most {most}; take a folder as a whole")
    return path


def _few_globs(paths: list[str]) -> list[str]:
    if sum(map(is_glob, paths)) > MAX_GLOBS:
        raise ValueError(f"at most {MAX_GLOBS} of them are globs; take a folder as a whole")
    return paths


Path = Annotated[Text, Field(min_length=1, max_length=500), AfterValidator(_modest)]
Paths = Annotated[
    list[Path],
    Field(min_length=1, max_length=MAX_PATHS, description="files, folders, globs; . is everything"),
    AfterValidator(_few_globs),
]
BaseDirectory = Annotated[
    Directory | None, Field(description="where relative paths begin; an attempt's own by default")
]


class LockSpec(Spec):
    """What is to be held, by whom it concerns, and for how long unless it is renewed."""

    paths: Paths
    directory: BaseDirectory = None
    reason: Name | None = None
    ttl_s: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 600
    timeout_s: WaitSeconds = 25


class LockRelease(Spec):
    paths: list[Path] = Field(default=[], max_length=MAX_PATHS, description="all of yours if empty")
    directory: BaseDirectory = None


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


def normalize_path(path: str, directory: str, checkout: str) -> str:
    """A path as it stands in a checkout; InvalidInput if it leads out of that."""
    whole = posixpath.normpath(posixpath.join(directory, path))
    if whole == checkout:
        return WHOLE
    if not whole.startswith(f"{checkout.rstrip('/')}/"):
        raise InvalidInput(f"{path} is not in {checkout}.", hint="Only what is in it can be held.")
    return whole[len(checkout.rstrip("/")) + 1 :]


def has_conflict(paths: Iterable[str], others: Iterable[str]) -> bool:
    """Whether one of the paths and one of the others, or what is below them, are the same file."""
    known = list(others)
    return any(_meet(one, other) for one in paths for other in known)


def covers(path: str, other: str) -> bool:
    """Whether whoever holds the path has all that the other can mean."""
    if path in {WHOLE, other}:
        return True
    above = path.removesuffix(f"/{WHOLE}")
    if not is_glob(above):
        return other.startswith(f"{above}/")
    return not is_glob(other) and _overlap(path, other, whole=True)


def _meet(one: str, other: str) -> bool:
    if is_glob(one) or is_glob(other):
        return _overlap(*sorted((one, other), key=lambda path: (len(path), path)))
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


@lru_cache(1_000)
def _tokens(path: str) -> tuple[list[str], int, dict[str, int]]:
    """A pattern in parts, how many letters come before its first wildcard, and of each part, as
    the bits of a number, the places where it stands."""
    found: list[str] = ["**" if part[:2] == "**" else part for part in _TOKEN.findall(path)]
    places: dict[str, int] = {}
    for place, token in enumerate(found):
        places[token] = places.get(token, 0) | 1 << place
    wild = (place for place, token in enumerate(found) if is_glob(token))
    return found, next(wild, len(found)), places


@lru_cache(50_000)
def _overlap(one: str, other: str, whole: bool = False) -> bool:
    """Whether both patterns can match the same text, or one what is below a text of the other; of
    the first one the whole, if that is asked for.

    The bits of a number are the places of the other that can be reached with what is read of the
    first: so it takes as many steps as that has letters, whatever wildcards there are.
    """
    (left, first, _) = _tokens(one)
    (right, second, places) = _tokens(other)
    same = min(first, second)
    if left[:same] != right[:same]:
        return False
    behind = 1 << len(right)
    folders, stars, slashes, any_ = (places.get(kind, 0) for kind in ("**", "*", "/", "?"))
    free = folders | stars
    letters = (behind - 1) & ~free & ~slashes
    reached = _along(1 << same, free)
    for token in left[same:]:
        if token == "**":
            reached = _along(reached, behind - 1)
        elif token == "*":
            reached = _along(reached, letters | free)
        if not whole and reached & behind and token in {"/", "**"}:
            return True
        if token in {"*", "**"}:
            continue
        # A letter is read by a star, which stays, or by its like, which is passed.
        if token == "/":
            reached = reached & folders | (reached & slashes) << 1
        else:
            if token == "?":
                like = letters
            else:
                like = places.get(token, 0) | any_
            reached = reached & free | (reached & like) << 1
        if not reached:
            return False
        if free:
            reached = _along(reached, free)
    return bool(reached & (behind | slashes | folders))


def _along(reached: int, free: int) -> int:
    """The places reached, and those after them as far as places are free to be passed."""
    return ((free + (reached & free)) ^ free) | reached


def list_written_paths(given: Mapping[str, object]) -> list[str]:
    """The paths that a tool of an agent would evidently write, by what it is given; everything
    where those are too many or too long to be looked at."""
    paths = _written(given)
    globs = [path for path in paths if is_glob(path)]
    many = len(paths) > MAX_PATHS or len(globs) > MAX_GLOBS
    many = many or any(len(path) > _LONGEST for path in paths)
    if many or any(len(_STARS.findall(one)) > _MAX_STARS for one in globs):
        return [WHOLE]
    return paths


def _written(given: Mapping[str, object]) -> list[str]:
    command = given.get("command")
    if isinstance(command, list):
        text = "\n".join(map(str, command))
    else:
        text = str(command or "")
    named = [str(given[name]) for name in _FIELDS if isinstance(given.get(name), str)]
    for one in (*_list(given.get("paths")), *_list(given.get("changes"))):
        named.append(str(one["path"] if isinstance(one, Mapping) and "path" in one else one))
    if (named := named + _PATCHED.findall(text)) or not text:
        return named
    if len(text) > _LONGEST_COMMAND or _GIT.search(text):
        return [WHOLE]
    found = _REDIRECTED.findall(text)
    for part in _NEXT.split(text.replace("\n", " ") if isinstance(command, list) else text):
        words = [word.strip("\"'") for word in part.split() if not _NO_PROGRAM.fullmatch(word)]
        if words:
            program = posixpath.basename(words[0])
        else:
            program = ""
        marked = any(re.match(_IN_PLACE.get(program, "$."), word) for word in words)
        if program in _WRITERS or marked:
            found += [word.removeprefix("of=") for word in words[1:] if word[:1] != "-"]
    return found


def _list(value: object) -> list[object]:
    if isinstance(value, list):
        return value
    return []
