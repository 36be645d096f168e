"""Kapelle conducts coding agents: background tasks that survive crashes and tell the truth.

Importing it loads nothing else; the names in __init__.pyi are looked up when they are used.
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    homes = _homes()
    if name == "__all__":
        return sorted(homes)
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(homes[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})


def _homes() -> dict[str, str]:
    """Each name with the module in which it lives."""
    import re
    from pathlib import Path

    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    found = re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)
    return {name: module for module, name in found}
