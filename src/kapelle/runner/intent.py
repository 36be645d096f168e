"""What the daemon means to run, written before anything is started."""

import json
from pathlib import Path

from kapelle.runner import identity, request, rundir
from kapelle.runner.launch import Launch
from kapelle.runner.redaction import redact


def write(launch: Launch) -> None:
    """Note the intent; of the environment only the names, of the input only the size."""
    launch.process_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = {
        "protocol": rundir.PROTOCOL,
        "label": launch.label,
        "argv": launch.argv,
        "env": sorted(launch.env),
        "cwd": str(launch.cwd),
        "stdin_bytes": None if launch.stdin is None else len(launch.stdin),
        "timeout_s": launch.timeout_s,
        "grace_s": launch.grace_s,
        "boot_id": identity.boot_id(),
    }
    data = redact(json.dumps(facts).encode(), launch.redact)
    rundir.replace(str(launch.process_dir / rundir.INTENT), data)


def is_from_an_earlier_boot(process_dir: Path) -> bool:
    """Whether a power cut may have taken the claim that once followed this intent."""
    try:
        facts = json.loads(rundir.read(str(process_dir / rundir.INTENT)) or b"null")
    except (ValueError, RecursionError):
        return False
    boot = facts.get("boot_id") if isinstance(facts, dict) else None
    return isinstance(boot, str) and boot != identity.boot_id()


def to_request(launch: Launch, leaf: Path | None) -> bytes:
    """The request for a shim; ValueError if some text cannot be given to a process."""
    if not launch.argv:
        raise ValueError("there is no command")
    return request.encode(
        process_dir=str(launch.process_dir),
        argv=launch.argv,
        cwd=str(launch.cwd),
        env=launch.env,
        stdin=launch.stdin,
        redact=launch.redact,
        timeout_s=launch.timeout_s,
        grace_s=launch.grace_s,
        boot_id=identity.boot_id(),
        leaf=None if leaf is None else str(leaf),
    )
