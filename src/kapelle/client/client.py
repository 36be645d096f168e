"""`kapelle.connect()`: everything that the daemon offers to programs, typed."""

from contextlib import closing
from datetime import date
from typing import Self
from urllib.parse import quote

from kapelle.client.address import Address
from kapelle.client.coordination import Learnings, Locks, Notes
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
