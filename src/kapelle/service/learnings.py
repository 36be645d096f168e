"""Use cases of learnings: add, find, change, delete, export and import them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from kapelle.domain.errors import Conflict, InvalidInput, format_problems
from kapelle.domain.ids import new_id
from kapelle.domain.learning import (
    MOST_REPORTED,
    Learning,
    LearningEdit,
    LearningFilter,
    LearningSpec,
    LearningStatus,
    format_markdown,
    parse_markdown,
)
from kapelle.domain.specs import Directory, Spec, Text
from kapelle.domain.text import format_count, split_search_terms
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.brief import project_of
from kapelle.service.caller import OWNER, Caller
from kapelle.store import attempts, events, learnings, tasks
from kapelle.store.database import Connection, notify_watches
from kapelle.store.ids import make_unused_id
from kapelle.workspaces.repository import repository_of

# The key of writes after which a learning waits for its review.
REPORTED = "learnings"
_BATCH = 100
_PERSON = "person"


class LearningPage(BaseModel):
    learnings: list[Learning]
    next_cursor: str | None


class ImportBody(Spec):
    """A page of learnings, and a directory whose project the learnings without a project get."""

    markdown: Annotated[Text, Field(max_length=15_000_000)]
    directory: Directory | None = None


class ImportView(BaseModel):
    """The number of learnings that an import added, changed and left unchanged."""

    added: int = 0
    changed: int = 0
    unchanged: int = 0


class LearningService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def add(self, spec: LearningSpec, caller: Caller) -> Learning:
        """Add a learning: a fact that took work to find out and that later tasks should know.

        It is about the project or its tools, and not a report of what was done. An agent may report
        at most five for a task, and they are reviewed first.
        """
        project = spec.project or (spec.directory and self.project(spec.directory))
        status: LearningStatus = "kept"
        author = _PERSON
        if caller.task_id is None:
            if spec.scope == "project" and not project:
                raise InvalidInput("The project is missing.", hint="Give `project` or `directory`.")
        else:
            task_id, attempt_id = caller.require_attempt()
            attempt = await self._parts.db.glance(attempts.load_row, attempt_id)
            status = "reported"
            author = attempt["agent"]
            texts = spec.model_dump(include={"title", "content", "tags"})
            texts = await self._parts.without_secrets(task_id, attempt_id, texts)
            spec = spec.model_copy(update=texts)
        now = datetime.now(UTC)
        learning = Learning(
            **spec.model_dump(include={"title", "content", "scope"}),
            id=new_id("learning"),
            tags=[*dict.fromkeys(spec.tags)],
            project=project,
            status=status,
            author=author,
            task_id=caller.task_id,
            created_at=now,
            changed_at=now,
        )
        learning = await self._parts.db.write(_add, learning)
        self._parts.has_learnings = True
        return learning

    def project(self, directory: str) -> str:
        """Return the project to which the learnings of a directory belong."""
        return self._parts.settings(directory).project or repository_of(directory)

    async def get(self, learning_id: str) -> Learning:
        """Get a learning by its id, or by any unique beginning or end of the id."""
        return await self._parts.db.read(learnings.get, learning_id)

    async def page(self, query: LearningFilter, caller: Caller) -> LearningPage:
        """List or search learnings of earlier work, newest first, or best matches first."""
        project: str | None
        if caller.task_id is not None:
            project = project_of(await self._parts.db.glance(tasks.load_row, caller.task_id))
            query = query.model_copy(update={"status": "kept"})
        else:
            project = query.project or (query.directory and self.project(query.directory))
        if query.query is None:
            page, cursor = await self._parts.db.read(learnings.list_page, query, project)
            return LearningPage(learnings=page, next_cursor=cursor)
        terms = split_search_terms(query.query)
        matches = await self._parts.db.read(
            learnings.search, terms, project, query.limit, query.tag
        )
        # A search has no further pages: it returns the best matches.
        return LearningPage(learnings=matches, next_cursor=None)

    async def edit(self, learning_id: str, changes: LearningEdit) -> Learning:
        """Change a learning; a discarded one is kept from then on."""
        values = changes.model_dump(exclude_none=True)

        def write(connection: Connection) -> Learning:
            learning = learnings.get(connection, learning_id)
            edited_learning = learning.model_copy(update=values)
            if edited_learning.scope == "project" and not edited_learning.project:
                raise InvalidInput("The project is missing.", hint="Give `project` as well.")
            now = datetime.now(UTC)
            review = {"status": "kept", "reason": None, "reviewed_at": now, "changed_at": now}
            return learnings.update(connection, learning.id, **values, **review)

        return await self._parts.db.write(write)

    async def delete(self, learning_id: str) -> Learning:
        """Delete a learning and return it."""

        def write(connection: Connection) -> Learning:
            learning = learnings.get(connection, learning_id)
            learnings.delete(connection, learning.id)
            return learning

        return await self._parts.db.write(write)

    async def export(self, directory: Directory | None = None) -> str:
        """Export the kept learnings, or those of a directory's project, as Markdown."""
        query = LearningFilter(directory=directory, limit=1000)
        page = await self.page(query, OWNER)
        items = page.learnings
        while page.next_cursor:
            query = query.model_copy(update={"cursor": page.next_cursor})
            page = await self.page(query, OWNER)
            items += page.learnings
        return await asyncio.to_thread(format_markdown, reversed(items))

    async def import_(self, body: ImportBody) -> ImportView:
        """Import learnings from an exported page; those whose id exists are changed."""
        items = await self._parse_page(body)
        counts = Counter[str]()
        # In several transactions, so that other writes need not wait long.
        for start in range(0, len(items), _BATCH):
            batch = items[start : start + _BATCH]
            counts += await self._parts.db.write(_import, batch)
        self._parts.has_learnings = True
        return ImportView(**counts)

    async def _parse_page(self, body: ImportBody) -> list[Learning]:
        """Return the learnings of an imported page; raises InvalidInput."""
        now = datetime.now(UTC)
        default_fields: dict[str, Any] = {
            "tags": [],
            "scope": "project",
            "status": "kept",
            "author": _PERSON,
            "task_id": None,
            "project": body.directory and self.project(body.directory),
            "created_at": now,
            "changed_at": now,
        }
        items = []
        try:
            for fields in await asyncio.to_thread(parse_markdown, body.markdown):
                fields = {"id": new_id("learning"), **default_fields, **fields}
                items.append(_validate_learning(fields))
        except ValueError as error:
            raise InvalidInput(f"The page cannot be imported: {error}.") from None
        if not items:
            raise InvalidInput(
                "There is no learning on this page.",
                hint="Each learning begins with a line `## Title`;"
                " `kapelle learnings export` shows the format.",
            )
        if any(one.scope == "project" and not one.project for one in items):
            raise InvalidInput("The project is missing.", hint="Give `directory`.")
        return items


