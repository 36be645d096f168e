"""The page: what the build of `web` left, served to a browser at each address of the page."""

from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from kapelle.api.errors import error_response

# A wheel carries the page inside the package; in a checkout it is where it was built.
_PLACES = (Path(__file__).parents[1] / "page", Path(__file__).parents[3] / "web" / "dist")
_FILES = frozenset({"assets", "icon.svg", "theme.js"})
_VIEWS = frozenset({"", "work", "tasks", "runs", "schedules", "watch", "knowledge", "projects",
                    "report", "usage", "system", "search", "new", "login"})  # fmt: skip
_OTHERS = frozenset({"api", "mcp", "healthz"})
_NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Kapelle</title>
<h1>The page is not built</h1>
<p>This daemon runs from a checkout. Type <code>make web</code> there, then reload.</p></html>"""


def is_page(scope: Scope) -> bool:
    """Whether a request asks for the page or a part of it, which holds nothing of anybody's."""
    first = scope["path"].split("/")[1]
    # An address that somebody mistyped in a browser is answered by the page.
    typed = (b"sec-fetch-dest", b"document") in scope.get("headers", ()) and first not in _OTHERS
    return scope.get("method") in {"GET", "HEAD"} and (first in _FILES | _VIEWS or typed)


async def page(scope: Scope) -> Response:
    """What is shown of it for a request."""
    # It may be built while the daemon runs.
    root = next((place for place in _PLACES if (place / "index.html").is_file()), None)
    if root is None:
        return HTMLResponse(_NOT_BUILT, 503)
    path = scope["path"].lstrip("/")
    is_file = path.split("/")[0] in _FILES
    file = path if is_file else "index.html"
    files = StaticFiles(directory=root)
    try:
        # Raises for a path outside of the page, before a file beside it is looked for.
        found = await files.get_response(file, scope)
        is_compressed = _accepts_gzip(scope) and (root / f"{file}.gz").is_file()
        if is_compressed:
            content_type = found.headers.get("Content-Type")
            found = await files.get_response(f"{file}.gz", scope)
    except HTTPException:
        return error_response(404, "not_found", f"The page has no file {path}.")
    found.headers["Vary"] = "Accept-Encoding"
    if is_compressed and found.status_code != 304:
        found.headers["Content-Encoding"] = "gzip"
        if content_type is not None:
            found.headers["Content-Type"] = content_type
    # The names of these hold a digest of their content; the others are asked for each time.
    hashed = path.startswith("assets/") and ".." not in path
    found.headers["Cache-Control"] = "public, max-age=31536000, immutable" if hashed else "no-cache"
    return found


def _accepts_gzip(scope: Scope) -> bool:
    """Return whether the client takes a gzip-compressed answer."""
    for offer in Headers(scope=scope).get("accept-encoding", "").lower().split(","):
        coding, _, weight = offer.partition(";")
        if coding.strip() == "gzip":
            # A quality of zero names gzip to refuse it.
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False
