"""Use cases without a daemon around them, for what is made from the table of operations."""

import asyncio
import tempfile
from functools import cache
from pathlib import Path

from kapelle.api.app import make_router
from kapelle.api.router import Router
from kapelle.engine.merge import MergeQueue
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.queue import TaskQueue
from kapelle.home import Home
from kapelle.runner.runner import Runner
from kapelle.secrets.vault import Vault
from kapelle.service import Service
from kapelle.service.daemon import Stopping
from kapelle.store.database import Database, sqlite_url
from kapelle.workspaces import Workspaces

# Removed when the process ends.
_directory = tempfile.TemporaryDirectory(prefix="kapelle-idle-")


@cache
def idle_services() -> Service:
    """Return services that are never called: nothing is started, and no database is opened."""
    home = Home(Path(_directory.name))
    parts = Parts(
        home=home,
        db=Database(sqlite_url(home.database)),
        runner=Runner(home.root),
        workspaces=Workspaces(home.root, "nobody", "nobody@example.org"),
        environ={},
        secret="",
        vault=Vault(home),
    )
    return Service(parts, TaskQueue(parts), MergeQueue(parts), Stopping(asyncio.Event()))


@cache
def idle_router() -> Router:
    """Return the API over such services."""
    return make_router(idle_services())
