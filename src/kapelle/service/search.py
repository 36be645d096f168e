"""Search over all that ended work was told, said and did, and over what is known beside it."""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from kapelle.domain.errors import InvalidInput, KapelleError
from kapelle.domain.learning import ProjectPath
from kapelle.domain.specs import RepositoryPath
from kapelle.domain.text import split_search_terms
from kapelle.domain.work_views import Hit, SearchKind, SearchView
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.brief import project_of
from kapelle.runner.output import read
from kapelle.runner.redaction import redact
from kapelle.store import attempts, learnings, notes, person_messages, search
from kapelle.store.query import Row
from kapelle.store.search import Damaged, Document, SearchIndex
from kapelle.workspaces import repository_of

_log = logging.getLogger("kapelle.search")
_ROUND_S = 10.0
# A search waits so long for work that has just ended to be indexed.
_FRESH_S = 2.0
_AT_A_TIME = 20
_PART = 1 << 14
_READ = 4 << 20
# Of a stream so much is indexed and no more; others have the machine meanwhile.
_MOST_PARTS = 1_000
_PAUSE_S = 0.05
_MOST_COMMITS = 100
_AROUND = 120
_MOST_NOTES = 1000
_MOST_LOOKED_AT = 2_000
_TIDY_ROUNDS = 360
_STREAMS = ("out", "err")
_PAST = 10**12  # behind all output that there can be


