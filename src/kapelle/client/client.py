"""`kapelle.connect()`: everything that the daemon offers to programs, typed."""

import builtins
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from typing import Any, Self
from urllib.parse import quote

from kapelle.client.address import Address
from kapelle.client.http import Connection
from kapelle.client.work import (
    Directory,
    Resources,
    Runs,
    Schedules,
    Stream,
    T,
    Tasks,
    absolute,
    read,
)
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
    home: Directory | None = None,
    start: bool = True,
) -> "Client":
    """A client of the daemon, which is reached with the first request.

    Without a URL (or KAPELLE_URL) it is the daemon of a home, over its private socket; with start,
    it is started when there is none. With a URL the token is the one given, KAPELLE_TOKEN, or the
    one in the home.
    """
    return Client(Address.given(url, token, home), start=start)


_MORE_S = 30  # for the way there and back, beyond what the daemon waits


class Notes(Resources):
    """Every note of a daemon; a scope is global, project:NAME or the id of a task or run."""

    def put(
        self,
        key: str,
        value: str,
        scope: str | None = None,
        *,
        expected_version: int | None = None,
    ) -> Note:
        """Write a note; with expected_version Conflict if somebody wrote it meanwhile."""
        body = {"key": key, "value": value, "scope": scope, "expected_version": expected_version}
        return self._post(Note, "/notes", body)

    def get(self, key: str, scope: str | None = None) -> Note:
        """One note with its value and version."""
        return self._get(Note, "/notes/entry", {"key": key, "scope": scope})

    def list(self, prefix: str = "", scope: str | None = None) -> list[Note]:
        """The notes whose keys begin with a prefix, without what they say."""
        return [*self._pages("/notes", Note, {"prefix": prefix, "scope": scope})]

    def delete(
        self, key: str, scope: str | None = None, *, expected_version: int | None = None
    ) -> Note:
        """Delete a note; whoever watches it is told."""
        query = {"key": key, "scope": scope, "expected_version": expected_version}
        return read(Note, self._connection.delete("/notes", query), "/notes")

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
        what = {"keys": keys, "prefix": prefix, "scope": scope, "equals": equals, "after": after}
        query = {**what, "timeout_s": timeout_s}
        return self._get(NotesChanged, "/notes/watch", query, timeout_s + _MORE_S)


class Locks(Resources):
    """Every lock of a daemon, taken and released as a person does."""

    def take(
        self,
        paths: Sequence[str],
        directory: Directory = ".",
        *,
        reason: str | None = None,
        ttl_s: float = 600,
        timeout_s: float = 25,
    ) -> LocksView:
        """Hold paths of a checkout, all or none, or renew that; held is false while others hold
        them."""
        what = {"paths": [*paths], "directory": absolute(directory), "reason": reason}
        body = {**what, "ttl_s": ttl_s, "timeout_s": timeout_s}
        return self._post(LocksView, "/locks", body, timeout_s + _MORE_S)

    def list(self, directory: Directory | None = None) -> list[Lock]:
        """Who holds and who waits for which paths, of one checkout or of all."""
        query = {"directory": None if directory is None else absolute(directory)}
        return self._get(builtins.list[Lock], "/locks", query)

    def release(self, paths: Sequence[str] = (), directory: Directory = ".") -> builtins.list[Lock]:
        """Release those that are named, whoever holds them, or all of one's own."""
        body = {"paths": [*paths], "directory": absolute(directory)}
        return self._post(builtins.list[Lock], "/locks/release", body)


class Learnings(Resources):
    """Every learning of a daemon."""

    def add(self, /, title: str, content: str, **fields: Any) -> Learning:
        """Keep something that later tasks should know; every field of LearningSpec is a keyword."""
        body = {"title": title, "content": content, **fields}
        if body.get("scope") != "global" and not body.get("project"):
            body["directory"] = absolute(body.get("directory") or ".")
        return self._post(Learning, "/learnings", body)

    def get(self, id: str) -> Learning:
        """One learning, by its id or any unique beginning of it."""
        return self._get(Learning, f"/learnings/{id}")

    def list(
        self,
        query: str | None = None,
        *,
        project: str | None = None,
        directory: Directory | None = None,
        tag: str | None = None,
        status: str = "kept",
    ) -> list[Learning]:
        """Learnings, the newest first, or with a query the best matches first."""
        place = None if directory is None else absolute(directory)
        only = {"query": query, "project": project, "directory": place, "tag": tag}
        return [*self._pages("/learnings", Learning, {**only, "status": status})]

    def edit(self, /, id: str, **changes: Any) -> Learning:
        """Change what is given: title, content, tags, scope, project."""
        return read(Learning, self._connection.put(f"/learnings/{id}", changes), "/learnings")

    def delete(self, id: str) -> Learning:
        """Delete a learning; returns what it was."""
        return read(Learning, self._connection.delete(f"/learnings/{id}"), "/learnings")


