"""Hooks of the documentation site: pages from the repository's top, links out of docs/, mermaid.

MkDocs imports this file; mkdocs.yml names it. The site must not fetch anything from other hosts, so
mermaid, which Material would load from one, is packed into the site.
"""

import re
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from web.build import npm  # noqa: E402

# Pages that live at the top of the repository, where GitHub looks for them.
TOP_PAGES = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
MERMAID = "11.17.2"
SCRIPT = "assets/mermaid.min.js"
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)")
# A fenced block that names its file behind the language.
NAMED_FENCE = re.compile(r"^(`{3,}\w+) (\S+/\S+)$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Replace `adr/*` in the navigation with the decisions that there are."""
    decisions = sorted(Path(config.docs_dir, "adr").glob("[0-9]*.md"))
    pages = [f"adr/{path.name}" for path in decisions]
    _replace_in_nav(config.nav, "adr/*", pages)
    return config


def _replace_in_nav(nav: list[Any], entry: str, pages: list[str]) -> None:
    for item in list(nav):
        if item == entry:
            place = nav.index(item)
            nav[place : place + 1] = pages
        elif isinstance(item, dict):
            for value in item.values():
                if isinstance(value, list):
                    _replace_in_nav(value, entry, pages)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from the top of the repository, and mermaid."""
    from mkdocs.structure.files import File

    for name in TOP_PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text("utf-8")))
    files.append(File.generated(config, SCRIPT, abs_src_path=str(_fetch_mermaid())))
    return files


def _fetch_mermaid() -> Path:
    """Return the path of mermaid's one file; npm fetches it once."""
    path = ROOT / ".venv.site" / f"mermaid-{MERMAID}.min.js"
    if not path.exists():
        with tempfile.TemporaryDirectory() as place:
            npm("pack", "--silent", "--pack-destination", place, f"mermaid@{MERMAID}")
            (archive,) = Path(place).glob("*.tgz")
            path.write_bytes(_read_member(archive, "package/dist/mermaid.min.js"))
    return path


def _read_member(archive: Path, name: str) -> bytes:
    """Return the content of one file of an archive."""
    with tarfile.open(archive) as opened:
        member = opened.extractfile(name)
        assert member is not None
        return member.read()


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links from the repository lead somewhere on the site."""
    uri = page.file.src_uri
    if uri.startswith("adr/") or uri == "CHANGELOG.md":
        # A search should find the guide to a subject before its history.
        page.meta["search"] = {"boost": 0.2}
    is_top = uri in TOP_PAGES
    folder = ROOT if is_top else Path(config.docs_dir, uri).parent

    def replace_target(match: re.Match[str]) -> str:
        return _site_target(match[1], folder, page, config, files)

    markdown = NAMED_FENCE.sub(r'\1 title="\2"', markdown)
    return LINK.sub(replace_target, markdown)


def _site_target(target: str, folder: Path, page: Any, config: Any, files: Any) -> str:
    """Return where a relative link leads: within the site, or to the repository's files."""
    path = (folder / target).resolve()
    if not path.is_relative_to(ROOT) or not path.exists():
        return target  # MkDocs warns about it.
    inside = path.relative_to(ROOT).as_posix()
    uri = inside.removeprefix("docs/")
    if files.get_file_from_path(uri) is None:
        return f"{config.repo_url}/blob/main/{inside}"
    above = "../" * page.file.src_uri.count("/")
    return f"{above}{uri}"


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Load mermaid on the pages that have a diagram, and nothing from other hosts."""
    # By this mark Material's script asks GitHub for stars, from every reader's browser.
    output = output.replace(' data-md-component="source"', "")
    if '<pre class="mermaid">' not in output:
        return output
    above = "../" * page.url.count("/")
    return output.replace("</head>", f'<script src="{above}{SCRIPT}"></script></head>', 1)
