"""Use cases of trust: show what a repository could execute, and allow or forbid it."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from kapelle.domain.errors import InvalidInput
from kapelle.domain.specs import Spec, Text
from kapelle.domain.views import TrustItem, TrustView
from kapelle.engine.parts import Parts
from kapelle.engine.tasks.submit import require_directory
from kapelle.settings import trust
from kapelle.settings.config import mask_setting
from kapelle.settings.trust import Executable
from kapelle.store import tasks

_log = logging.getLogger("kapelle.trust")


Absolute = Field(max_length=4000, pattern=r"^/[^\x00]*$")


class TrustBody(Spec):
    """A directory of the repository, and the digest of the content that was reviewed, so that
    nothing else is trusted."""

    directory: Annotated[Text, Absolute]
    digest: Annotated[Text | None, Field(max_length=64)] = None


class TrustService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def list_repositories(
        self, directory: Annotated[str | None, Absolute] = None
    ) -> list[TrustView]:
        """List the repositories that were ever trusted.

        With a directory, only its repository is listed, trusted or not.
        """
        if directory is None:
            return await asyncio.to_thread(self._view_all)
        return [await asyncio.to_thread(self._view_at, require_directory(directory))]

    async def grant(self, body: TrustBody) -> TrustView:
        """Trust a repository to execute its .kapelle; a change of .kapelle ends the trust."""
        executable = await asyncio.to_thread(self._read, require_directory(body.directory))
        await asyncio.to_thread(trust.grant, self._parts.home, executable, body.digest)
        _log.info("%s is trusted with %s", executable.place, executable.digest)
        await self._parts.db.write(tasks.wake_waiting, "trust", datetime.now(UTC))
        return await asyncio.to_thread(self._view, executable)

    async def withdraw(self, directory: Annotated[str, Absolute]) -> TrustView:
        """Withdraw the trust in a repository; running work continues."""
        # The directory need not exist: trust in a deleted repository can be withdrawn.
        executable = await asyncio.to_thread(self._read, directory)
        await asyncio.to_thread(trust.drop, self._parts.home, executable.place, forget=True)
        _log.info("%s is not trusted any more", executable.place)
        return await asyncio.to_thread(self._view, executable)

    def _read(self, directory: str) -> Executable:
        """Return what the repository of a directory could execute; raises InvalidInput."""
        try:
            return trust.find_executable(self._parts.home, Path(directory))
        except OSError as error:
            raise InvalidInput(f"{directory} cannot be read: {error.strerror}.") from error

    def _view_at(self, directory: str) -> TrustView:
        return self._view(self._read(directory))

    def _view_all(self) -> list[TrustView]:
        views = []
        for place in sorted(trust.read_records(self._parts.home)):
            try:
                executable = replace(self._read(place), place=Path(place))
            except InvalidInput:
                executable = Executable(Path(place), None, {}, {}, {}, (), {}, "")
            views.append(self._view(executable))
        return views

    def _view(self, executable: Executable) -> TrustView:
        home = self._parts.home
        place = str(executable.place)
        record = trust.read_records(home).get(place)
        items = _mask(executable.items)
        trusted_items = _mask(record.items) if record else items
        return TrustView(
            directory=place,
            status=trust.determine_standing(home, executable, self._parts.environ),
            digest=executable.digest,
            trusted_at=datetime.fromisoformat(record.trusted_at) if record else None,
            items=[TrustItem(name=name, text=text) for name, text in items.items()],
            difference=list(trust.list_differences(trusted_items, items)),
        )


def _mask(items: Mapping[str, str]) -> dict[str, str]:
    """Return the items with the values of secret variables masked."""
    return {name: str(mask_setting(name, text)) for name, text in items.items()}
