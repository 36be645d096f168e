"""The page in the browser: the files that the build of `web` made, at every address of the page."""

from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from kapelle.api.errors import error_response

# In a wheel the page is inside the package; in a checkout it is where it was built.
_PLACES = (Path(__file__).parents[1] / "page", Path(__file__).parents[3] / "web" / "dist")
_FILES = frozenset({"assets", "icon.svg", "theme.js"})
_VIEWS = frozenset({"", "work", "tasks", "runs", "schedules", "watch", "knowledge", "projects",
                    "report", "usage", "system", "search", "new", "login"})  # fmt: skip
_OTHERS = frozenset({"api", "mcp", "healthz"})
_NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Kapelle</title>
<h1>The page is not built</h1>
<p>This daemon runs from a checkout. Type <code>make web</code> there, then reload.</p></html>"""


def is_page(scope: Scope) -> bool:
    """Return whether a request is for the page, which has no data and needs no token."""
    if scope.get("method") not in {"GET", "HEAD"}:
        return False
    first_part = scope["path"].split("/")[1]
    if first_part in _FILES or first_part in _VIEWS:
        return True
    # A person may have mistyped an address in the browser; the page answers that best.
    is_document = (b"sec-fetch-dest", b"document") in scope.get("headers", ())
    return is_document and first_part not in _OTHERS


async def page(scope: Scope) -> Response:
    """Return a file of the page, or its HTML for the address of a view."""
    # Looked up for each request, because the page may be built while the daemon runs.
    root = next((place for place in _PLACES if (place / "index.html").is_file()), None)
    if root is None:
        return HTMLResponse(_NOT_BUILT, 503)
    path = scope["path"].lstrip("/")
    is_file = path.split("/")[0] in _FILES
    file = path if is_file else "index.html"
    files = StaticFiles(directory=root)
    try:
        # This raises for a path outside of the page, so it comes before the look for the .gz file.
        response = await files.get_response(file, scope)
        is_compressed = _accepts_gzip(scope) and (root / f"{file}.gz").is_file()
        if is_compressed:
            content_type = response.headers.get("Content-Type")
            response = await files.get_response(f"{file}.gz", scope)
    except HTTPException:
        return error_response(404, "not_found", f"The page has no file {path}.")
    response.headers["Vary"] = "Accept-Encoding"
    if is_compressed and response.status_code != 304:
        response.headers["Content-Encoding"] = "gzip"
        if content_type is not None:
            response.headers["Content-Type"] = content_type
    # The name of an asset has a digest of its content, so browsers may keep it for ever.
    if path.startswith("assets/") and ".." not in path:
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
    else:
        response.headers["Cache-Control"] = "no-cache"
    return response


def _accepts_gzip(scope: Scope) -> bool:
    """Return whether the client takes a gzip-compressed answer."""
    for offer in Headers(scope=scope).get("accept-encoding", "").lower().split(","):
        coding, _, weight = offer.partition(";")
        if coding.strip() == "gzip":
            # A quality of zero names gzip to refuse it.
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False