def _validate_learning(fields: dict[str, Any]) -> Learning:
    """Return a learning of a page; raises ValueError, which names its heading."""
    try:
        learning = Learning(**fields)
        LearningSpec(**learning.model_dump(include={"title", "content", "tags", "scope"}))
    except ValidationError as error:
        raise ValueError(f"below `## {fields['title'][:80]}`, {format_problems(error)}") from None
    return learning


def _add(connection: Connection, learning: Learning) -> Learning:
    reviewed_at: datetime | None = learning.created_at
    if learning.task_id is not None:
        if learnings.count_reported(connection, learning.task_id) >= MOST_REPORTED:
            raise Conflict(
                f"This task has reported {format_count(MOST_REPORTED, 'learning')}, the maximum.",
                hint="Continue without reporting more.",
            )
        project = project_of(tasks.load_row(connection, learning.task_id))
        learning = learning.model_copy(update={"project": project})
        reviewed_at = None
        notify_watches(connection, [REPORTED])
    learning = learning.model_copy(update={"id": make_unused_id(connection, "learning")})
    learnings.insert(connection, learning, reviewed_at)
    data = {"learning_id": learning.id, "title": learning.title}
    events.append(connection, f"learning.{learning.status}", learning.task_id, **data)
    return learning


def _import(connection: Connection, items: Sequence[Learning]) -> Counter[str]:
    """Insert or update learnings; return how many were added, changed and unchanged."""
    counts = Counter[str]()
    for learning in items:
        row = learnings.find(connection, learning.id)
        values = learning.model_dump(exclude={"id"})
        if row is None:
            learnings.insert(connection, learning, learning.changed_at)
            counts["added"] += 1
        elif any(row[name] != value for name, value in values.items()):
            learnings.update(connection, learning.id, **values)
            counts["changed"] += 1
        else:
            counts["unchanged"] += 1
    return counts
