"""`kapelle.connect()` and `kapelle.connect_async()`: all that the daemon offers, typed."""
# What a method without a body does is said by its decorator.
# mypy: disable-error-code="empty-body"

import builtins
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from typing import Any, Self

from kapelle.client.address import Address
from kapelle.client.http import DaemonConnection
from kapelle.client.request import (
    Awaited,
    DirectoryPath,
    ItemStream,
    Method,
    Resources,
    absolute,
    read,
    request,
)
from kapelle.client.work import Runs, Schedules, Tasks
from kapelle.domain.learning import Learning
from kapelle.domain.lock import Lock, LocksView
from kapelle.domain.note import Note, NotesChanged
from kapelle.domain.question import Question
from kapelle.domain.task import Event
from kapelle.domain.views import (
    AgentView,
    By,
    DaemonView,
    PatternView,
    PruneView,
    SearchView,
    TrustView,
    UsageReport,
)


def connect(
    url: str | None = None,
    token: str | None = None,
    home: DirectoryPath | None = None,
    start: bool = True,
) -> "Client":
    """A client of the daemon, which is reached with the first request.

    Without a URL (or KAPELLE_URL) it is the daemon of a home, over its private socket; with start,
    it is started when there is none. With a URL the token is the one given, KAPELLE_TOKEN, or the
    one in the home.
    """
    return Client(Address.given(url, token, home), start=start)


def connect_async(
    url: str | None = None,
    token: str | None = None,
    home: DirectoryPath | None = None,
    start: bool = True,
) -> "AsyncClient":
    """A client for programs that use asyncio, with the parameters of `kapelle.connect()`."""
    return AsyncClient(Address.given(url, token, home), start=start)


class Notes(Resources):
    """Every note of a daemon; a scope is global, project:NAME or the id of a task or run."""

    @request("post", "/notes")
    def put(
        self,
        key: str,
        value: str,
        scope: str | None = None,
        *,
        expected_version: int | None = None,
    ) -> Note:
        """Write a note; with expected_version Conflict if somebody wrote it meanwhile."""

    @request("get", "/notes/entry")
    def get(self, key: str, scope: str | None = None) -> Note:
        """One note with its value and version."""

    @request("pages", "/notes")
    def list(self, prefix: str = "", scope: str | None = None) -> list[Note]:
        """The notes whose keys begin with a prefix, without what they say."""

    @request("delete", "/notes")
    def delete(
        self, key: str, scope: str | None = None, *, expected_version: int | None = None
    ) -> Note:
        """Delete a note; whoever watches it is told."""

    @request("get", "/notes/watch")
    def watch(
        self,
        *keys: str,
        prefix: str = "",
        scope: str | None = None,
        equals: str | None = None,
        after: int = 0,
        timeout_s: float = 25,
    ) -> NotesChanged:
        """Wait until all keys, or something under the prefix, are there, changed or equal a value;
        met is false when time was up before."""


class Locks(Resources):
    """Every lock of a daemon, taken and released as a person does."""

    @request("post", "/locks")
    def take(
        self,
        paths: Sequence[str],
        directory: DirectoryPath = ".",
        *,
        reason: str | None = None,
        ttl_s: float = 600,
        timeout_s: float = 25,
    ) -> LocksView:
        """Hold paths of a checkout, all or none, or renew that; held is false while others hold
        them."""

    @request("get", "/locks")
    def list(self, directory: DirectoryPath | None = None) -> list[Lock]:
        """Who holds and who waits for which paths, of one checkout or of all."""

    @request("post", "/locks/release")
    def release(
        self, paths: Sequence[str] = (), directory: DirectoryPath = "."
    ) -> builtins.list[Lock]:
        """Release those that are named, whoever holds them, or all of one's own."""


class Learnings(Resources):
    """Every learning of a daemon."""

    @Method
    def add(self, /, title: str, content: str, **fields: Any) -> Learning:
        """Keep something that later tasks should know; every field of LearningSpec is a keyword."""
        body = {"title": title, "content": content, **fields}
        if body.get("scope") != "global" and not body.get("project"):
            body["directory"] = absolute(body.get("directory") or ".")
        return read(Learning, self._connection.post("/learnings", body), "/learnings")

    @request("get", "/learnings/{id}")
    def get(self, id: str) -> Learning:
        """One learning, by its id or any unique beginning of it."""

    @request("pages", "/learnings")
    def list(
        self,
        query: str | None = None,
        *,
        project: str | None = None,
        directory: DirectoryPath | None = None,
        tag: str | None = None,
        status: str = "kept",
    ) -> list[Learning]:
        """Learnings, the newest first, or with a query the best matches first."""

    @request("put", "/learnings/{id}")
    def edit(self, /, id: str, **changes: Any) -> Learning:
        """Change what is given: title, content, tags, scope, project."""

    @request("delete", "/learnings/{id}")
    def delete(self, id: str) -> Learning:
        """Delete a learning; returns what it was."""


