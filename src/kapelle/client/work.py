"""Tasks, runs and schedules of a daemon, as a program uses them."""

import builtins
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from kapelle.client.http import TIMEOUT_S, TRIES, Connection, Query
from kapelle.domain.errors import Conflict, InvalidInput, KapelleError, sentence
from kapelle.domain.run import Run, Step, rests
from kapelle.domain.schedule import Firing, Schedule, ScheduleSpec, ScheduleStatus
from kapelle.domain.specs import Spec, TaskSpec
from kapelle.domain.states import RUN_FINAL, RunStatus, TaskStatus
from kapelle.domain.task import Task
from kapelle.domain.views import DiffView, MergePreview, MergeView, PullRequestView, SayView
from kapelle.patterns.spec import PatternSpec

LONG_POLL_S = 25.0
OUTPUT_PAGE_BYTES = 8_000_000

T = TypeVar("T")
Item = TypeVar("Item", Task, Run, Schedule)
Piece = TypeVar("Piece", Task, Run)

Directory: TypeAlias = str | os.PathLike[str]
Stream: TypeAlias = Generator[T, None, None]


@dataclass(frozen=True)
class TranscriptLine:
    """One thing that an agent said or did; data is all that is told of it."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


class Resources:
    """What a daemon has, asked for and read as what it is."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _get(
        self, kind: type[T], path: str, query: Query | None = None, timeout: float = TIMEOUT_S
    ) -> T:
        return read(kind, self._connection.get(path, query, timeout), path)

    def _post(self, kind: type[T], path: str, body: Any = None, timeout: float = TIMEOUT_S) -> T:
        return read(kind, self._connection.post(path, body, timeout), path)

    def _pages(self, path: str, kind: type[T], query: Query) -> Stream[T]:
        """Every item of a list; a page is asked for when the one before it is used up."""
        cursor: str | None = None
        while True:
            page = self._connection.get(path, {**query, "cursor": cursor})
            yield from read(builtins.list[kind], page[path.rpartition("/")[2]], path)  # type: ignore[valid-type]
            cursor = page["next_cursor"]
            if cursor is None:
                return


class Collection(Resources, Generic[Item]):
    """All items of one kind; an id may be any prefix that only one of them has."""

    _noun: ClassVar[str]
    _kind: type[Item]

    def get(self, id: str) -> Item:
        """The item as it is now."""
        return self._read(self._connection.get(self._path(id)))

    def _path(self, id: str, *more: str) -> str:
        if not id.strip():
            raise InvalidInput(
                f"An empty text is not the id of one of the {self._noun}.",
                hint=f"client.{self._noun}.list() has the ids.",
            )
        return "/".join([f"/{self._noun}", quote(id.strip(), safe=""), *more])

    def _read(self, answer: object) -> Item:
        return read(self._kind, answer, f"/{self._noun}")

    def _change(self, id: str, action: str, **body: str | float | None) -> Item:
        return self._read(self._connection.post(self._path(id, action), body))


