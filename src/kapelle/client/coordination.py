"""What agents and people share, as a program uses it: notes, locks, learnings."""

import builtins
from collections.abc import Sequence
from typing import Any

from kapelle.client.work import Directory, Resources, absolute, read
from kapelle.domain.learning import Learning
from kapelle.domain.lock import Lock, LocksView
from kapelle.domain.note import Note, NotesChanged

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
