"""HTTP requests to services that the settings name, with the keys configured for them."""

import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kapelle.domain.errors import InvalidInput, KapelleError, Unavailable
from kapelle.home import read_own
from kapelle.settings.models import Integration, KeyedSettings

TIMEOUT_S = 20.0
MAX_BYTES = 1_000_000
_LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "::1"}


class _KeyGuard(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to another host or scheme without the key.

    GitHub, for one, redirects the download of logs to a storage service.
    """

    def redirect_request(self, req: Any, *args: Any) -> urllib.request.Request | None:
        redirect = super().redirect_request(req, *args)
        if redirect is not None and (redirect.type, redirect.host) != (req.type, req.host):
            redirect.remove_header("Authorization")
        return redirect


_opener = urllib.request.build_opener(_KeyGuard)


def send_request(url: str, headers: Mapping[str, str], body: Any = None) -> str:
    """Send a request and return the body of the response as text.

    With a body (bytes, or anything that JSON can express) the request is a POST. Raises
    InvalidInput for an address that is neither https nor on this machine, because the request
    carries a key; KapelleError for an HTTP error; Unavailable if the service cannot be reached.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK_HOSTS:
        raise InvalidInput(f"The address of {parts.hostname} must begin with https://.")
    if body is None or isinstance(body, bytes):
        data = body
    else:
        data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as response:
            content: bytes = response.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        text = error.read(1000).decode(errors="replace").strip()
        raise KapelleError(f"{parts.hostname} answered {error.code}: {text}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unavailable(f"{parts.hostname} cannot be reached: {error}") from None
    # The log of a job may be longer: its beginning is cut off anyway.
    if len(content) > MAX_BYTES and body is not None:
        raise InvalidInput(
            "The answer is longer than one megabyte.", hint="Narrow the query, or set a limit."
        )
    return content.decode(errors="replace")


def read_key(settings: KeyedSettings, name: str) -> str:
    """Return the configured key of an integration or of the webhook; raises InvalidInput."""
    if settings.key_file is not None:
        try:
            return read_own(Path(settings.key_file).expanduser()).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"The key of {name} cannot be read: {error}") from None
    key = os.environ.get(settings.key_variable or "", "")
    if not key:
        section = name
        if isinstance(settings, Integration):
            section = f"integrations.{name}"
        variable = settings.key_variable or "the variable named by key_variable"
        raise InvalidInput(
            f"The daemon has no key for {name}.",
            hint=f"Set {section}.key_file, or start the daemon with {variable} set.",
        )
    return key
