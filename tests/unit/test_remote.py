"""Which addresses of remotes are a forge's: nothing else is ever pushed to."""

from pathlib import Path
from typing import Any

import pytest

from kapelle.workspaces.forge.remote import Remote

_GIT: Any = None


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("git@github.com:o/r.git", ("ssh", "github.com", "o/r")),
        ("https://me:secret@github.com/o/r.git", ("https", "github.com", "o/r")),
        ("ssh://git@git.example.com:2222/a/b/c.git", ("ssh", "git.example.com", "a/b/c")),
        ("https://git.example.com:8443/o/r", ("https", "git.example.com:8443", "o/r")),
        ("http://127.0.0.1:8080/o/r", ("http", "127.0.0.1:8080", "o/r")),
        ("http://github.com/o/r", None),
        ("ext::sh -c touch% ran", None),
        ("file://localhost/srv/r.git", None),
        ("/srv/r.git", None),
        ("--upload-pack=touch ran", None),
        ("-oProxyCommand=touch:ran", None),
    ],
)
def test_an_address_is_a_forges_or_nothing(url: str, found: tuple[str, ...] | None) -> None:
    remote = Remote(_GIT, Path("/")).at(url)
    assert (remote and (remote.scheme, remote.host, remote.project)) == found
