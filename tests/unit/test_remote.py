"""Which addresses of remotes are a forge's: nothing else is ever pushed to."""

from pathlib import Path
from typing import Any

import pytest

from kapelle.domain.errors import ForgeError, KapelleError, Unavailable
from kapelle.settings.models import ForgeSettings
from kapelle.workspaces.forge import Login, Site
from kapelle.workspaces.forge.github import Gitea, GitHub
from kapelle.workspaces.forge.gitlab import GitLab
from kapelle.workspaces.forge.remote import Remote
from kapelle.workspaces.git import GitOutput

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
        (f"git@x: Permission denied (publickey).\n{_END}", ForgeError, "denied access"),
        (f"ERROR: Permission to o/r.git denied to me.\n{_END}", ForgeError, "denied access"),
        (f"ERROR: Repository not found.\n{_END}", ForgeError, "does not exist"),
        ("error: RPC failed; HTTP 413\nfatal: the remote end hung up", ForgeError, "413"),
        ("fatal: unable to access 'https://u:p@ss@x/': odd", ForgeError, "'https://x/': odd"),
    ],
)
async def test_all_that_git_says_tells_what_passes(
    stderr: str, kind: type[KapelleError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: Any, **__: Any) -> GitOutput:
        return GitOutput(128, b"", False, stderr)

    monkeypatch.setattr(Remote, "run", run)
    remote = Remote(_GIT, Path("/")).at("git@x:o/r.git")
    assert remote is not None
    with pytest.raises(kind) as raised:
        await remote.branches("main", login=Login(""))
    assert said in raised.value.message
    assert "correct access" not in raised.value.message


async def test_a_variable_for_one_host_is_not_sent_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run(*_: Any, **__: Any) -> GitOutput:
        return GitOutput(128, b"", False)

    monkeypatch.setattr(Remote, "run", run)
    here = Remote(_GIT, Path("/"), environ={"GITLAB_TOKEN": "mine", "PATH": ""})
    remote = here.at("https://gitlab.com/o/r")
    assert remote is not None
    assert (await remote.forge(ForgeSettings())).login.password == "mine"
    settings = ForgeSettings.model_validate({"hosts": {"git.example.com": {"kind": "gitlab"}}})
    remote = here.at("https://git.example.com/o/r")
    assert remote is not None
    with pytest.raises(ForgeError, match="no token for git"):
        await remote.forge(settings)


def answering(kind: type[Any], answers: dict[str, Any]) -> Any:
    """A forge that answers the first of these whose key is in the path."""
    forge = kind(Site("x", "o/r", "https://x", Login("t")))

    async def call(_: str, path: str, body: Any = None, *, url: str | None = None) -> Any:
        empty: Any = {"check_runs": [], "statuses": []} if "commits/" in path else []
        matching = (answer for key, answer in answers.items() if key in path)
        answer = next(matching, empty)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def answer(_: str, url: str, body: Any = None) -> Any:
        raise Unavailable

    forge.call, forge._answer = call, answer
    return forge


def _runs(*ends: str | None) -> list[dict[str, Any]]:
    return [{"id": 1, "name": "a", "conclusion": end, "status": "completed"} for end in ends]


@pytest.mark.parametrize(
    ("pages", "statuses", "state"),
    [
        ([_runs("success", "skipped")], [], "passed"),
        ([_runs("skipped", "neutral")], [], "none"),
        ([_runs("success"), _runs("failure")], [], "failed"),
        ([_runs("success"), _runs(None)], [], "pending"),
        ([[]], ["success"], "passed"),
        ([_runs("success")], ["pending"], "pending"),
        ([[]], [], "none"),
    ],
)
async def test_only_what_succeeded_has_passed(
    pages: list[Any], statuses: list[str], state: str
) -> None:
    total = sum(map(len, pages))
    answers: dict[str, Any] = {
        f"check-runs?per_page=100&limit=100&page={number}": {
            "total_count": total,
            "check_runs": page,
        }
        for number, page in enumerate(pages, 1)
    }
    said = [{"context": "c", "state": one, "target_url": None} for one in statuses]
    answers["status?per_page=100&limit=100&page=1"] = {
        "state": statuses[0] if statuses else "pending",
        "statuses": said,
    }
    assert (await answering(GitHub, answers).verdict("1")).state == state


@pytest.mark.parametrize(
    ("told", "state"),
    [("success", "passed"), ("skipped", "none"), ("manual", "pending"), ("failed", "failed")],
)
async def test_a_pipeline_that_failed_has_failed_with_and_without_its_logs(
    told: str, state: str
) -> None:
    pipeline = {"id": 7, "status": told, "ref": "work"}
    answers = {"jobs": Unavailable(), "pipelines": [pipeline]}
    assert (await answering(GitLab, answers).verdict("1")).state == state
    # One that was started again replaces it; that of the merge request does not.
    again = {"id": 8, "status": "success", "ref": "work"}
    other = {**again, "ref": "refs/merge-requests/1/head"}
    for newer, seen in ((again, "passed"), (other, "passed" if state == "none" else state)):
        answers = {"jobs": Unavailable(), "pipelines": [newer, pipeline]}
        assert (await answering(GitLab, answers).verdict("1")).state == seen


def _pull(kind: type[Any], branch: str, source: str = "o/r", number: int = 1) -> dict[str, Any]:
    if kind is GitLab:
        return {
            "iid": number, "web_url": "u", "state": "opened", "title": "t",
            "source_branch": branch, "source_project_id": source, "target_project_id": "o/r",
        }  # fmt: skip
    return {
        "number": number, "html_url": "u", "state": "open", "title": "t",
        "head": {"ref": branch, "repo": {"full_name": source}},
        "base": {"repo": {"full_name": "o/r"}},
    }  # fmt: skip


@pytest.mark.parametrize("kind", [GitHub, GitLab, Gitea])
async def test_only_a_pull_request_of_our_own_branch_is_ours(kind: type[Any]) -> None:
    theirs, ours = _pull(kind, "b", "fork/r"), _pull(kind, "b", number=2)
    for one in (theirs, _pull(kind, "other"), ForgeError("404")):
        found = await answering(kind, {"s/1": one, "?": [theirs, ours]}).current("b", 1)
        assert found.number == 2
    assert await answering(kind, {"?": [theirs]}).find("b") is None
    assert (await answering(kind, {"s/2": ours}).current("b", 2)).number == 2


async def test_an_answer_of_another_form_is_told_as_that() -> None:
    answers: list[Any] = [{}, None, [1], "text"]
    for answer in answers:
        for kind in (GitHub, GitLab, Gitea):
            with pytest.raises(ForgeError, match="did not answer as a"):
                await answering(kind, {"s/1": answer}).pull_request(1)
