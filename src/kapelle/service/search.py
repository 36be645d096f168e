"""The use case of search: in ended work, in learnings and in notes."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Annotated, Any

from pydantic import Field

from kapelle.domain.errors import InvalidInput
from kapelle.domain.learning import ProjectPath
from kapelle.domain.specs import RepositoryPath
from kapelle.domain.text import split_search_terms
from kapelle.domain.work_views import Hit, SearchKind, SearchView
from kapelle.engine.parts import Parts
from kapelle.runner.output import read
from kapelle.service.search_index import (
    SearchIndexer,
    find_log,
    list_lines,
    load_commit_texts,
    load_message_texts,
    work_text,
)
from kapelle.store import learnings, notes, search
from kapelle.store.query import Row
from kapelle.store.search import Damaged, Document
from kapelle.workspaces import repository_of

# A search waits this long for the indexing of work that has just ended.
_FRESH_S = 2.0
_BATCH = 100
# A search gives up after so many documents without enough hits.
_MAX_DOCUMENTS = 2_000
_MAX_NOTES = 1000
_EXCERPT_MARGIN = 120
_FIRST_BEFORE = 1 << 60
# An offset behind every output.
_END_OF_OUTPUT = 10**12

# What a query looks for: the words of each term stand together.
Terms = Sequence[Sequence[str]]


class SearchService:
    def __init__(self, parts: Parts, indexer: SearchIndexer) -> None:
        self._parts = parts
        self._indexer = indexer

    async def find(
        self,
        query: Annotated[str, Field(min_length=1, max_length=1000)],
        kind: SearchKind | None = None,
        task: Annotated[str | None, Field(max_length=100)] = None,
        project: ProjectPath | None = None,
        limit: Annotated[int, Field(ge=1, le=200)] = 20,
        repository: Annotated[
            RepositoryPath | None,
            Field(description="a directory in it, or its name; excludes learnings and notes"),
        ] = None,
    ) -> SearchView:
        """Search ended tasks and runs, learnings and notes for all of these words.

        Of work, prompts, results, outputs, commits and messages of people are searched. Words in
        "quotation marks" must stand together. Each hit has its context and its place. With a
        repository, only work is searched.
        """
        terms = split_search_terms(query)
        if not terms:
            raise InvalidInput(
                "The query has no word to search for.", hint="Give a word with a letter or digit."
            )
        owners = await self._list_work_in(repository, kind)
        update = self._indexer.start_update()
        await asyncio.wait([update], timeout=_FRESH_S)
        hits: list[Hit] = []
        is_about_work = task is not None or owners is not None
        if kind in {None, "learning"} and not is_about_work:
            hits += await self._find_learnings(terms, project, limit)
        if kind in {None, "note"} and not is_about_work:
            hits += await self._find_notes(terms, project)
        if kind not in {"learning", "note"}:
            options = {"kind": kind, "owner": task, "project": project}
            filters = {name: value for name, value in options.items() if value}
            # A damaged index is built again by the next update.
            with suppress(Damaged):
                hits += await self._find_work(terms, filters, limit - len(hits), owners)
        return SearchView(hits=hits[:limit], complete=update.done() and update.result())

    async def _list_work_in(
        self, repository: str | None, kind: SearchKind | None
    ) -> list[str] | None:
        """Return the ids of the work in a repository; None without a repository.

        Raises InvalidInput for a kind that is not part of work.
        """
        if repository is None:
            return None
        if kind in {"learning", "note"}:
            raise InvalidInput(
                f"A {kind} belongs to a project, not to a repository.",
                hint="Leave the repository out, or give a project.",
            )
        if repository.startswith("/"):
            repository = await asyncio.to_thread(repository_of, repository)
        return await self._parts.db.read(search.list_work_in, repository)

    async def _find_learnings(
        self, terms: list[list[str]], project: str | None, limit: int
    ) -> list[Hit]:
        hits = []
        for learning in await self._parts.db.read(learnings.search, terms, project, limit):
            if _has_terms(f"{learning.title} {learning.content}", terms):
                hits.append(
                    Hit(
                        kind="learning",
                        id=learning.id,
                        title=learning.title,
                        project=learning.project,
                        text=excerpt(learning.content, terms),
                    )
                )
        return hits

    async def _find_notes(self, terms: list[list[str]], project: str | None) -> list[Hit]:
        hits = []
        # The database matches parts of words, too, such as `work` in workflow/….
        for note in await self._parts.db.read(notes.search, terms, project, _MAX_NOTES):
            key = note["key"]
            text = note["value"]
            if not _has_terms(text, terms):
                text = f"{key}: {text}"
            if _has_terms(text, terms):
                scope = note["scope"]
                context = excerpt(text, terms)
                hits.append(Hit(kind="note", id=key, title=key, project=scope, text=context))
        return hits

    async def _find_work(
        self,
        terms: list[list[str]],
        filters: dict[str, str],
        limit: int,
        owners: list[str] | None,
    ) -> list[Hit]:
        """Return hits in work, newest first, by reading the texts of indexed documents again."""
        words = list(chain.from_iterable(terms))
        hits: list[Hit] = []
        before = _FIRST_BEFORE
        document_count = 0
        while len(hits) < limit and document_count < _MAX_DOCUMENTS:
            documents = await self._indexer.find(words, filters, before, _BATCH, owners)
            if not documents:
                break
            before = documents[-1].id
            document_count += len(documents)
            rows = await self._load_rows(documents)
            texts = await self._load_texts(documents, rows)
            hits += await asyncio.to_thread(
                self._match, documents, rows, texts, terms, limit - len(hits)
            )
        return hits

    async def _load_rows(self, documents: Sequence[Document]) -> dict[str, Row | None]:
        """Return the rows of the work of the documents; None for deleted work."""
        owners = {document.owner for document in documents}
        return {owner: await self._parts.db.glance(search.find_work, owner) for owner in owners}

    async def _load_texts(
        self, documents: Sequence[Document], rows: Mapping[str, Row | None]
    ) -> dict[str, str]:
        """Return the texts of the commits and messages in the work of the documents, by id."""
        texts: dict[str, str] = {}
        for owner in {document.owner for document in documents if document.kind == "commit"}:
            texts.update(await load_commit_texts(self._parts, rows[owner]))
        for owner in {document.owner for document in documents if document.kind == "message"}:
            texts.update(await load_message_texts(self._parts, owner))
        return texts

    def _match(
        self,
        documents: Sequence[Document],
        rows: Mapping[str, Row | None],
        texts: Mapping[str, str],
        terms: Terms,
        limit: int,
    ) -> list[Hit]:
        """Return the first hits among documents; the index knows the words, but not their order."""
        hits: list[Hit] = []
        for document in documents:
            row = rows[document.owner]
            if row is None:
                continue
            if document.kind == "output":
                place = self._find_place(document, terms)
            elif document.kind in {"commit", "message"}:
                place = _find_excerpt(texts.get(document.source, ""), "", terms)
            else:
                place = _find_excerpt(work_text(row, document.kind), row["title"], terms)
            if place is None:
                continue
            work = {"id": document.owner, "title": row["title"], "project": document.project}
            hits.append(Hit(kind=document.kind, **work, **place))
            if len(hits) == limit:
                break
        return hits

    def _find_place(self, document: Document, terms: Terms) -> dict[str, Any] | None:
        """Return the line of an output with most of the terms; None if it does not have all."""
        path, stream = find_log(self._parts, document)
        data = read(path, document.begin, document.length)
        lines = list(list_lines(data, document.begin))
        if not _has_terms(" ".join(text for _, text in lines), terms):
            return None
        offset, text = max(lines, key=lambda line: _count_terms(line[1], terms))
        # The transcript begins with this line and has nothing of the other stream.
        if stream == "out":
            offsets = f"{offset}:{_END_OF_OUTPUT}"
        else:
            offsets = f"{_END_OF_OUTPUT}:{offset}"
        return {
            "attempt": document.attempt,
            "stream": stream,
            "offset": offset,
            "position": f"{document.attempt}:{offsets}:0:0",
            "text": excerpt(text, terms),
        }


def _find_excerpt(text: str, title: str, terms: Terms) -> dict[str, Any] | None:
    """Return the excerpt of a text, preferably after its title; None if it is not a hit."""
    if not _has_terms(text, terms):
        return None
    # The title is shown beside the excerpt, so the excerpt need not repeat it.
    rest = text.removeprefix(f"{title}\n")
    if _has_terms(rest, terms):
        text = rest
    return {"text": excerpt(text, terms)}


def _has_terms(text: str, terms: Terms) -> bool:
    """Return whether a text has every term, with the words of a term one after the other."""
    return _count_terms(text, terms) == len(terms)


def _count_terms(text: str, terms: Terms) -> int:
    words: list[str] = []
    # A quotation mark in the text is not one of a query.
    for term in split_search_terms(text.replace('"', " ")):
        words += term
    joined_words = f" {' '.join(words)} "
    return [f" {' '.join(term)} " in joined_words for term in terms].count(True)


def excerpt(text: str, terms: Terms) -> str:
    """Return the surroundings of the first term in a text, on one line."""
    lower_text = text.lower()
    offsets = [lower_text.find(term[0]) for term in terms]
    offset = min((offset for offset in offsets if offset >= 0), default=0)
    begin = max(0, offset - _EXCERPT_MARGIN)
    end = offset + _EXCERPT_MARGIN
    words = " ".join(text[begin:end].split())
    before = "…" if begin > 0 else ""
    after = "…" if end < len(text) else ""
    return f"{before}{words}{after}"
