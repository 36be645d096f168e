"""Tasks, runs and schedules of a daemon, as a program uses them."""
# What a method without a body does is said by its decorator.
# mypy: disable-error-code="empty-body"

import builtins
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from kapelle.client.http import TRIES
from kapelle.client.request import (
    ItemStream,
    Method,
    Resources,
    absolute,
    as_json,
    read,
    request,
)
from kapelle.domain.errors import Conflict, InvalidInput
from kapelle.domain.run import Run, Step, rests
from kapelle.domain.schedule import Firing, Schedule, ScheduleSpec, ScheduleStatus
from kapelle.domain.specs import Spec, TaskSpec
from kapelle.domain.states import RUN_FINAL, RunStatus, TaskStatus
from kapelle.domain.task import Task
from kapelle.domain.views import (
    DiffView,
    MergePreview,
    MergeView,
    PullRequestView,
    SayView,
    UndoView,
)
from kapelle.patterns.spec import PatternSpec

OUTPUT_PAGE_BYTES = 8_000_000

Item = TypeVar("Item", Task, Run, Schedule)
Piece = TypeVar("Piece", Task, Run)


@dataclass(frozen=True)
class TranscriptLine:
    """One thing that an agent said or did; data is all that is told of it."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


class Collection(Resources, Generic[Item]):
    """All items of one kind; an id may be any prefix that only one of them has."""

    @request("get", "/{noun}/{id}")
    def get(self, id: str) -> Item:
        """The item as it is now."""


class WorkCollection(Collection[Piece]):
    """What tasks and runs have in common."""

    @Method
    def wait(self, id: str, timeout_s: float | None = None) -> Piece:
        """The item when it has ended and is delivered, if that was asked for, or needs a person; or
        as it is when the time is up.

        It goes on waiting when the daemon is restarted.
        """

        def is_over(told: object) -> bool:
            return rests(self._read(told))

        path = self._place("/{noun}/{id}/wait", {"id": id})
        found: Piece = self._read(self._connection.wait(path, {}, is_over, timeout_s))
        return found

    @request("post", "/{noun}/{id}/archive")
    def archive(self, id: str) -> Piece:
        """Put away what has ended; worktrees are removed, the work is kept."""

    @request("get", "/{noun}/{id}/diff")
    def diff(self, id: str, attempt: int | None = None) -> DiffView:
        """What changed in its worktree since it began, or what one attempt changed."""

    @request("get", "/{noun}/{id}/pr")
    def pull_request(self, id: str) -> PullRequestView:
        """Its pull request with what people said to it, as its forge tells it now."""

    @request("post", "/{noun}/{id}/pr", tries=TRIES)
    def deliver(
        self, id: str, *, draft: bool | None = None, force: bool = False
    ) -> PullRequestView:
        """Push its work and open its pull request, or update it; force pushes also a secret."""

    @Method
    def patch(self, id: str) -> bytes:
        """The diff alone, byte for byte, as `git apply` takes it."""
        return self._connection.get_bytes(self._place("/{noun}/{id}/patch", {"id": id}))[0]

    @request("merge", "/{noun}/{id}/merge")
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

    @request("post", "/{noun}/{id}/merge/undo")
    def undo_merge(self, id: str, *, message: str | None = None) -> UndoView:
        """Undo the last merge of its branch: the base goes back, or a commit reverts the merge."""

    @request("get", "/{noun}/{id}/merge")
    def preview_merge(self, id: str, into: str | None = None) -> MergePreview:
        """How a merge would go, without merging."""


class Tasks(WorkCollection[Task]):
    """Every task of a daemon."""

    _noun = "tasks"
    _kind = Task

    @Method
    def run(
        self, /, prompt: str | TaskSpec, *, idempotency_key: str | None = None, **fields: Any
    ) -> Task:
        """Submit a task and return at once; it is stored and will be run.

        Every field of TaskSpec is a keyword. The directory is the current one if none is given.
        """
        body = spec_body("prompt", prompt, fields)
        return read(Task, self._connection.create("/tasks", body, idempotency_key), "/tasks")

    @request("get", "/tasks")
    def list(
        self,
        *,
        status: TaskStatus | str | Sequence[TaskStatus | str] | None = None,
        tag: str | None = None,
        project: str | None = None,
        archived: bool = False,
    ) -> ItemStream[Task]:
        """Tasks, newest first; pages are asked for as they are needed."""

    @request("post", "/tasks/{id}/cancel")
    def cancel(self, id: str, reason: str | None = None) -> Task:
        """End a task; a running one settles within seconds."""

    @request("post", "/tasks/{id}/retry")
    def retry(
        self, id: str, *, budget_usd: float | None = None, max_turns: int | None = None
    ) -> Task:
        """A new attempt from a fresh workspace; limits that are given hold from now on."""

    @request("post", "/tasks/{id}/resume")
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

    @request("post", "/tasks/{id}/say")
    def say(self, id: str, message: str) -> SayView:
        """Tell a running agent something, now or at its next attempt."""

    @request("post", "/tasks/{id}/requeue")
    def requeue(self, id: str) -> Task:
        """From the start, as if newly submitted; a running attempt is ended first."""

    @request("put", "/tasks/{id}/dependencies")
    def depend(self, id: str, depends_on: Sequence[str]) -> Task:
        """Replace what a task that has not started waits for."""

    @Method
    def output(
        self, id: str, *, attempt: int | None = None, stream: Literal["out", "err"] = "out"
    ) -> str:
        """All that an attempt has written so far, by default the latest one."""
        path = self._place("/tasks/{id}", {"id": id})
        if attempt is None:
            # Named, so that a new attempt cannot begin between two pages.
            attempts = read(Task, self._connection.get(path), path).attempts
            if not attempts:
                return ""
            attempt = attempts[-1].number
        query = {"attempt": attempt, "stream": stream, "limit": OUTPUT_PAGE_BYTES}
        written = bytearray()
        asked = f"{path}/output"
        while block := self._connection.get_bytes(asked, {**query, "offset": len(written)})[0]:
            written += block
        return written.decode("utf-8", "replace")

    @Method
    def transcript(
        self, id: str, *, attempt: int | None = None, tail: int | None = None, follow: bool = False
    ) -> ItemStream[TranscriptLine]:
        """What the agent said and did; with follow, as it comes and until the task has ended."""
        query = {"attempt": attempt, "tail": tail, "follow": follow}
        path = self._place("/tasks/{id}/transcript", {"id": id})
        with closing(self._connection.stream(path, query, endless=follow)) as events:
            for event in events:
                if event.kind != "end":
                    text = str(event.data.get("text") or "")
                    yield TranscriptLine(event.kind, text, event.data)


class Runs(WorkCollection[Run]):
    """Every run of a daemon."""

    _noun = "runs"
    _kind = Run

    @Method
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
        return read(Run, self._connection.create("/runs", body, idempotency_key), "/runs")

    @request("get", "/runs")
    def list(
        self,
        *,
        status: RunStatus | str | Sequence[RunStatus | str] | None = None,
        pattern: str | None = None,
        project: str | None = None,
        parent_id: str | None = None,
        archived: bool = False,
    ) -> ItemStream[Run]:
        """Runs, newest first; pages are asked for as they are needed."""

    @Method
    def follow_up(
        self,
        id: str,
        message: str | None = None,
        *,
        comments: bool = False,
        idempotency_key: str | None = None,
    ) -> Task:
        """Begin a task on the branch of an ended run; comments tells it those on the run's pull
        request that are new."""
        body = {"message": message, "comments": comments}
        path = self._place("/runs/{id}/follow_up", {"id": id})
        return read(Task, self._connection.create(path, body, idempotency_key), path)

    @Method
    def result(self, id: str) -> dict[str, Any] | Any:
        """What an ended run returned; its shape is the pattern's own."""
        run: Run = self._read(self._connection.get(self._place("/runs/{id}", {"id": id})))
        if run.status not in RUN_FINAL:
            raise Conflict(f"{run.id} is {run.status} and has no result yet.", hint="Wait for it.")
        return run.result

    @request("get", "/runs/{id}/steps")
    def steps(self, id: str) -> builtins.list[Step]:
        """What the run did and does, in order."""

    @request("post", "/runs/{id}/pause")
    def pause(self, id: str, *, now: bool = False) -> Run:
        """Start nothing more; what is at work ends first, or with now goes back to its queue."""

    @request("post", "/runs/{id}/resume")
    def resume(self, id: str, *, cycles: int | None = None) -> Run:
        """Let a paused run go on, or with more cycles a workflow that ended at its limit."""

    @request("post", "/runs/{id}/cancel")
    def cancel(self, id: str, reason: str | None = None, *, with_tasks: bool = True) -> Run:
        """End a run with all that it started, or leave its tasks to go on."""

    @request("post", "/runs/{id}/answer")
    def answer(self, id: str, answer: str, *, token: str | None = None) -> Run:
        """Answer a question of a run that waits; the token says which, if there are several."""


