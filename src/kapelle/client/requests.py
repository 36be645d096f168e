"""What both flavours send, how they reach the daemon, and how they read its answers."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import TypeAdapter, ValidationError

from kapelle.client.address import Address
from kapelle.domain.errors import InvalidInput, KapelleError, sentence
from kapelle.domain.task import Event

T = TypeVar("T")

TIMEOUT_S = 60.0
# The daemon closes a quiet connection after 5 s; one that is older than this is not used again.
LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=2.0)


@dataclass(frozen=True)
class Ask:
    """One request; queries without a value are left out."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S

    def arguments(self) -> dict[str, Any]:
        """As httpx takes it."""
        headers = dict(self.headers)
        content = None
        if self.method in {"POST", "PUT"}:
            headers["Content-Type"] = "application/json"
            content = json.dumps({} if self.body is None else self.body).encode()
        return {
            "method": self.method,
            "url": self.path,
            "params": {key: _word(value) for key, value in self.query.items() if value is not None},
            "content": content,
            "headers": headers,
            "timeout": httpx2.Timeout(self.timeout_s, pool=None),
        }


def _word(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def base_url(address: Address) -> str:
    """Where the routes begin; over a socket the host is only a word."""
    if address.url is None:
        return "http://localhost/api/v1"
    scheme, host, port = address.parts()
    place = f"[{host}]" if ":" in host else host
    return f"{scheme}://{place}{f':{port}' if port else ''}{address.base_path}/api/v1"


def transport_options(address: Address) -> dict[str, Any]:
    """A socket or a URL, without the proxies of the environment, as the command line does."""
    secure = address.url is not None and address.parts()[0] == "https"
    return {
        "uds": None if address.url else str(address.home.socket),
        # Loading the certificates is dear, and plain HTTP has no use for them.
        "verify": ssl.create_default_context() if secure else False,
        "limits": LIMITS,
        "trust_env": False,
    }


def path_of(noun: str, some_id: str, *more: str) -> str:
    """The path of a resource; any unique prefix of its id will do."""
    if not some_id.strip():
        raise InvalidInput(
            f"An empty text is not the id of one of the {noun}.",
            hint=f"client.{noun}.list() has the ids.",
        )
    return "/".join([f"/{noun}", quote(some_id.strip(), safe=""), *more])


def read_as(kind: type[T], answer: httpx2.Response) -> T:
    """An answer as what it is; a daemon of another version may tell what is not understood."""
    return _read(kind, answer.content, answer.url.path)


def read_event(sent: httpx2.ServerSentEvent) -> Event:
    return _read(Event, sent.data, "/events")


def _read(kind: type[T], text: str | bytes, place: str) -> T:
    wanted: Any = kind
    try:
        found: T = _adapter(wanted).validate_json(text)
    except ValidationError as error:
        raise KapelleError(
            f"{place} was answered with what cannot be read: {sentence(error, 1)}.",
            hint="Is the daemon of the same version as this program, and is it Kapelle at all?",
        ) from None
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
