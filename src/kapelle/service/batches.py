"""Use cases of saved lists of tasks; each list is stored as a global note under `batch/`."""

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
    """The text of a list: items in Markdown, or in CSV with a header row."""

    text: Annotated[Text, Field(max_length=1_000_000)]
    format: Format = "markdown"
    expected_version: ExpectedVersion = None


class BatchService:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def save(self, name: ListName, body: ListBody) -> BatchView:
        """Save a list under a name, from Markdown or CSV; replaces a list of the same name."""
        value = format_markdown(_validate_items(read_items(body.text, body.format)))
        if len(value) > MAX_VALUE:
            raise InvalidInput(
                f"A list has at most {MAX_VALUE:,} characters.", hint="Split it into two lists."
            )
        spec = NoteSpec(
            key=_PREFIX + name,
            scope=_GLOBAL,
            value=value,
            expected_version=body.expected_version,
        )
        return _view(await self._db.write(notes.put, spec, None))

    async def get(self, name: ListName) -> BatchView:
        """Get a saved list: its items for a run of `batch`, and its text as Markdown and CSV."""
        return _view(await self._db.glance(_load_note, name))

    async def all(self) -> list[BatchView]:
        """List the saved lists by name."""
        return await self._db.read(_load_all)

    async def delete(self, name: ListName) -> BatchView:
        """Delete a saved list; runs that were started from it continue."""
        view = await self.get(name)
        await self._db.write(notes.delete, _GLOBAL, _PREFIX + name, view.version, None)
        return view


async def with_list(
    db: Database, pattern: str, spec: RequestFields, key: str | None = None
) -> RequestFields:
    """Return a specification with the items of the saved list that its field `saved` names.

    A repeated request, with the idempotency key of an earlier run, gets the items of that run:
    the list may have changed since. Raises InvalidInput for a list that cannot be read.
    """
    name = spec.get("saved")
    if pattern != "batch" or not isinstance(name, str):
        return spec
    if spec.get("items"):
        raise InvalidInput(
            f"The batch has items and names the list {name!r}.", hint="Give only one of them."
        )
    if key:
        earlier_run = await db.glance(runs.find_by_key, key)
        if earlier_run is not None and earlier_run["spec"].get("saved") == name:
            return {**spec, "items": earlier_run["spec"]["items"]}
    view = _view(await db.glance(_load_note, name))
    if view.problem:
        hint = f"Type `kapelle batches edit {name}`."
        raise InvalidInput(f"The list {name!r} is not valid: {view.problem}", hint=hint)
    return {**spec, "items": view.items}


def _validate_items(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    try:
        specs = _ITEMS.validate_python(items)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        number, *path = first["loc"]
        text = format_problem({**first, "loc": path})
        field = read_field_problem({**first, "loc": ("items", *first["loc"])})
        raise InvalidInput(f"item {int(number) + 1}: {text}.", fields=[field]) from None
    return [spec.model_dump(mode="json", exclude_unset=True) for spec in specs]


def _load_note(connection: Connection, name: str) -> Note:
    try:
        return notes.get(connection, _GLOBAL, _PREFIX + name, None)
    except NotFound:
        hint = "Type `kapelle batches list` to see the saved lists."
        raise NotFound(f"There is no list {name!r}.", hint=hint) from None


def _load_all(connection: Connection) -> list[BatchView]:
    query = NoteFilter.model_construct(scope=_GLOBAL, prefix=_PREFIX, limit=MAX_NOTES, cursor=None)
    page, _ = notes.list_page(connection, query, None)
    keys = [note.key for note in page]
    if not keys:
        return []
    return [_view(note) for note in notes.list_changed(connection, _GLOBAL, keys)]


def _view(note: Note) -> BatchView:
    """Return the list that a note holds; a note that holds none has a problem and no items."""
    text = note.value or ""
    items: list[dict[str, Any]] = []
    problem = None
    try:
        items = _validate_items(read_items(text, "markdown"))
    except InvalidInput as error:
        problem = error.message
    return BatchView(
        name=note.key.removeprefix(_PREFIX),
        items=items,
        problem=problem,
        version=note.version,
        markdown=text,
        csv=format_csv(items),
        updated_at=note.updated_at,
    )