class SearchService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._path: Path = parts.home.root / "search.db"
        self._index: SearchIndex | None = None
        self._going: asyncio.Task[bool] | None = None
        self._alone = asyncio.Lock()
        self._rounds = 0

    async def run(self) -> None:
        """Index what has ended, for as long as the daemon runs."""
        while True:
            await asyncio.sleep(_ROUND_S)
            await asyncio.wait([self._begin()])

    async def find(
        self,
        query: Annotated[str, Field(min_length=1, max_length=1000)],
        kind: SearchKind | None = None,
        task: Annotated[str | None, Field(max_length=100)] = None,
        project: ProjectPath | None = None,
        limit: Annotated[int, Field(ge=1, le=200)] = 20,
        repository: Annotated[
            RepositoryPath | None, Field(description="any directory in it, or its name; work alone")
        ] = None,
    ) -> SearchView:
        """What prompts, results, outputs and commits of ended tasks and runs, what people said to
        them, learnings and notes have all these words, "several" together; each hit in its context,
        with where it stands. With a repository, only work is searched."""
        terms = split_search_terms(query)
        if not terms:
            raise InvalidInput("There is no word to look for.", hint="Type one with a letter.")
        owners = None
        if repository is not None:
            if kind in {"learning", "note"}:
                raise InvalidInput(
                    f"A {kind} belongs to a project and not to a repository.",
                    hint="Leave the repository out, or name a project.",
                )
            if repository.startswith("/"):
                repository = await asyncio.to_thread(repository_of, repository)
            owners = await self._parts.db.read(search.list_work_in, repository)
        going = self._begin()
        await asyncio.wait([going], timeout=_FRESH_S)
        hits: list[Hit] = []
        if kind in {None, "learning"} and task is None and owners is None:
            found = await self._parts.db.read(learnings.search, terms, project, limit)
            for one in found:
                if _has(f"{one.title} {one.content}", terms):
                    told = {"id": one.id, "title": one.title, "project": one.project}
                    hits.append(Hit(kind="learning", **told, text=excerpt(one.content, terms)))
        if kind in {None, "note"} and task is None and owners is None:
            # These may have a part of a word only, such as `work` in workflow/….
            for note in await self._parts.db.read(notes.search, terms, project, _MOST_NOTES):
                key = note["key"]
                text = note["value"]
                if not _has(text, terms):
                    text = f"{key}: {text}"
                if _has(text, terms):
                    told = {"id": key, "title": key, "project": note["scope"]}
                    hits.append(Hit(kind="note", **told, text=excerpt(text, terms)))
        if kind not in {"learning", "note"}:
            only = {"kind": kind, "owner": task, "project": project}
            given = {name: value for name, value in only.items() if value}
            with suppress(Damaged):
                hits += await self._indexed(terms, given, limit - len(hits), owners)
        return SearchView(hits=hits[:limit], complete=going.done() and going.result())

    async def _indexed(
        self, terms: list[list[str]], only: dict[str, str], limit: int, among: list[str] | None
    ) -> list[Hit]:
        words = [word for term in terms for word in term]
        hits = list[Hit]()
        before = 1 << 60
        looked_at = 0
        while len(hits) < limit and looked_at < _MOST_LOOKED_AT:
            found = await self._use(self._open().find, words, only, before, 100, among)
            if not found:
                break
            before = found[-1].id
            looked_at = looked_at + len(found)
            owners = {document.owner for document in found}
            rows = {one: await self._parts.db.glance(search.find_work, one) for one in owners}
            committed = {document.owner for document in found if document.kind == "commit"}
            messages = {
                id_: text for one in committed for id_, text in await self._messages(rows[one])
            }
            told = {document.owner for document in found if document.kind == "message"}
            for owner in told:
                messages |= await self._said(owner)
            shown = self._shown(found, rows, messages, terms)
            hits += await asyncio.to_thread(list, islice(shown, limit - len(hits)))
        return hits

    def _shown(
        self,
        found: Sequence[Document],
        rows: Mapping[str, Row | None],
        messages: Mapping[str, str],
        terms: list[list[str]],
    ) -> Iterator[Hit]:
        """Documents as hits, but for those whose text is gone, or has the words apart."""
        for document in found:
            if (row := rows[document.owner]) is None:
                continue
            known: dict[str, Any] = {
                "kind": document.kind, "id": document.owner, "title": row["title"],
                "project": document.project,
            }  # fmt: skip
            if document.kind == "output":
                if place := self._place(document, terms):
                    yield Hit(**known, **place)
                continue
            message = messages.get(document.source, "")
            in_message = document.kind in {"commit", "message"}
            if in_message:
                text = message
            else:
                text = _field(row, document.kind)
            # The title stands beside it, and is most often how the prompt begins.
            without = text.removeprefix(f"{row['title']}\n")
            if _has(text, terms):
                yield Hit(**known, text=excerpt(without if _has(without, terms) else text, terms))

    def _place(self, document: Document, terms: list[list[str]]) -> dict[str, Any] | None:
        """Where in an output the line stands that has most of the words, and what it says."""
        path, stream = self._log(document)
        lines = list(_lines(read(path, document.begin, document.length), document.begin))
        if not _has(" ".join(text for _, text in lines), terms):
            return None
        offset, text = max(lines, key=lambda line: sum(_has(line[1], [term]) for term in terms))
        # Of the other stream nothing: the transcript begins with this line.
        if stream == "out":
            place = f"{offset}:{_PAST}"
        else:
            place = f"{_PAST}:{offset}"
        where = {"attempt": document.attempt, "stream": stream, "offset": offset}
        return {
            **where,
            "position": f"{document.attempt}:{place}:0:0",
            "text": excerpt(text, terms),
        }

    def _log(self, document: Document) -> tuple[Path, str]:
        attempt_id, _, stream = document.source.rpartition(".")
        return self._parts.process_directory(attempt_id) / f"{stream}.log", stream

    def _begin(self) -> asyncio.Task[bool]:
        if self._going is None or self._going.done():
            self._going = asyncio.create_task(self._try())
        return self._going

    async def _try(self) -> bool:
        """Whether everything is indexed now; an index that cannot be used is made anew."""
        try:
            await self._catch_up()
        except (Damaged, KapelleError, OSError) as error:
            _log.warning("not everything is indexed for the search: %s", error)
            if isinstance(error, Damaged):
                await self._use(self._drop)
            return False
        return True

    async def _catch_up(self) -> None:
        """Index what has ended since the last time; a crash repeats a part of a task at most."""
        self._rounds += 1
        if self._rounds % _TIDY_ROUNDS == 1:
            await self._tidy()
        for noun in ("task", "run"):
            while True:
                last = await self._use(self._open().progress, noun)
                rows = await self._parts.db.read(search.list_ended_after, noun, last, _AT_A_TIME)
                for row in rows:
                    await self._add(noun, row)
                if not rows:
                    break

    async def _add(self, noun: str, row: Row) -> None:
        owner = row["id"]
        project = project_of(row)
        if noun == "task":
            tried = await self._parts.db.read(attempts.list_rows, owner)
        else:
            tried = []
        for attempt in tried:
            for stream in _STREAMS:
                about = Document("output", owner, project, f"{attempt['id']}.{stream}",
                                 attempt["number"])  # fmt: skip
                for _ in range(_MOST_PARTS):
                    if not await self._use(self._read_part, about):
                        break
                    await asyncio.sleep(_PAUSE_S)
        fields = [(kind, _field(row, kind)) for kind in ("prompt", "result")]
        told = [(Document(kind, owner, project, owner), text) for kind, text in fields if text]
        told += [
            (Document("commit", owner, project, id_), text)
            for id_, text in await self._messages(row)
        ]
        if noun == "task":
            said = await self._said(owner)
            told += [(Document("message", owner, project, id_), text) for id_, text in said.items()]
        await self._use(self._open().forget, owner, ["prompt", "message", "result", "commit"])
        await self._use(self._open().add, told, **{noun: f"{row['ended_at'].isoformat()} {owner}"})

    async def _said(self, task_id: str) -> dict[str, str]:
        """What people said to a task, by the ids of their messages."""
        said = await self._parts.db.read(person_messages.list_of_task, task_id)
        return {message.id: message.text for message in said}

    async def _messages(self, row: Row | None) -> list[tuple[str, str]]:
        """The commits of a task's or run's own branch that do not just repeat its title."""
        if row is None or row["workspace_branch"] is None or row["workspace_owner"] is not None:
            return []
        with suppress(KapelleError):
            found = await self._parts.workspaces.log(row["id"], _MOST_COMMITS)
            known = self._parts.secrets_of(row)
            messages = []
            for commit in found:
                if commit.subject != row["title"]:
                    text = f"{commit.subject}\n{commit.body}".encode("utf-8", "replace")
                    messages.append((commit.id, redact(text, known).decode("utf-8", "replace")))
            return messages
        return []

    def _read_part(self, about: Document) -> bool:
        """Index the next few megabytes of a stream; whether there may be more."""
        index = self._open()
        begin = int(index.progress(about.source) or 0)
        data = read(self._log(about)[0], begin, _READ)
        if not data:
            return False
        # A line that goes on is left for the next time, unless it is all there is.
        if len(data) == _READ:
            end = data.rfind(b"\n") + 1
        else:
            end = len(data)
        data = data[: end or len(data)]
        found = []
        at = 0
        while at < len(data):
            cut = data.find(b"\n", at + _PART) + 1 or len(data)
            part = data[at:cut]
            place = {"begin": begin + at, "length": len(part)}
            text = " ".join(text for _, text in _lines(part, 0))
            found.append((Document(**{**vars(about), **place}), text))
            at = cut
        index.add(found, **{about.source: begin + len(data)})
        return True

    async def _tidy(self) -> None:
        """Forget what is archived or gone; where that is most of the index, make it anew."""
        for owner in await self._use(self._open().owners):
            if await self._parts.db.glance(search.find_work, owner) is None:
                await self._use(self._open().forget, owner)
        if await self._use(self._open().waste) > 0.5:
            await self._use(self._drop)

    def _open(self) -> SearchIndex:
        if self._index is None or not self._path.exists():
            self._drop(keep=self._path.exists())
            self._index = SearchIndex(self._path)
        return self._index

    def _drop(self, keep: bool = False) -> None:
        if self._index is not None:
            self._index.close()
        self._index = None
        # What SQLite left beside a file that is gone does not belong to the next one.
        for end in () if keep else ("", "-wal", "-shm"):
            Path(f"{self._path}{end}").unlink(missing_ok=True)

    async def rename(self, project: str, to: str) -> None:
        with suppress(Damaged):
            await self._use(self._open().rename, project, to)

    async def _use(self, work: Any, *args: Any, **kwargs: Any) -> Any:
        """Call something of the index in a thread, one at a time."""
        async with self._alone:
            return await asyncio.shield(asyncio.to_thread(work, *args, **kwargs))


