"""Which addresses of remotes are a forge's: nothing else is ever pushed to."""

from pathlib import Path
from typing import Any

import pytest

from kapelle.domain.errors import ForgeError, KapelleError, Unavailable
from kapelle.settings.models import Forge
from kapelle.workspaces.forge.remote import Remote
from kapelle.workspaces.git import Output

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
        ("https://github.com:99999/x", None),
        ("https://github.com:abc/x", None),
        ("https://[x/y", None),
    ],
)
def test_an_address_is_a_forges_or_nothing(url: str, found: tuple[str, ...] | None) -> None:
    remote = Remote(_GIT, Path("/")).at(url)
    assert (remote and (remote.scheme, remote.host, remote.project)) == found


_END = (
    "fatal: Could not read from remote repository.\n\nPlease make sure you have the correct access "
    "rights\nand the repository exists.\n"
)


@pytest.mark.parametrize(
    ("stderr", "kind", "said"),
    [
        (f"ssh: Could not resolve hostname x: try later\n{_END}", Unavailable, "hostname x"),
        (f"ssh: connect to host x port 22: No route to host\n{_END}", Unavailable, "No route"),
        (f"kex_exchange_identification: closed by remote host\n{_END}", Unavailable, "kex_"),
        ("send-pack: unexpected disconnect\nfatal: the remote end hung up", Unavailable, "hung"),
        (f"git@x: Permission denied (publickey).\n{_END}", ForgeError, "let you in"),
        (f"ERROR: Permission to o/r.git denied to me.\n{_END}", ForgeError, "let you in"),
        (f"ERROR: Repository not found.\n{_END}", ForgeError, "is not there"),
        ("error: RPC failed; HTTP 413\nfatal: the remote end hung up", ForgeError, "413"),
        ("fatal: unable to access 'https://u:p@ss@x/': odd", ForgeError, "'https://x/': odd"),
    ],
)
async def test_all_that_git_says_tells_what_passes(
    stderr: str, kind: type[KapelleError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: Any, **__: Any) -> Output:
        return Output(128, b"", False, stderr)

    monkeypatch.setattr(Remote, "run", run)
    remote = Remote(_GIT, Path("/")).at("git@x:o/r.git")
    assert remote is not None
    with pytest.raises(kind) as raised:
        await remote.branches("main", token="")
    assert said in raised.value.message
    assert "correct access" not in raised.value.message


async def test_a_variable_for_one_host_is_not_sent_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run(*_: Any, **__: Any) -> Output:
        return Output(128, b"", False)

    monkeypatch.setattr(Remote, "run", run)
    here = Remote(_GIT, Path("/"), environ={"GITLAB_TOKEN": "mine", "PATH": ""})
    remote = here.at("https://gitlab.com/o/r")
    assert remote is not None
    assert (await remote.forge(Forge())).token == "mine"
    settings = Forge.model_validate({"hosts": {"git.example.com": {"kind": "gitlab"}}})
    remote = here.at("https://git.example.com/o/r")
    assert remote is not None
    with pytest.raises(ForgeError, match="no token for git"):
        await remote.forge(settings)
