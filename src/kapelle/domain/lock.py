"""Locks: exclusive claims on paths of a checkout, and when two claims conflict.

A path includes everything below it. In a glob, * and ? match characters of a name, and ** matches
any number of folders.
"""

import posixpath
import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from itertools import product
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import Directory, Name, Spec, Text, WaitSeconds
from kapelle.domain.task import Record

WHOLE = "**"
# The comparison of globs blocks all other requests for locks, so their number is limited.
MAX_PATHS = 100
MAX_GLOBS = 20
_MAX_GLOB = 200
_MAX_STARS = 10
_TOKEN = re.compile(r"(?:^|(?<=/))\*\*(?:/|$)|\*+|.", re.DOTALL)
_STARS = re.compile(r"\*+|\?")


def is_glob(path: str) -> bool:
    return "*" in path or "?" in path


def has_too_many_wildcards(path: str) -> bool:
    return len(_STARS.findall(path)) > _MAX_STARS


def _require_small_glob(path: str) -> str:
    if is_glob(path) and (len(path) > _MAX_GLOB or has_too_many_wildcards(path)):
        most = f"{_MAX_GLOB} characters and {_MAX_STARS} wildcards"
        raise ValueError(f"a glob may have at most {most}; lock a whole folder instead")
    return path


def _require_few_globs(paths: list[str]) -> list[str]:
    if len([path for path in paths if is_glob(path)]) > MAX_GLOBS:
        raise ValueError(f"at most {MAX_GLOBS} paths may be globs; lock a whole folder instead")
    return paths


Path = Annotated[Text, Field(min_length=1, max_length=500), AfterValidator(_require_small_glob)]
Paths = Annotated[
    list[Path],
    Field(
        min_length=1, max_length=MAX_PATHS, description="Files, folders and globs; . is everything."
    ),
    AfterValidator(_require_few_globs),
]
BaseDirectory = Annotated[
    Directory | None,
    Field(description="Base of relative paths; default: the directory of the attempt."),
]


class LockSpec(Spec):
    """Paths to lock, and the lifetime of the lock unless it is renewed."""

    paths: Paths
    directory: BaseDirectory = None
    reason: Name | None = None
    ttl_s: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 600
    timeout_s: WaitSeconds = 25


class LockRelease(Spec):
    """Paths to release."""

    paths: list[Path] = Field(
        default=[], max_length=MAX_PATHS, description="Paths; empty: all paths that you hold."
    )
    directory: BaseDirectory = None


class ToolCall(Spec):
    """A tool call that an agent is about to make: the tool, its input and the directory."""

    tool: Text
    input: dict[str, object] = Field(default={})
    directory: Directory


class Lock(Record):
    """A lock on one path, or the wait for it."""

    checkout: str
    path: str
    # "person", or the id of the attempt that holds the lock or waits for it; then its task.
    owner: str
    task_id: str | None
    status: Literal["held", "waiting", "released"]
    reason: str | None
    taken_at: datetime
    left_s: float


class LocksView(Record):
    """Result of a lock request; if held is false, the locks that it waits for.

    A request that is repeated within half a minute keeps its place in the queue.
    """

    held: bool
    locks: list[Lock]
    waiting_for: list[Lock] = Field(default=[])


class Permission(Record):
    """Answer to whether an agent may make a tool call."""

    allowed: bool
    reason: str | None = None


def normalize_path(path: str, directory: str, checkout: str) -> str:
    """Return a path relative to a checkout; raise InvalidInput if it is outside."""
    whole = posixpath.normpath(posixpath.join(directory, path))
    if whole == checkout:
        return WHOLE
    if not whole.startswith(f"{checkout.rstrip('/')}/"):
        raise InvalidInput(
            f"{path} is not in {checkout}.", hint="Only paths in the checkout can be locked."
        )
    return whole[len(checkout.rstrip("/")) + 1 :]


def has_conflict(paths: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether a file can belong to one of the paths and to one of the others."""
    return any(_overlaps(path, other) for path, other in product(paths, others))


def covers(path: str, other: str) -> bool:
    """Return whether a lock on a path includes every file that the other path can mean."""
    if path in {WHOLE, other}:
        return True
    above = path.removesuffix(f"/{WHOLE}")
    if not is_glob(above):
        return other.startswith(f"{above}/")
    return not is_glob(other) and _globs_overlap(path, other, whole=True)


def _overlaps(one: str, other: str) -> bool:
    if is_glob(one) or is_glob(other):
        return _globs_overlap(*sorted((one, other), key=lambda path: (len(path), path)))
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


class _Pattern(NamedTuple):
    """A path or glob in tokens."""

    tokens: list[str]
    literals: int  # the number of tokens before the first wildcard
    positions: dict[str, int]  # the positions of each token, as the bits of a number


@lru_cache(1_000)
def _parse_pattern(path: str) -> _Pattern:
    tokens = ["**" if part.startswith("**") else part for part in _TOKEN.findall(path)]
    positions: dict[str, int] = {}
    for position, token in enumerate(tokens):
        positions[token] = positions.get(token, 0) | 1 << position
    literals = 0
    while literals < len(tokens) and not is_glob(tokens[literals]):
        literals += 1
    return _Pattern(tokens, literals, positions)


@lru_cache(50_000)
def _globs_overlap(one: str, other: str, whole: bool = False) -> bool:
    """Return whether both patterns can match the same path, or one a path below the other's.

    With whole, the first pattern must match the complete path.

    The first pattern is read token by token. A number holds, as bits, all positions of the second
    pattern that can be reached with the tokens read so far: a nondeterministic automaton. So the
    comparison takes as many steps as the first pattern has tokens, whatever wildcards there are.
    """
    left = _parse_pattern(one)
    right = _parse_pattern(other)
    same = min(left.literals, right.literals)
    if left.tokens[:same] != right.tokens[:same]:
        return False
    end = 1 << len(right.tokens)  # the position after the last token
    folders = right.positions.get("**", 0)
    stars = right.positions.get("*", 0)
    slashes = right.positions.get("/", 0)
    question_marks = right.positions.get("?", 0)
    optional = folders | stars  # tokens that may match nothing
    letters = (end - 1) & ~optional & ~slashes
    reachable = _skip(1 << same, optional)
    for token in left.tokens[same:]:
        if token == "**":
            reachable = _skip(reachable, end - 1)
        elif token == "*":
            reachable = _skip(reachable, letters | optional)
        # The second pattern has ended where a folder of the first begins: a path below it.
        if not whole and reachable & end and token in {"/", "**"}:
            return True
        if token in {"*", "**"}:
            continue
        # A star of the second pattern reads the token and stays; an equal token is passed.
        if token == "/":
            reachable = reachable & folders | (reachable & slashes) << 1
        elif token == "?":
            reachable = reachable & optional | (reachable & letters) << 1
        else:
            equal = right.positions.get(token, 0) | question_marks
            reachable = reachable & optional | (reachable & equal) << 1
        if not reachable:
            return False
        if optional:
            reachable = _skip(reachable, optional)
    return bool(reachable & (end | slashes | folders))


def _skip(reachable: int, optional: int) -> int:
    """Return the reachable positions, and those behind them after any number of optional tokens.

    The addition carries a bit through each block of adjacent optional positions.
    """
    return ((optional + (reachable & optional)) ^ optional) | reachable
