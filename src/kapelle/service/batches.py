"""Use cases of saved lists of work, each of which is a global note under `batch/`."""

from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from kapelle.domain.batch import NAME, Format, format_csv, format_markdown, read_items
from kapelle.domain.errors import InvalidInput, NotFound, format_problem, read_field_problem
from kapelle.domain.note import MAX_NOTES, MAX_VALUE, ExpectedVersion, Note, NoteFilter, NoteSpec
from kapelle.domain.specs import Spec, Text
from kapelle.domain.work_views import BatchView
from kapelle.patterns.batch import ItemSpec
from kapelle.store import notes, runs
from kapelle.store.database import Connection, Database

_PREFIX = notes.LISTS
_GLOBAL = "global"
_ITEMS = TypeAdapter(list[ItemSpec])
RequestFields = dict[str, Any]
ListName = Annotated[str, Field(pattern=NAME)]


class ListBody(Spec):
    """A list as it is written: items in Markdown, or in CSV with a row that names the columns."""

    text: Annotated[Text, Field(max_length=1_000_000)]
    format: Format = "markdown"
    expected_version: ExpectedVersion = None


class BatchService:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def save(self, name: ListName, body: ListBody) -> BatchView:
        """Keep a list under a name, from Markdown or CSV; what was there is replaced."""
        value = format_markdown(_valid(read_items(body.text, body.format)))
        if len(value) > MAX_VALUE:
            raise InvalidInput(f"A list has at most {MAX_VALUE:,} characters.", hint="Make it two.")
        place = {"key": _PREFIX + name, "scope": _GLOBAL}
        spec = NoteSpec(**place, value=value, expected_version=body.expected_version)
        return _view(await self._db.write(notes.put, spec, None))

    async def get(self, name: ListName) -> BatchView:
        """One saved list: its items for a run of `batch`, and as Markdown and CSV."""
        return _view(await self._db.glance(_note, name))

    async def all(self) -> list[BatchView]:
        """Every saved list of work, by name."""
        return await self._db.read(_all)

    async def delete(self, name: ListName) -> BatchView:
        """Delete a saved list; runs of it go on."""
        found = await self.get(name)
        await self._db.write(notes.delete, _GLOBAL, _PREFIX + name, found.version, None)
        return found


async def with_list(
    db: Database, pattern: str, spec: RequestFields, key: str | None = None
) -> RequestFields:
    """What is asked for, with the items that the saved list which it names has now; with those of
    the run that was started with the same idempotency key, if there is one."""
    if pattern != "batch" or not isinstance(name := spec.get("saved"), str):
        return spec
    if spec.get("items"):
        raise InvalidInput(f"There are items beside the list {name!r}: give one of both.")
    if key:
        known = await db.glance(runs.find_by_key, key)
    else:
        known = None
    if known is not None and known["spec"].get("saved") == name:
        return {**spec, "items": known["spec"]["items"]}
    found = _view(await db.glance(_note, name))
    if found.problem:
        hint = f"kapelle batches edit {name}"
        raise InvalidInput(f"The list {name!r}: {found.problem}", hint=hint)
    return {**spec, "items": found.items}


def _valid(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    try:
        found = _ITEMS.validate_python(items)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        number, *place = first["loc"]
        told = format_problem({**first, "loc": place})
        field = read_field_problem({**first, "loc": ("items", *first["loc"])})
        raise InvalidInput(f"item {int(number) + 1}: {told}.", fields=[field]) from None
    return [item.model_dump(mode="json", exclude_unset=True) for item in found]


def _note(connection: Connection, name: str) -> Note:
    try:
        return notes.get(connection, _GLOBAL, _PREFIX + name, None)
    except NotFound:
        hint = "`kapelle batches list` shows those there are."
        raise NotFound(f"There is no list {name!r}.", hint=hint) from None


def _all(connection: Connection) -> list[BatchView]:
    wanted = NoteFilter.model_construct(scope=_GLOBAL, prefix=_PREFIX, limit=MAX_NOTES, cursor=None)
    found, _ = notes.list_page(connection, wanted, None)
    keys = [note.key for note in found]
    if keys:
        return [_view(note) for note in notes.list_changed(connection, _GLOBAL, keys)]
    return []


def _view(note: Note) -> BatchView:
    """A list as it stands; what somebody wrote as a note and is none has no items."""
    text = note.value or ""
    try:
        items = _valid(read_items(text, "markdown"))
        problem = None
    except InvalidInput as error:
        items = []
        problem = error.message
    return BatchView(
        name=note.key.removeprefix(_PREFIX), items=items, problem=problem, version=note.version,
        markdown=text, csv=format_csv(items), updated_at=note.updated_at,
    )  # fmt: skip
