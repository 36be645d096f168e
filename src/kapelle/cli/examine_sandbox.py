"""What `kapelle doctor` finds about programs that can shut agents in."""

import shutil
import sys
from collections.abc import Iterator

from kapelle.cli.finding import Finding
from kapelle.home import Home

_EVERYWHERE = ("docker", "podman")


def sandbox(home: Home) -> Iterator[Finding]:
    """Which are there; none is needed, and that one is on PATH does not say that it works."""
    wanted = ("sandbox-exec" if sys.platform == "darwin" else "bwrap", *_EVERYWHERE)
    found = [f"{name} ({path})" for name in wanted if (path := shutil.which(name))]
    if found:
        yield Finding("sandbox", "ok", f"on PATH: {', '.join(found)}")
    else:
        yield Finding("sandbox", "ok", f"none of {', '.join(wanted)} is on PATH")
