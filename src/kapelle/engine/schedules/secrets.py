"""The values of a schedule's variables and MCP servers, in a private file beside the database."""

import json
import time
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.engine.tasks.submit import keep_secrets

# What a specification may hold that is nobody's business.
_SECRET = ("env", "mcp")
# Longer than any request that creates a schedule is at work on it.
_REQUEST_AGE_S = 600.0


class ScheduleSecrets:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, schedule_id: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Put the values away; returns the specification with only the names of them."""
        secret = {name: spec[name] for name in _SECRET if isinstance(spec.get(name), dict)}
        keep_secrets(self._path(schedule_id), secret)
        return {**spec, **{name: sorted(values) for name, values in secret.items()}}

    def whole(self, schedule_id: str, spec: dict[str, Any]) -> dict[str, Any]:
        """The specification with its values again."""
        if not any(spec.get(name) for name in _SECRET):
            return {key: value for key, value in spec.items() if key not in _SECRET}
        try:
            secret: dict[str, Any] = json.loads(self._path(schedule_id).read_bytes())
        except FileNotFoundError:
            raise InvalidInput(
                "The values of its variables are not there any more.",
                hint="Create the schedule anew.",
            ) from None
        return {**spec, **secret}

    def forget(self, schedule_id: str) -> None:
        self._path(schedule_id).unlink(missing_ok=True)

    def owners(self) -> list[str]:
        """The schedules that have values here, those that are just being created left out."""
        limit = time.time() - _REQUEST_AGE_S
        found = []
        for path in self._directory.glob("schedule_*.json"):
            try:
                created = path.stat().st_mtime
            except FileNotFoundError:
                continue
            if created < limit:
                found.append(path.stem)
        return found

    def _path(self, schedule_id: str) -> Path:
        return self._directory / f"{schedule_id}.json"