class Schedules(Collection[Schedule]):
    """Every schedule of a daemon."""

    _noun = "schedules"
    _kind = Schedule

    @Method
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
        answer = self._connection.create("/schedules", body, idempotency_key)
        return read(Schedule, answer, "/schedules")

    @request("get", "/schedules")
    def list(
        self,
        *,
        status: ScheduleStatus | str | Sequence[ScheduleStatus | str] | None = None,
        project: str | None = None,
    ) -> ItemStream[Schedule]:
        """Schedules, newest first; pages are asked for as they are needed."""

    @request("get", "/schedules/{id}/firings")
    def firings(self, id: str) -> ItemStream[Firing]:
        """What became of its slots, newest first."""

    @request("post", "/schedules/{id}/pause")
    def pause(self, id: str) -> Schedule:
        """Start nothing until it is resumed; what was started goes on."""

    @request("post", "/schedules/{id}/resume")
    def resume(self, id: str) -> Schedule:
        """Go on with the next slot; those that came meanwhile are not made up for."""

    @request("post", "/schedules/{id}/cancel")
    def cancel(self, id: str, *, with_work: bool = False) -> Schedule:
        """End a schedule; with_work also ends what it started and what is still going."""

    @request("post", "/schedules/{id}/run")
    def run(self, id: str) -> Firing:
        """Start at once what it starts, besides its slots."""


def spec_body(name: str, subject: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A spec from its main field and others, or a whole one in which fields are replaced.

    A relative directory is one of this process; left out, it is where this process stands.
    """
    given = _given(name, subject, fields)
    given["directory"] = absolute(given.get("directory") or ".")
    return as_json(given)


def schedule_body(kind: object, spec: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule from what it starts and its fields, or a whole one, likewise."""
    given = _given("kind", kind, fields)
    if spec is None:
        work = given.pop("spec", None)
    else:
        work = spec
    if not isinstance(work, Spec | Mapping):
        raise InvalidInput(
            "What the schedule is to start is missing.",
            hint="Give a spec, or its fields as a mapping.",
        )
    given["spec"] = spec_body("", work, {})
    return as_json(given)


def _given(name: str, subject: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(subject, Spec):
        given = subject.model_dump(exclude_unset=True)
    elif isinstance(subject, Mapping):
        given = dict(subject)
    else:
        if subject is None:
            given = {}
        else:
            given = {name: subject}
    return {**given, **fields}
