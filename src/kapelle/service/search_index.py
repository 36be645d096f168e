"""The search index: a file of its own, which follows the work that ends.

It has words and their places, but no texts. A lost or damaged index is built again.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kapelle.domain.errors import KapelleError
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.brief import project_of
from kapelle.runner.output import read
from kapelle.runner.redaction import redact
from kapelle.store import attempts, person_messages, search
from kapelle.store.query import Row
from kapelle.store.search import Damaged, Document, SearchIndex

_log = logging.getLogger("kapelle.search")
_ROUND_S = 10.0
_BATCH = 20
# A stream is read in blocks. A document is a part of a block: what a hit is looked for in again.
_BLOCK_BYTES = 4 << 20
_PART_BYTES = 1 << 14
# The rest of a longer stream is not indexed.
_MAX_BLOCKS = 1_000
# The pause after each block, so that agents are not slowed down.
_PAUSE_S = 0.05
_MAX_COMMITS = 100
_TIDY_ROUNDS = 360
_MAX_WASTE = 0.5
_STREAMS = ("out", "err")


class SearchIndexer:
    """Keeps the index up to date, and gives one caller at a time access to it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._path: Path = parts.home.root / "search.db"
        self._index: SearchIndex | None = None
        self._update: asyncio.Task[bool] | None = None
        self._lock = asyncio.Lock()
        self._rounds = 0

    async def run(self) -> None:
        """Index work that has ended, for as long as the daemon runs."""
        while True:
            await asyncio.sleep(_ROUND_S)
            await asyncio.wait([self.start_update()])

    def start_update(self) -> asyncio.Task[bool]:
        """Return the update under way, or start one.

        Its result is whether all ended work is indexed.
        """
        if self._update is None or self._update.done():
            self._update = asyncio.create_task(self._try_to_update())
        return self._update

    async def find(
        self,
        words: list[str],
        filters: dict[str, str],
        before: int,
        limit: int,
        owners: list[str] | None,
    ) -> list[Document]:
        """Return documents with all the words, newest first; raises Damaged."""
        documents: list[Document] = await self._use(
            self._open().find, words, filters, before, limit, owners
        )
        return documents

    async def rename(self, project: str, new_name: str) -> None:
        """Rename a project in the index; a damaged index is left to the next update."""
        with suppress(Damaged):
            await self._use(self._open().rename, project, new_name)

    async def _try_to_update(self) -> bool:
        try:
            await self._update_index()
        except (Damaged, KapelleError, OSError) as error:
            _log.warning("the search index is not complete: %s", error)
            if isinstance(error, Damaged):
                await self._use(self._drop)
            return False
        return True

    async def _update_index(self) -> None:
        """Index work that has ended since the last time.

        The index stores its progress with the documents, so a crash repeats one task at most.
        """
        self._rounds += 1
        if self._rounds % _TIDY_ROUNDS == 1:
            await self._tidy()
        for noun in ("task", "run"):
            while True:
                last = await self._use(self._open().progress, noun)
                rows = await self._parts.db.read(search.list_ended_after, noun, last, _BATCH)
                if not rows:
                    break
                for row in rows:
                    await self._add(noun, row)

    async def _add(self, noun: str, row: Row) -> None:
        """Index a task or a run: its outputs, its prompt and result, commits and messages."""
        owner = row["id"]
        project = project_of(row)
        if noun == "task":
            for attempt in await self._parts.db.read(attempts.list_rows, owner):
                for stream in _STREAMS:
                    source = f"{attempt['id']}.{stream}"
                    stream_document = Document("output", owner, project, source, attempt["number"])
                    await self._add_stream(stream_document)
        documents = []
        for kind in ("prompt", "result"):
            text = work_text(row, kind)
            if text:
                documents.append((Document(kind, owner, project, owner), text))
        for commit_id, text in await load_commit_texts(self._parts, row):
            documents.append((Document("commit", owner, project, commit_id), text))
        if noun == "task":
            for message_id, text in (await load_message_texts(self._parts, owner)).items():
                documents.append((Document("message", owner, project, message_id), text))
        await self._use(self._open().forget, owner, ["prompt", "message", "result", "commit"])
        progress = {noun: f"{row['ended_at'].isoformat()} {owner}"}
        await self._use(self._open().add, documents, **progress)

    async def _add_stream(self, stream: Document) -> None:
        """Index a stream of an attempt, from where an earlier update ended."""
        for _ in range(_MAX_BLOCKS):
            has_more = await self._use(self._add_block, stream)
            if not has_more:
                return
            await asyncio.sleep(_PAUSE_S)

    def _add_block(self, stream: Document) -> bool:
        """Index the next block of a stream; return whether there may be more."""
        index = self._open()
        begin = int(index.progress(stream.source) or 0)
        data = read(find_log(self._parts, stream)[0], begin, _BLOCK_BYTES)
        if not data:
            return False
        if len(data) == _BLOCK_BYTES:
            # A line that continues is left for the next block, unless it fills this one.
            end = data.rfind(b"\n") + 1
            data = data[: end or len(data)]
        documents = []
        offset = 0
        while offset < len(data):
            end = data.find(b"\n", offset + _PART_BYTES) + 1 or len(data)
            part = data[offset:end]
            place = {"begin": begin + offset, "length": len(part)}
            text = " ".join(line for _, line in list_lines(part, 0))
            documents.append((Document(**{**vars(stream), **place}), text))
            offset = end
        index.add(documents, **{stream.source: begin + len(data)})
        return True

    async def _tidy(self) -> None:
        """Remove archived and deleted work; if that was most of the index, build it again."""
        for owner in await self._use(self._open().owners):
            if await self._parts.db.glance(search.find_work, owner) is None:
                await self._use(self._open().forget, owner)
        if await self._use(self._open().waste) > _MAX_WASTE:
            await self._use(self._drop)

    def _open(self) -> SearchIndex:
        if self._index is None or not self._path.exists():
            self._drop(keep_file=self._path.exists())
            self._index = SearchIndex(self._path)
        return self._index

    def _drop(self, keep_file: bool = False) -> None:
        if self._index is not None:
            self._index.close()
        self._index = None
        if keep_file:
            return
        # The files that SQLite keeps beside a database must not be taken for those of the next one.
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    async def _use(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the index in a thread, one call at a time."""
        async with self._lock:
            return await asyncio.shield(asyncio.to_thread(function, *args, **kwargs))


def find_log(parts: Parts, document: Document) -> tuple[Path, str]:
    """Return the log of a document of an output, and the name of its stream."""
    attempt_id, _, stream = document.source.rpartition(".")
    return parts.process_directory(attempt_id) / f"{stream}.log", stream


def work_text(row: Row, kind: str) -> str:
    """Return the prompt or the result of a task or a run, as it is indexed."""
    if kind == "prompt":
        # A run has a specification instead of a prompt.
        value = row["prompt"] if "prompt" in row else row["spec"]
    else:
        value = row["result"]
    if isinstance(value, str):
        text = value
    else:
        text = " ".join(_list_strings(value))
    if kind == "prompt":
        return f"{row['title']}\n{text}"
    return text


async def load_message_texts(parts: Parts, task_id: str) -> dict[str, str]:
    """Return the messages of people to a task, by their ids."""
    messages = await parts.db.read(person_messages.list_of_task, task_id)
    return {message.id: message.text for message in messages}


async def load_commit_texts(parts: Parts, row: Row | None) -> list[tuple[str, str]]:
    """Return the commits on the own branch of a task or run, except those with just its title."""
    if row is None or row["workspace_branch"] is None or row["workspace_owner"] is not None:
        return []
    texts = []
    # The repository may be gone.
    with suppress(KapelleError):
        commits = await parts.workspaces.log(row["id"], _MAX_COMMITS)
        secrets = parts.secrets_of(row)
        for commit in commits:
            if commit.subject != row["title"]:
                text = f"{commit.subject}\n{commit.body}".encode("utf-8", "replace")
                texts.append((commit.id, redact(text, secrets).decode("utf-8", "replace")))
    return texts


def list_lines(data: bytes, begin: int) -> Iterator[tuple[int, str]]:
    """Yield each line of an output with its offset; of a line in JSON only the strings."""
    for line in data.split(b"\n"):
        text = line.decode("utf-8", "replace")
        if line.startswith(b"{"):
            with suppress(ValueError, RecursionError):
                text = " ".join(_list_strings(json.loads(line)))
        yield begin, text
        begin += len(line) + 1


def _list_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _list_strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_strings(inner)
