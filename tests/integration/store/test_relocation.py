"""The change of a repository's path in the rows, on both databases."""

from tests.integration.rows import task_row

from kapelle.store import projects, relocation, tasks
from kapelle.store.database import Connection, Database
from kapelle.store.tables import locks
from kapelle.store.tables import tasks as table


async def test_only_the_paths_in_the_repository_are_replaced(db: Database) -> None:
    places = {
        "/r/a_%": "/n/é",
        "/r/a_%/src": "/n/é/src",
        # Neither a longer name, another case nor what a wildcard would match is in it.
        "/r/a_%b": "/r/a_%b",
        "/R/A_%/src": "/R/A_%/src",
        "/r/axx/src": "/r/axx/src",
    }
    rows = [
        task_row(directory=place, repository=place, workspace_path=place, workspace_base_commit="c")
        for place in places
    ]
    held = {"path": "x", "owner": "person", "ttl_s": 60.0, "taken_at": rows[0]["created_at"]}

    def prepare(connection: Connection) -> None:
        for row in rows:
            tasks.insert(connection, row, [])
        projects.switch(connection, "old", "/r/a_%")
        projects.switch(connection, "new", "/n/é")
        for checkout in ("/r/a_%", "/n/é"):
            connection.execute(locks.insert().values(checkout=checkout, **held))

    await db.write(prepare)
    counts = await db.write(relocation.relocate, "/r/a_%", "/n/é")
    found = await db.read(lambda c: c.execute(table.select().order_by(table.c.id)).all())
    assert [row.directory for row in found] == list(places.values())
    assert [row.repository for row in found] == [row.workspace_path for row in found]
    assert (counts["tasks"], counts["runs"], counts["locks"]) == (2, 0, 1)
    # The project that was chosen at the new place stays.
    assert await db.read(projects.load_current) == {"/n/é": "new"}
    assert (await db.read(relocation.load_base_commits))["/n/é"] == ["c"]
    assert not any((await db.write(relocation.relocate, "/r/a_%", "/n/é")).values())
