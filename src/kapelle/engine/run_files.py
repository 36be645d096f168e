"""Private files that a process finds in its process directory."""

from collections.abc import Mapping
from pathlib import Path


def place(process_dir: Path, files: Mapping[str, str]) -> None:
    """Write them, readable by their owner only, before the process is started."""
    process_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in files.items():
        path = process_dir / name
        path.touch(mode=0o600)
        path.write_text(content, encoding="utf-8", errors="replace")
