"""Use cases of trust: what a repository could execute, and a person's word that it may."""

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
    """A directory of the repository and, so that nothing else is trusted, the digest of what was
    looked at."""

    directory: Annotated[Text, Absolute]
    digest: Annotated[Text | None, Field(max_length=64)] = None


class TrustService:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def known(self, directory: Annotated[str | None, Absolute] = None) -> list[TrustView]:
        """Every repository that was trusted once; with a directory that of its own, trusted or
        not."""
        if directory is None:
            return await asyncio.to_thread(self._all)
        return [await asyncio.to_thread(self._view_at, require_directory(directory))]

    async def grant(self, body: TrustBody) -> TrustView:
        """Let a repository execute what stands in its .kapelle now; a change there ends that."""
        found = await asyncio.to_thread(self._found, require_directory(body.directory))
        await asyncio.to_thread(trust.grant, self._parts.home, found, body.digest)
        _log.info("%s is trusted with %s", found.place, found.digest)
        await self._parts.db.write(tasks.wake_waiting, "trust", datetime.now(UTC))
        return await asyncio.to_thread(self._view, found)

    async def withdraw(self, directory: Annotated[str, Absolute]) -> TrustView:
        """Trust a repository no more."""
        # Even one that is gone; work that runs goes on.
        found = await asyncio.to_thread(self._found, directory)
        await asyncio.to_thread(trust.drop, self._parts.home, found.place, forget=True)
        _log.info("%s is not trusted any more", found.place)
        return await asyncio.to_thread(self._view, found)

    def _found(self, directory: str) -> Executable:
        try:
            return trust.find_executable(self._parts.home, Path(directory))
        except OSError as error:
            raise InvalidInput(f"{directory} cannot be looked at: {error.strerror}.") from error

    def _view_at(self, directory: str) -> TrustView:
        return self._view(self._found(directory))

    def _all(self) -> list[TrustView]:
        views = []
        for place in sorted(trust.read_records(self._parts.home)):
            try:
                found = replace(self._found(place), place=Path(place))
            except InvalidInput:
                found = Executable(Path(place), None, {}, {}, {}, (), {}, "")
            views.append(self._view(found))
        return views

    def _view(self, found: Executable) -> TrustView:
        home = self._parts.home
        place = str(found.place)
        record = trust.read_records(home).get(place)
        # Values of variables are shown as everywhere else: a secret among them is not.
        items = _shown(found.items)
        if record:
            before = _shown(record.items)
        else:
            before = items
        return TrustView(
            directory=place,
            status=trust.determine_standing(home, found, self._parts.environ),
            digest=found.digest,
            trusted_at=datetime.fromisoformat(record.trusted_at) if record else None,
            items=[TrustItem(name=name, text=text) for name, text in items.items()],
            difference=list(trust.list_differences(before, items)),
        )


def _shown(items: Mapping[str, str]) -> dict[str, str]:
    return {name: str(mask_setting(name, text)) for name, text in items.items()}
