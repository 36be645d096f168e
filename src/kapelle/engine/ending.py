"""Why Kapelle itself ended a run, on the disk, for the daemon may not live to tell."""

import json
from pathlib import Path

from kapelle.agents.resets import reset_stated
from kapelle.domain.failures import Failure, FailureClass
from kapelle.runner.shim.files import replace

_FILE = "ended_for.json"


def note(process_dir: Path, failure: Failure) -> None:
    """Write it down before the run is ended."""
    retry_at = failure.retry_at.isoformat() if failure.retry_at else None
    body = {"kind": failure.kind, "evidence": failure.evidence, "retry_at": retry_at}
    replace(str(process_dir / _FILE), json.dumps(body).encode())


def noted(process_dir: Path) -> Failure | None:
    """Why a run was ended, if it was."""
    try:
        found = json.loads((process_dir / _FILE).read_bytes())
        kind = FailureClass(found["kind"])
        return Failure(kind, str(found["evidence"]), reset_stated(found.get("retry_at")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
