"""`kapelle.connect()`: all that the daemon offers, typed and blocking.

The asyncio variants are in async_client.py, method by method.
"""

import builtins
from collections.abc import Sequence
from contextlib import closing
from datetime import date
from typing import Any, Self

from kapelle.client.address import Address
from kapelle.client.http import DaemonConnection
from kapelle.client.protocol import MORE_S
from kapelle.client.values import (
    DirectoryPath,
    absolute,
    absolute_or_none,
    as_json,
    item_path,
    learning_body,
    read,
)
from kapelle.client.work import ItemStream, Runs, Schedules, Tasks
from kapelle.domain.agent_views import AgentView
from kapelle.domain.learning import Learning
from kapelle.domain.lock import Lock, LocksView
from kapelle.domain.note import Note, NotesChanged
from kapelle.domain.question import Question
from kapelle.domain.task import Event
from kapelle.domain.usage import By, UsageReport
from kapelle.domain.views import DaemonView, PatternView, PruneView, TrustView
from kapelle.domain.work_views import SearchView

# Pruning removes worktrees, which may be many and large.
PRUNE_S = 3600.0


def connect(
    url: str | None = None,
    token: str | None = None,
    home: DirectoryPath | None = None,
    start: bool = True,
) -> "Client":
    """Return a client of the daemon, which is reached with the first request.

    Without a URL (or KAPELLE_URL) it is the daemon of a home, over its private socket; with start,
    it is started when there is none. With a URL the token is the given one, KAPELLE_TOKEN, or the
    one in the home.
    """
    return Client(Address.find(url, token, home), start=start)


class Notes:
    """Every note of a daemon; a scope is global, project:NAME or the id of a task or run."""

    def __init__(self, connection: DaemonConnection) -> None:
        self._connection = connection

    def put(
        self,
        key: str,
        value: str,
        scope: str | None = None,
        *,
        expected_version: int | None = None,
    ) -> Note:
        """Write a note; with expected_version Conflict if somebody wrote it meanwhile."""
        body = {
            "key": key,
            "value": value,
            "scope": scope,
            "expected_version": expected_version,
        }
        return read(Note, self._connection.post("/notes", body), "/notes")

    def get(self, key: str, scope: str | None = None) -> Note:
        """Return one note with its value and version."""
        query = {"key": key, "scope": scope}
        return read(Note, self._connection.get("/notes/entry", query), "/notes/entry")

    def list(self, prefix: str = "", scope: str | None = None) -> list[Note]:
        """Return the notes whose keys begin with a prefix, without their values."""
        notes = [*self._connection.pages("/notes", {"prefix": prefix, "scope": scope})]
        return read(builtins.list[Note], notes, "/notes")

    def delete(
        self, key: str, scope: str | None = None, *, expected_version: int | None = None
    ) -> Note:
        """Delete a note; whoever watches it gets to know."""
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
        """Wait until all keys, or something under the prefix, exist, changed or equal a value; met
        is false when the time was up before."""
        query = {
            "keys": [*keys],
            "prefix": prefix,
            "scope": scope,
            "equals": equals,
            "after": after,
            "timeout_s": timeout_s,
        }
        answer = self._connection.get("/notes/watch", query, timeout_s + MORE_S)
        return read(NotesChanged, answer, "/notes/watch")


class Locks:
    """Every lock of a daemon, taken and released as by a person."""

    def __init__(self, connection: DaemonConnection) -> None:
        self._connection = connection

    def take(
        self,
        paths: Sequence[str],
        directory: DirectoryPath = ".",
        *,
        reason: str | None = None,
        ttl_s: float = 600,
        timeout_s: float = 25,
    ) -> LocksView:
        """Lock paths of a checkout, all or none, or renew that; held is false while others hold
        them."""
        body = {
            "paths": paths,
            "directory": absolute(directory),
            "reason": reason,
            "ttl_s": ttl_s,
            "timeout_s": timeout_s,
        }
        answer = self._connection.post("/locks", as_json(body), timeout_s + MORE_S)
        return read(LocksView, answer, "/locks")

    def list(self, directory: DirectoryPath | None = None) -> list[Lock]:
        """Return who holds and who waits for which paths, of one checkout or of all."""
        query = {"directory": absolute_or_none(directory)}
        return read(builtins.list[Lock], self._connection.get("/locks", query), "/locks")

    def release(
        self, paths: Sequence[str] = (), directory: DirectoryPath = "."
    ) -> builtins.list[Lock]:
        """Release the named paths, whoever holds them, or all of one's own."""
        body = {"paths": paths, "directory": absolute(directory)}
        answer = self._connection.post("/locks/release", as_json(body))
        return read(builtins.list[Lock], answer, "/locks/release")


