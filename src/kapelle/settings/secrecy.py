"""Which values are secrets, and how they are shown."""

import re
from typing import Any

_SECRET = re.compile(
    "KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(^|_)(PAT|PASS|PWD|AUTH)(_|$)",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")
_ADDRESSES = ("database_url", ".base_url", ".url")
_VARIABLE = re.compile(r"^(agents\.[^.]+\.|(agents\.[^.]+\.)?mcp\.[^.]+\.)env\.")
# What a server is sent in headers is mostly a token, whatever the header is called.
_HEADER = re.compile(r"^(agents\.[^.]+\.)?mcp\.[^.]+\.headers\.")


def looks_secret(name: str) -> bool:
    """Whether a variable of this name likely holds a secret."""
    return _SECRET.search(name) is not None


def masked(name: str, value: str) -> str:
    """The value as it may be shown: of a secret only its first and last letters, if it is long."""
    short = f"{value[:3]}…{value[-3:]}" if len(value) >= 16 else "***"
    return short if looks_secret(name) else value


def shown(key: str, value: Any) -> Any:
    """A setting's value as it may be shown."""
    if key.endswith(_ADDRESSES) and value:
        return _URL_PASSWORD.sub(r"\1:***@", str(value))
    if _HEADER.search(key):
        return masked("TOKEN", str(value))
    in_environment = key.startswith("environment.set.") or _VARIABLE.search(key)
    return masked(key.rpartition(".")[2], str(value)) if in_environment else value