class Work(Collection[Piece]):
    """What tasks and runs have in common."""

    def wait(self, id: str, timeout_s: float | None = None) -> Piece:
        """The item when it has ended and is delivered, if that was asked for, or needs a person; or
        as it is when the time is up.

        It goes on waiting when the daemon is restarted.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = LONG_POLL_S if deadline is None else max(deadline - time.monotonic(), 0)
            poll_s = round(min(left, LONG_POLL_S), 3)
            query = {"timeout_s": poll_s}
            found = self._read(self._connection.get(self._path(id, "wait"), query, poll_s + 30))
            if rests(found) or (deadline is not None and time.monotonic() >= deadline):
                return found

    def archive(self, id: str) -> Piece:
        """Put away what has ended; worktrees are removed, the work is kept."""
        return self._change(id, "archive")

    def diff(self, id: str) -> DiffView:
        """What changed in its worktree since it began."""
        return self._get(DiffView, self._path(id, "diff"))

    def pull_request(self, id: str) -> PullRequestView:
        """Its pull request with what people said to it, as its forge tells it now."""
        return self._get(PullRequestView, self._path(id, "pr"))

    def deliver(self, id: str, *, draft: bool = False, force: bool = False) -> PullRequestView:
        """Push its work and open its pull request, or update it; force pushes also a secret."""
        path = self._path(id, "pr")
        told = self._connection.post(path, {"draft": draft, "force": force}, tries=TRIES)
        return read(PullRequestView, told, path)

    def patch(self, id: str) -> bytes:
        """The diff alone, byte for byte, as `git apply` takes it."""
        return self._connection.get_bytes(self._path(id, "patch"))[0]

    def merge(
        self,
        id: str,
        into: str | None = None,
        *,
        force: bool = False,
        verify: bool = True,
        style: Literal["merge", "squash", "rebase"] = "merge",
        message: str | None = None,
    ) -> MergeView:
        """Merge the branch of what is completed into its base or another branch, and wait for it;
        verify makes the checks on the result where the base has moved."""
        path = self._path(id, "merge")
        body = {"into": into, "force": force, "verify": verify, "style": style, "message": message}
        return read(MergeView, self._connection.merge(path, body), path)

    def preview_merge(self, id: str, into: str | None = None) -> MergePreview:
        """How a merge would go, without merging."""
        return self._get(MergePreview, self._path(id, "merge"), {"into": into})


class Tasks(Work[Task]):
    """Every task of a daemon."""

    _noun = "tasks"
    _kind = Task

    def run(
        self, /, prompt: str | TaskSpec, *, idempotency_key: str | None = None, **fields: Any
    ) -> Task:
        """Submit a task and return at once; it is stored and will be run.

        Every field of TaskSpec is a keyword. The directory is the current one if none is given.
        """
        body = spec_body("prompt", prompt, fields)
        return self._read(self._connection.create("/tasks", body, idempotency_key))

    def list(
        self,
        *,
        status: TaskStatus | str | Sequence[TaskStatus | str] | None = None,
        tag: str | None = None,
        project: str | None = None,
        archived: bool = False,
    ) -> Stream[Task]:
        """Tasks, newest first; pages are asked for as they are needed."""
        query = {"status": status, "tag": tag, "project": project, "archived": archived}
        return self._pages("/tasks", Task, query)

    def cancel(self, id: str, reason: str | None = None) -> Task:
        """End a task; a running one settles within seconds."""
        return self._change(id, "cancel", reason=reason)

    def retry(
        self, id: str, *, budget_usd: float | None = None, max_turns: int | None = None
    ) -> Task:
        """A new attempt from a fresh workspace; limits that are given hold from now on."""
        return self._change(id, "retry", budget_usd=budget_usd, max_turns=max_turns)

    def resume(
        self,
        id: str,
        message: str | None = None,
        *,
        budget_usd: float | None = None,
        max_turns: int | None = None,
        merge: bool = False,
        comments: bool = False,
    ) -> Task:
        """A new attempt that carries what the last one left, with a message for the agent; merge
        has it resolve what conflicts between its branch and the base, comments tells it those on
        its pull request that are new."""
        more = {"budget_usd": budget_usd, "max_turns": max_turns, "merge": merge}
        more |= {"comments": True} if comments else {}
        return self._change(id, "resume", message=message, **more)

    def say(self, id: str, message: str) -> SayView:
        """Tell a running agent something, now or at its next attempt."""
        return self._post(SayView, self._path(id, "say"), {"message": message})

    def requeue(self, id: str) -> Task:
        """From the start, as if newly submitted; a running attempt is ended first."""
        return self._change(id, "requeue")

    def depend(self, id: str, depends_on: Sequence[str]) -> Task:
        """Replace what a task that has not started waits for."""
        body = {"depends_on": [*depends_on]}
        return self._read(self._connection.put(self._path(id, "dependencies"), body))

    def output(
        self, id: str, *, attempt: int | None = None, stream: Literal["out", "err"] = "out"
    ) -> str:
        """All that an attempt has written so far, by default the latest one."""
        if attempt is None:
            # Named, so that a new attempt cannot begin between two pages.
            attempts = self.get(id).attempts
            if not attempts:
                return ""
            attempt = attempts[-1].number
        query = {"attempt": attempt, "stream": stream, "limit": OUTPUT_PAGE_BYTES}
        path = self._path(id, "output")
        written = bytearray()
        while block := self._connection.get_bytes(path, {**query, "offset": len(written)})[0]:
            written += block
        return written.decode("utf-8", "replace")

    def transcript(
        self, id: str, *, attempt: int | None = None, tail: int | None = None, follow: bool = False
    ) -> Stream[TranscriptLine]:
        """What the agent said and did; with follow, as it comes and until the task has ended."""
        query = {"attempt": attempt, "tail": tail, "follow": follow}
        path = self._path(id, "transcript")
        with closing(self._connection.stream(path, query, endless=follow)) as events:
            for event in events:
                if event.kind != "end":
                    text = str(event.data.get("text") or "")
                    yield TranscriptLine(event.kind, text, event.data)


class Runs(Work[Run]):
    """Every run of a daemon."""

    _noun = "runs"
    _kind = Run

    def start(
        self,
        pattern: str,
        spec: PatternSpec | Mapping[str, Any] | None = None,
        /,
        *,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Run:
        """Start any pattern by name and return at once, with a spec or its fields as keywords."""
        body = {"pattern": pattern, "spec": spec_body("", spec, fields)}
        return self._read(self._connection.create("/runs", body, idempotency_key))

    def list(
        self,
        *,
        status: RunStatus | str | Sequence[RunStatus | str] | None = None,
        pattern: str | None = None,
        project: str | None = None,
        parent_id: str | None = None,
        archived: bool = False,
    ) -> Stream[Run]:
        """Runs, newest first; pages are asked for as they are needed."""
        only = {"pattern": pattern, "project": project, "parent_id": parent_id}
        return self._pages("/runs", Run, {"status": status, **only, "archived": archived})

    def follow_up(self, id: str, message: str | None = None, *, comments: bool = False) -> Task:
        """Begin a task on the branch of an ended run; comments tells it those on the run's pull
        request that are new."""
        body = {"message": message, "comments": comments}
        return self._post(Task, self._path(id, "follow_up"), body)

    def result(self, id: str) -> Any:
        """What an ended run returned; its shape is the pattern's own."""
        run = self.get(id)
        if run.status not in RUN_FINAL:
            raise Conflict(f"{run.id} is {run.status} and has no result yet.", hint="Wait for it.")
        return run.result

    def steps(self, id: str) -> builtins.list[Step]:
        """What the run did and does, in order."""
        return self._get(builtins.list[Step], self._path(id, "steps"))

    def pause(self, id: str, *, now: bool = False) -> Run:
        """Start nothing more; what is at work ends first, or with now goes back to its queue."""
        return self._change(id, "pause", now=now)

    def resume(self, id: str) -> Run:
        """Let a paused run go on."""
        return self._change(id, "resume")

    def cancel(self, id: str, reason: str | None = None, *, with_tasks: bool = True) -> Run:
        """End a run with all that it started, or leave its tasks to go on."""
        return self._change(id, "cancel", reason=reason, with_tasks=with_tasks)

    def answer(self, id: str, answer: str, *, token: str | None = None) -> Run:
        """Answer a question of a run that waits; the token says which, if there are several."""
        return self._change(id, "answer", answer=answer, token=token)