class Learnings:
    """Every learning of a daemon."""

    def __init__(self, connection: DaemonConnection) -> None:
        self._connection = connection

    def add(self, /, title: str, content: str, **fields: Any) -> Learning:
        """Store something that later tasks should know; every field of LearningSpec is a
        keyword."""
        body = learning_body(title, content, fields)
        return read(Learning, self._connection.post("/learnings", body), "/learnings")

    def get(self, id: str) -> Learning:
        """Return one learning, by its id or any unique beginning of it."""
        path = item_path("/learnings", id)
        return read(Learning, self._connection.get(path), path)

    def list(
        self,
        query: str | None = None,
        *,
        project: str | None = None,
        directory: DirectoryPath | None = None,
        tag: str | None = None,
        status: str = "kept",
    ) -> list[Learning]:
        """Return learnings, the newest first, or with a query the best matches first."""
        parameters = {
            "query": query,
            "project": project,
            "directory": absolute_or_none(directory),
            "tag": tag,
            "status": status,
        }
        learnings = [*self._connection.pages("/learnings", as_json(parameters))]
        return read(builtins.list[Learning], learnings, "/learnings")

    def edit(self, /, id: str, **changes: Any) -> Learning:
        """Change the given fields: title, content, tags, scope, project."""
        path = item_path("/learnings", id)
        return read(Learning, self._connection.put(path, as_json(changes)), path)

    def delete(self, id: str) -> Learning:
        """Delete a learning and return it."""
        path = item_path("/learnings", id)
        return read(Learning, self._connection.delete(path), path)


class Client:
    """A daemon, as programs use it; close it, or use it in a with statement."""

    def __init__(self, address: Address, *, start: bool = True) -> None:
        self._connection = DaemonConnection(address, autostart=start)
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
        """End the client; no connection stays open between two calls."""

    def events(
        self,
        *,
        after: int | None = None,
        task_id: str | None = None,
        run_id: str | None = None,
        follow: bool = True,
    ) -> ItemStream[Event]:
        """Yield the history behind an event's number, and with follow new events, for ever.

        Without a number: from now on, or with follow=False from the beginning. The stream goes on
        when the daemon was restarted; no event is missed and none comes twice.
        """
        query = {"after": after, "task_id": task_id, "run_id": run_id, "follow": follow}
        with closing(self._connection.stream("/events", query, endless=follow)) as events:
            for event in events:
                yield read(Event, event.data, "/events")

    def questions(self) -> list[Question]:
        """Return all open questions of tasks and runs, the oldest first."""
        answer = self._connection.get("/questions")
        return read(list[Question], answer["questions"], "/questions")

    def answer(self, token: str, answer: str) -> Question:
        """Answer a question by its token, or the only one of a task or run by its id."""
        path = item_path("/questions", token, "answer")
        return read(Question, self._connection.post(path, {"answer": answer}), path)

    def search(
        self,
        query: str,
        *,
        kind: str | None = None,
        task: str | None = None,
        project: str | None = None,
        repository: str | None = None,
        limit: int = 20,
    ) -> SearchView:
        """Search words in prompts, transcripts, results, notes and learnings."""
        parameters = {
            "query": query,
            "kind": kind,
            "task": task,
            "project": project,
            "repository": repository,
            "limit": limit,
        }
        return read(SearchView, self._connection.get("/search", parameters), "/search")

    def patterns(self, directory: DirectoryPath | None = None) -> list[PatternView]:
        """Return every pattern; with a directory also those of its repository."""
        query = {"directory": absolute_or_none(directory)}
        return read(list[PatternView], self._connection.get("/patterns", query), "/patterns")

    def agents(self, directory: DirectoryPath | None = None) -> list[AgentView]:
        """Return the agents that a task in a directory may use, with their logins and pauses."""
        query = {"directory": absolute_or_none(directory)}
        return read(list[AgentView], self._connection.get("/agents", query), "/agents")

    def trusted(self, directory: DirectoryPath | None = None) -> list[TrustView]:
        """Return every trusted repository; with a directory its own, trusted or not."""
        query = {"directory": absolute_or_none(directory)}
        return read(list[TrustView], self._connection.get("/trust", query), "/trust")

    def trust(self, directory: DirectoryPath, digest: str | None = None) -> TrustView:
        """Let a repository execute the present content of its .kapelle; Conflict if that has
        another digest."""
        body = {"directory": absolute(directory), "digest": digest}
        return read(TrustView, self._connection.post("/trust", body), "/trust")

    def untrust(self, directory: DirectoryPath) -> TrustView:
        """Withdraw the trust in a repository."""
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
        """Return the usage of the attempts that started in a time; a day, a datetime or ISO
        text."""
        query = {
            "by": by,
            "since": since,
            "until": until,
            "agent": agent,
            "model": model,
            "project": project,
            "task": task,
            "run": run,
        }
        return read(UsageReport, self._connection.get("/usage", as_json(query)), "/usage")

    def prune(
        self, *, merged: bool = False, older_s: float | None = None, dry_run: bool = False
    ) -> PruneView:
        """Archive ended work now: by the settings, or what is merged, or older than that."""
        body = {"merged": merged, "older_s": older_s, "dry_run": dry_run}
        return read(PruneView, self._connection.post("/prune", body, PRUNE_S), "/prune")

    def instance(self) -> DaemonView:
        """Return what the daemon is and what it does."""
        return read(DaemonView, self._connection.get("/daemon"), "/daemon")