class Client(Resources):
    """A daemon, as programs use it; close it, or use it in a with statement."""

    def __init__(self, address: Address, *, start: bool = True) -> None:
        super().__init__(Connection(address, autostart=start))
        self.tasks = Tasks(self._connection)
        self.runs = Runs(self._connection)
        self.schedules = Schedules(self._connection)
        self.notes = Notes(self._connection)
        self.locks = Locks(self._connection)
        self.learnings = Learnings(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connections; the daemon and its work go on."""
        self._connection.close()

    def events(
        self,
        *,
        after: int | None = None,
        task_id: str | None = None,
        run_id: str | None = None,
        follow: bool = True,
    ) -> Stream[Event]:
        """The history behind an event's number, and with follow what comes, for ever.

        Without a number: from now on, or with follow=False from the beginning. The stream is taken
        up again when the daemon was restarted; no event is missed and none comes twice.
        """
        query = {"after": after, "task_id": task_id, "run_id": run_id, "follow": follow}
        with closing(self._connection.stream("/events", query, endless=follow)) as events:
            for event in events:
                yield read(Event, event.data, "/events")

    def questions(self) -> list[Question]:
        """All that tasks and runs ask of people, the oldest first."""
        return read(list[Question], self._connection.get("/questions")["questions"], "/questions")

    def answer(self, token: str, answer: str) -> Question:
        """Answer a question by its token, or the only one of a task or run by its id."""
        path = f"/questions/{quote(token, safe='')}/answer"
        return self._post(Question, path, {"answer": answer})

    def search(
        self,
        query: str,
        *,
        kind: str | None = None,
        task: str | None = None,
        project: str | None = None,
        limit: int = 20,
    ) -> SearchView:
        """Words in all that was asked, said and done, learnt and noted."""
        only = {"kind": kind, "task": task, "project": project, "limit": limit}
        return self._get(SearchView, "/search", {"query": query, **only})

    def patterns(self, directory: Directory | None = None) -> list[PatternView]:
        """Every pattern that can be run; with a directory also those of its repository."""
        return self._listed(PatternView, "/patterns", directory)

    def agents(self, directory: Directory | None = None) -> list[AgentView]:
        """The agents that a task in a directory may use, with their logins and pauses."""
        return self._listed(AgentView, "/agents", directory)

    def trusted(self, directory: Directory | None = None) -> list[TrustView]:
        """Every repository that was trusted; with a directory that of its own, trusted or not."""
        return self._listed(TrustView, "/trust", directory)

    def _listed(self, kind: type[T], path: str, directory: Directory | None) -> list[T]:
        query = {"directory": None if directory is None else absolute(directory)}
        return self._get(list[kind], path, query)  # type: ignore[valid-type]

    def trust(self, directory: Directory, digest: str | None = None) -> TrustView:
        """Let a repository execute what stands in its .kapelle now; Conflict if the digest of what
        was looked at is another."""
        body = {"directory": absolute(directory), "digest": digest}
        return self._post(TrustView, "/trust", body)

    def untrust(self, directory: Directory) -> TrustView:
        """Trust a repository no more."""
        query = {"directory": absolute(directory)}
        return read(TrustView, self._connection.delete("/trust", query), "/trust")

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
        query = {
            "by": by,
            "since": since.isoformat() if isinstance(since, date) else since,
            "until": until.isoformat() if isinstance(until, date) else until,
            **{"agent": agent, "model": model, "project": project, "task": task, "run": run},
        }
        return self._get(UsageReport, "/usage", query)

    def prune(
        self, *, merged: bool = False, older_s: float | None = None, dry_run: bool = False
    ) -> PruneView:
        """Put away now what has ended: by the settings, or what is merged, or older than that."""
        body = {"merged": merged, "older_s": older_s, "dry_run": dry_run}
        return self._post(PruneView, "/prune", body, 3600)

    def instance(self) -> DaemonView:
        """What the daemon is and what it is doing."""
        return self._get(DaemonView, "/daemon")