class Schedules(Collection[Schedule]):
    """Every schedule of a daemon."""

    _noun = "schedules"
    _kind = Schedule

    def create(
        self,
        /,
        kind: str | ScheduleSpec,
        spec: TaskSpec | PatternSpec | Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Schedule:
        """Schedule a task (kind "task") or a run of a pattern (its name).

        spec is what is started each time, as a spec or its fields; its directory is the current
        one if none is given. One of cron, at, every_s and after says when.
        """
        body = schedule_body(kind, spec, fields)
        return self._read(self._connection.create("/schedules", body, idempotency_key))

    def list(
        self,
        *,
        status: ScheduleStatus | str | Sequence[ScheduleStatus | str] | None = None,
        project: str | None = None,
    ) -> Stream[Schedule]:
        """Schedules, newest first; pages are asked for as they are needed."""
        return self._pages("/schedules", Schedule, {"status": status, "project": project})

    def firings(self, id: str) -> Stream[Firing]:
        """What became of its slots, newest first."""
        return self._pages(self._path(id, "firings"), Firing, {})

    def pause(self, id: str) -> Schedule:
        """Start nothing until it is resumed; what was started goes on."""
        return self._change(id, "pause")

    def resume(self, id: str) -> Schedule:
        """Go on with the next slot; those that came meanwhile are not made up for."""
        return self._change(id, "resume")

    def cancel(self, id: str, *, with_work: bool = False) -> Schedule:
        """End a schedule; with_work also ends what it started and what is still going."""
        return self._change(id, "cancel", with_work=with_work)

    def run(self, id: str) -> Firing:
        """Start at once what it starts, besides its slots."""
        return self._post(Firing, self._path(id, "run"))


def spec_body(name: str, subject: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A spec from its main field and others, or a whole one in which fields are replaced.

    A relative directory is one of this process; left out, it is where this process stands.
    """
    given = _given(name, subject, fields)
    given["directory"] = absolute(given.get("directory") or ".")
    return _as_json(given)


def schedule_body(kind: object, spec: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule from what it starts and its fields, or a whole one, likewise."""
    given = _given("kind", kind, fields)
    work = given.pop("spec", None) if spec is None else spec
    if not isinstance(work, Spec | Mapping):
        raise InvalidInput(
            "What the schedule is to start is missing.",
            hint="Give a spec, or its fields as a mapping.",
        )
    given["spec"] = spec_body("", work, {})
    return _as_json(given)


def absolute(directory: Directory) -> str:
    """A directory of this process as the daemon is told it."""
    try:
        return os.path.abspath(directory)
    except FileNotFoundError:
        raise InvalidInput(
            f"The current directory is gone, so {os.fspath(directory)!r} is nowhere.",
            hint="Name an absolute directory.",
        ) from None


def read(kind: type[T], answer: object, place: str) -> T:
    """An answer as what it is; a daemon of another version may tell what is not understood."""
    wanted: Any = kind
    try:
        found: T = _adapter(wanted).validate_python(answer)
    except ValidationError as error:
        raise KapelleError(
            f"{place} was answered with what cannot be read: {sentence(error, 1)}.",
            hint="Is the daemon of the same version as this program, and is it Kapelle at all?",
        ) from None
    return found


_adapter = cache(TypeAdapter)


def _given(name: str, subject: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(subject, Spec):
        given = subject.model_dump(exclude_unset=True)
    elif isinstance(subject, Mapping):
        given = dict(subject)
    else:
        given = {} if subject is None else {name: subject}
    return {**given, **fields}


def _as_json(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = to_jsonable_python(dict(given))
    except (PydanticSerializationError, TypeError) as error:
        raise InvalidInput(f"This cannot be sent: {error}.") from None
    return found
