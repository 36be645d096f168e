"""The named places of the engine where a test may have the daemon kill itself."""

import re
from pathlib import Path

import kapelle

_POINT = re.compile(r'failpoint\("(\w+)"\)')


def failpoints_in(package: str) -> list[str]:
    """Those of a package of the engine, as they stand in its modules."""
    modules = sorted((Path(kapelle.__file__).parent / "engine" / package).glob("*.py"))
    found = [name for path in modules for name in _POINT.findall(path.read_text("utf-8"))]
    assert found, f"there is none in engine/{package}"
    return list(dict.fromkeys(found))