def _field(row: Row, kind: str) -> str:
    """The text of a task or run that is a document of this kind."""
    if "prompt" in row:
        asked = "prompt"
    else:
        asked = "spec"
    if kind == "prompt":
        value = row[asked]
    else:
        value = row["result"]
    if isinstance(value, str):
        text = value
    else:
        text = " ".join(_strings(value))
    if kind == "prompt":
        return f"{row['title']}\n{text}"
    return text


def _lines(data: bytes, begin: int) -> Iterator[tuple[int, str]]:
    """Each line of an output with its offset, as text: of JSON only what it says."""
    for line in data.split(b"\n"):
        text = line.decode("utf-8", "replace")
        if line.startswith(b"{"):
            with suppress(ValueError, RecursionError):
                text = " ".join(_strings(json.loads(line)))
        yield begin, text
        begin += len(line) + 1


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _has(text: str, terms: Sequence[Sequence[str]]) -> bool:
    """Whether a text has each term, the words of one behind each other."""
    found = split_search_terms(text.replace('"', " "))
    words = f" {' '.join(word for term in found for word in term)} "
    return all(f" {' '.join(term)} " in words for term in terms)


def excerpt(text: str, terms: Sequence[Sequence[str]]) -> str:
    """What stands around the first of the terms, on one line."""
    folded = text.lower()
    at = min((found for term in terms if (found := folded.find(term[0])) >= 0), default=0)
    begin = max(0, at - _AROUND)
    end = at + _AROUND
    cut = " ".join(text[begin:end].split())
    return f"{'…' if begin else ''}{cut}{'…' if end < len(text) else ''}"
