"""Kapelle conducts coding agents: background tasks that survive crashes and report the true status.

Importing this package loads nothing else; the names in __init__.pyi are imported on first use.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    homes = _read_stub()
    if name == "__all__":
        return sorted(homes)
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(homes[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_read_stub()})


def _read_stub() -> dict[str, str]:
    """Return each public name with the module that defines it."""
    import re
    from pathlib import Path

    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    imports = re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)
    return {name: module for module, name in imports}