class BaseClient(Resources):
    """What both clients offer besides their parts."""

    def __init__(self, address: Address, *, start: bool = True) -> None:
        super().__init__(DaemonConnection(address, autostart=start))

    @Method
    def close(self) -> None:
        """Nothing stays open between two calls, so there is nothing to end."""

    @Method
    def events(
        self,
        *,
        after: int | None = None,
        task_id: str | None = None,
        run_id: str | None = None,
        follow: bool = True,
    ) -> ItemStream[Event]:
        """The history behind an event's number, and with follow what comes, for ever.

        Without a number: from now on, or with follow=False from the beginning. The stream is taken
        up again when the daemon was restarted; no event is missed and none comes twice.
        """
        query = {"after": after, "task_id": task_id, "run_id": run_id, "follow": follow}
        with closing(self._connection.stream("/events", query, endless=follow)) as events:
            for event in events:
                yield read(Event, event.data, "/events")

    @Method
    def questions(self) -> list[Question]:
        """All that tasks and runs ask of people, the oldest first."""
        return read(list[Question], self._connection.get("/questions")["questions"], "/questions")

    @request("post", "/questions/{token}/answer")
    def answer(self, token: str, answer: str) -> Question:
        """Answer a question by its token, or the only one of a task or run by its id."""

    @request("get", "/search")
    def search(
        self,
        query: str,
        *,
        kind: str | None = None,
        task: str | None = None,
        project: str | None = None,
        limit: int = 20,
        repository: str | None = None,
    ) -> SearchView:
        """Words in all that was asked, said and done, learnt and noted."""

    @request("get", "/patterns")
    def patterns(self, directory: DirectoryPath | None = None) -> list[PatternView]:
        """Every pattern that can be run; with a directory also those of its repository."""

    @request("get", "/agents")
    def agents(self, directory: DirectoryPath | None = None) -> list[AgentView]:
        """The agents that a task in a directory may use, with their logins and pauses."""

    @request("get", "/trust")
    def trusted(self, directory: DirectoryPath | None = None) -> list[TrustView]:
        """Every repository that was trusted; with a directory that of its own, trusted or not."""

    @request("post", "/trust")
    def trust(self, directory: DirectoryPath, digest: str | None = None) -> TrustView:
        """Let a repository execute what stands in its .kapelle now; Conflict if the digest of what
        was looked at is another."""

    @request("delete", "/trust")
    def untrust(self, directory: DirectoryPath) -> TrustView:
        """Trust a repository no more."""

    @request("get", "/usage")
    def usage(
        self,
        by: By = "agent",
        *,
        since: date | str | None = None,
        until: date | str | None = None,
        agent: str | None = None,
        model: str | None = None,
        project: str | None = None,
        task: str | None = None,
        run: str | None = None,
    ) -> UsageReport:
        """What the attempts used that started in a time; a day, a datetime or ISO text."""

    @request("post", "/prune", timeout=3600)
    def prune(
        self, *, merged: bool = False, older_s: float | None = None, dry_run: bool = False
    ) -> PruneView:
        """Put away now what has ended: by the settings, or what is merged, or older than that."""

    @request("get", "/daemon")
    def instance(self) -> DaemonView:
        """What the daemon is and what it is doing."""


class Client(BaseClient):
    """A daemon, as programs use it; close it, or use it in a with statement."""

    def __init__(self, address: Address, *, start: bool = True) -> None:
        super().__init__(address, start=start)
        self.tasks = Tasks(self._connection)
        self.runs = Runs(self._connection)
        self.schedules = Schedules(self._connection)
        self.notes = Notes(self._connection)
        self.locks = Locks(self._connection)
        self.learnings = Learnings(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to end."""


class AsyncTasks(Awaited, Tasks):
    """Every task of a daemon."""


class AsyncRuns(Awaited, Runs):
    """Every run of a daemon."""


class AsyncSchedules(Awaited, Schedules):
    """Every schedule of a daemon."""


class AsyncNotes(Awaited, Notes):
    """Every note of a daemon."""


class AsyncLocks(Awaited, Locks):
    """Every lock of a daemon."""


class AsyncLearnings(Awaited, Learnings):
    """Every learning of a daemon."""


class AsyncClient(Awaited, BaseClient):
    """A daemon, as asynchronous programs use it; close it, or use it in a with statement."""

    def __init__(self, address: Address, *, start: bool = True) -> None:
        super().__init__(address, start=start)
        self.tasks = AsyncTasks(self._connection)
        self.runs = AsyncRuns(self._connection)
        self.schedules = AsyncSchedules(self._connection)
        self.notes = AsyncNotes(self._connection)
        self.locks = AsyncLocks(self._connection)
        self.learnings = AsyncLearnings(self._connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """There is nothing to end."""
