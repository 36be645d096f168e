"""Parts of the documents that are made from the code: `make docs` writes them, a test compares."""

import re
from collections.abc import Mapping
from pathlib import Path

Parts = Mapping[str, str]


def with_parts(page: str, parts: Parts) -> str:
    """A page with new content between the marks of each part; raises ValueError without marks."""
    for name, content in parts.items():
        begin, end = f"<!-- made by make docs: {name} -->\n", "<!-- end of that -->"
        found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", page, re.DOTALL)
        if found is None:
            raise ValueError(f"there is no place for: {name}")
        made = f"{begin}\n{content.strip()}\n\n{end}"
        page = page[: found.start()] + made + page[found.end() :]
    return page


def write(directory: Path, pages: Mapping[str, Parts]) -> None:
    """Bring the parts of pages up to date."""
    for name, parts in pages.items():
        path = directory / name
        path.write_text(with_parts(path.read_text(encoding="utf-8"), parts), encoding="utf-8")
