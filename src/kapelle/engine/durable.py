"""The only importer of DBOS: durable functions whose steps are not repeated after a crash."""

import logging
from collections.abc import Callable, Coroutine
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, SetWorkflowID

from kapelle.store.database import connect, sqlite_url

# Bumped only when a durable function changes so that old executions cannot be replayed.
APPLICATION_VERSION = "1"
_THREADS = 16
# The engine gives up on a workflow that was recovered too often; a daemon may well die often.
_RECOVERIES = 1_000_000_000

Workflow = Callable[[str], Coroutine[Any, Any, None]]


_log = logging.getLogger("kapelle.durable")


class WorkflowState(StrEnum):
    ABSENT = "absent"
    ACTIVE = "active"
    ENDED = "ended"


class Durable:
    """One engine per process. Register workflows, launch, then start them by id."""

    def __init__(self, database: Path | str, executor_id: str) -> None:
        config: DBOSConfig = {
            "name": "kapelle",
            "application_version": APPLICATION_VERSION,
            "executor_id": executor_id,
            "serializer": DBOSPortableJSONSerializer(),
            "max_executor_threads": _THREADS,
            "log_level": "ERROR",
            "console_log_level": "ERROR",
            "notification_listener_polling_interval_sec": 60.0,
            "scheduler_polling_interval_sec": 3600.0,
        }
        if isinstance(database, Path):
            url = sqlite_url(database)
            # What a power cut may take from this file, the recovery sweep puts right.
            config["system_database_engine"] = connect(url, synchronous="NORMAL")
        else:
            url = database
        config["system_database_url"] = url
        DBOS(config=config)
        logging.getLogger("dbos").setLevel(logging.CRITICAL)
        self._workflows: dict[str, Workflow] = {}

    def workflow(self, name: str, function: Workflow) -> None:
        """Register a durable function of one argument."""

        # The engine marks what it is given, which a bound method does not allow.
        async def plain(argument: str) -> None:
            try:
                await function(argument)
            except Exception:
                _log.exception("%s of %s failed", name, argument)
                raise

        decorate = DBOS.workflow(name=name, max_recovery_attempts=_RECOVERIES)
        self._workflows[name] = decorate(plain)

    def launch(self) -> None:
        """Begin to execute on the running loop; unfinished workflows of this executor go on."""
        DBOS.launch()

    async def start(self, name: str, workflow_id: str, argument: str) -> None:
        """Start a workflow; starting the same id again is harmless."""
        with SetWorkflowID(workflow_id):
            await DBOS.start_workflow_async(self._workflows[name], argument)

    async def state(self, workflow_id: str) -> WorkflowState:
        status = await DBOS.get_workflow_status_async(workflow_id)
        if status is None:
            return WorkflowState.ABSENT
        # One of another application version is executed by nobody, whatever its status says.
        if status.status in {"PENDING", "ENQUEUED", "DELAYED"} and _is_ours(status.app_version):
            return WorkflowState.ACTIVE
        return WorkflowState.ENDED

    async def resume(self, workflow_id: str) -> None:
        """Have a workflow that nobody executes executed again, from its last recorded step."""
        await DBOS.resume_workflow_async(workflow_id)

    async def stranded(self) -> list[str]:
        """Unfinished workflows of another application version, which nothing will execute."""
        found = await DBOS.list_workflows_async(status=["PENDING", "ENQUEUED"], load_input=False)
        return [workflow.workflow_id for workflow in found if not _is_ours(workflow.app_version)]

    async def forget(self, before: datetime) -> int:
        """Delete finished workflows that ended before a time; returns how many."""
        done = await DBOS.list_workflows_async(
            completed_before=before.isoformat(), limit=500, load_input=False, load_output=False
        )
        old = [workflow.workflow_id for workflow in done]
        if old:
            await DBOS.delete_workflows_async(old)
        return len(old)

    def close(self) -> None:
        DBOS.destroy(destroy_registry=True)


def _is_ours(version: str | None) -> bool:
    return version in {APPLICATION_VERSION, None}
