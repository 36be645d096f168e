"""Decide which values are secret, by their names and by where they stand."""

import os
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from kapelle.domain.environment import looks_secret
from kapelle.domain.specs import McpServer

_SHORTEST_SECRET = 8
_URL_PASSWORD = re.compile(r"://[^/@:\s]*:([^/@\s]+)@")


def find_secrets(*environments: Mapping[str, str]) -> list[str]:
    """Return values that are secret by their name, and passwords inside URLs.

    The path of an existing file is not a secret.
    """
    values: list[str] = []
    for environment in environments:
        for name, value in environment.items():
            values += map(unquote, _URL_PASSWORD.findall(value))
            if looks_secret(name) and not os.path.exists(os.path.expanduser(value)):
                values.append(value)
    return [secret for secret in values if len(secret) >= _SHORTEST_SECRET]


def collect_server_values(servers: Iterable[McpServer]) -> list[dict[str, str]]:
    """Return the values that MCP servers receive, as variables.

    The value of a header is always a secret.
    """
    environments: list[dict[str, str]] = []
    for server in servers:
        environments.append(server.env)
        for value in server.headers.values():
            # "Bearer x" as a whole, and x alone.
            for part in (value, *value.split()[-1:]):
                environments.append({"SECRET": part})
    return environments
