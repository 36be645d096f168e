"""What `kapelle doctor` finds about the port that the daemon listens on, or would."""

import json
import os
import socket
from collections.abc import Iterator

from kapelle.cli.finding import Finding
from kapelle.cli.repository import current
from kapelle.domain.errors import KapelleError
from kapelle.home import Home


def port(home: Home) -> Iterator[Finding]:
    from kapelle.settings import load

    if home.socket.exists() and (own := _own_address(home)):
        yield Finding("port", "ok", f"the daemon listens at {own}")
        return
    try:
        server = load(home, current(), os.environ).settings.server
    except KapelleError:
        return  # the examination of the configuration reports it
    if server.port == 0:
        yield Finding("port", "ok", f"any free one of {server.host}")
    elif problem := _why_not(server.host, server.port):
        hint = "End what uses it, or: kapelle config set server.port 0"
        yield Finding("port", "broken", f"{server.host}:{server.port}: {problem}", hint)
    else:
        yield Finding("port", "ok", f"{server.host}:{server.port} is free")


def _own_address(home: Home) -> str | None:
    try:
        return str(json.loads(home.info.read_bytes())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _why_not(host: str, number: int) -> str | None:
    """Why nobody could listen there; the socket is bound for a moment and never listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None
