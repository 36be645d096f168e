"""What servers of forges do that is not in every description of their APIs."""

import asyncio
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kapelle.domain.errors import ForgeError
from kapelle.workspaces.forge import PullRequest, PullRequestDraft
from kapelle.workspaces.forge.github import Gitea, GitHub
from kapelle.workspaces.forge.gitlab import GitLab
from tests.e2e.support.certificates import make_authority
from tests.e2e.support.forge_server import TOKEN, ForgeServer
from tests.e2e.support.instance import Instance, user_home
from tests.e2e.support.repositories import git
from tests.e2e.test_forge import configure, delivered, refused, until

_WRITE = '[[do]]\nwrite = "{name}"\ncontent = "x"'
_KINDS: dict[str, Any] = {"github": GitHub, "gitlab": GitLab, "gitea": Gitea}


@contextmanager
def serving(tmp_path: Path, repository: Path, **how: Any) -> Iterator[ForgeServer]:
    """A forge that holds main of the repository, and the login of a person for it."""
    server = ForgeServer(tmp_path / "forge", **how)
    server.log_in(user_home(tmp_path))
    git(repository, "remote", "add", "origin", "work:o/r.git")
    git(repository, "push", "--quiet", str(server.bare), "main")
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def forge(tmp_path: Path, repository: Path) -> Iterator[ForgeServer]:
    with serving(tmp_path, repository) as server:
        yield server


def push_work(repository: Path, forge: ForgeServer) -> None:
    """Have a branch `work` there, a commit ahead of main."""
    commit = git(repository, "commit-tree", "main^{tree}", "-p", "main", "-m", "work")
    git(repository, "push", "--quiet", str(forge.bare), f"{commit}:refs/heads/work")


def play_on(kapelle: Instance, id_: str, name: str, *options: str) -> dict[str, Any]:
    """Have a task write one more file, and wait for its delivery."""
    kapelle.cli(
        "continue", id_, f"```rehearsal\n{_WRITE.format(name=name)}\n```", *options, check=True
    )
    kapelle.cli("wait", id_)
    return dict(kapelle.task(id_))


@pytest.mark.parametrize("kind", _KINDS)
def test_a_pull_request_stays_the_draft_that_people_made_it(
    repository: Path, forge: ForgeServer, kind: str
) -> None:
    push_work(repository, forge)
    client = _KINDS[kind](forge.site(kind))

    def save(draft: bool | None) -> PullRequest:
        wanted = PullRequestDraft("work", "main", "Do it", "Done.", draft)
        saved: PullRequest = asyncio.run(client.save(wanted, None))
        return saved

    assert save(None).state == "open"
    if kind == "gitea":
        # It is on the last of many pages, and a second one would be refused (409).
        forge.most_rows = 10
        head = forge.pulls[0]["head"]
        others = [{**head, "ref": f"w{n}", "label": f"w{n}"} for n in range(25)]
        forge.pulls += [
            {**forge.pulls[0], "number": n, "head": one} for n, one in enumerate(others, 2)
        ]
    assert save(True).state == "draft"
    assert save(None).state == "draft"
    assert (save(False).state, forge.pulls[0]["title"]) == ("open", "Do it")
    titles = {"gitlab": ["[draft] Do it", "draft: Do it"], "gitea": ["[WIP] Do it", "wip: Do it"]}
    for title in titles.get(kind, []):
        forge.pulls[0]["title"] = title
        assert save(None).state == "draft"
        assert (save(True).state, forge.pulls[0]["title"]) == ("draft", title)
        assert (save(False).state, forge.pulls[0]["title"]) == ("open", "Do it")


def test_what_people_decide_stays_and_every_comment_is_told_once(
    kapelle: Instance, repository: Path, forge: ForgeServer
) -> None:
    configure(kapelle, forge, "gitea")
    id_ = kapelle.play(_WRITE.format(name="a.txt"), repository, deliver="pr")
    delivered(kapelle, id_)
    forge.pulls[0]["title"] = "WIP: Better title"
    # All of them are of the same second, and no more than 50 are told at once.
    for number in range(60):
        forge.comment(f"Remark {number}.")
    forge.review("Rework it.", ("a.txt", "Rename x."))
    first = play_on(kapelle, id_, "b.txt", "--comments")
    assert (forge.pulls[0]["title"], first["delivery"]["state"]) == ("WIP: Better title", "draft")
    second = play_on(kapelle, id_, "c.txt", "--comments")
    prompts = [
        "".join(file.read_text() for file in (kapelle.home.attempts / one["id"]).glob("prompt*"))
        for one in second["attempts"][1:]
    ]
    told = [f"Remark {number}." for number in range(60)] + ["Rework it.", "Rename x."]
    for text in told:
        assert sum(text in prompt for prompt in prompts) == 1, text
    assert "12 more comments" in prompts[0]
    assert "There is no new comment" in kapelle.cli("continue", id_, "--comments").stderr
    kapelle.cli("pr", id_, "--ready", check=True)
    assert forge.pulls[0]["title"] == "Better title"
    # A server with other prefixes does not take this title for that of a draft.
    forge.draft_prefixes = ["Draft:"]
    shown = kapelle.cli("pr", id_, "--draft", check=True)
    assert "WORK_IN_PROGRESS_PREFIXES" in shown.stderr
    assert kapelle.task(id_)["delivery"]["state"] == "open"


@pytest.mark.parametrize(
    ("kind", "status"), [("github", 301), ("github", 307), ("gitlab", 302), ("gitea", 302),
                         ("gitea", 301), ("gitea", 308)]
)  # fmt: skip
def test_a_renamed_repository_is_told_and_nothing_is_changed_by_its_old_name(
    repository: Path, forge: ForgeServer, kind: str, status: int
) -> None:
    push_work(repository, forge)
    client = _KINDS[kind](forge.site(kind))
    wanted = PullRequestDraft("work", "main", "Do it", "Done.", None)
    forge.rename("o/new", status)
    with pytest.raises(ForgeError, match=r"o/r at .* was renamed to o/new") as opening:
        asyncio.run(client.open(wanted))
    assert "git remote set-url origin" in str(opening.value.hint)
    forge.rename("o/r", status)
    forge.old_names.clear()
    made = asyncio.run(client.open(wanted))
    forge.rename("o/new", status)
    before = dict(forge.pulls[0])
    with pytest.raises(ForgeError, match="was renamed to o/new"):
        asyncio.run(client.update(made, PullRequestDraft("work", "main", "Do it", "Other.", None)))
    assert forge.pulls == [before]
    # What only reads goes on.
    assert asyncio.run(client.pull_request(1)).number == 1


def test_an_internal_server_below_a_path_with_an_authority_of_its_own(
    kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    authority, certificate = make_authority(tmp_path / "certificates")
    with serving(tmp_path, repository, below="/git", certificate=certificate) as forge:
        configure(kapelle, forge, "gitea")
        id_ = kapelle.play(_WRITE.format(name="a.txt"), repository)
        kapelle.wait(id_)
        hint = f"git config --global http.https://{forge.host}/.sslCAInfo"
        assert hint in refused(kapelle, id_)
        personal = ("config", "--file", str(kapelle.user_home / ".gitconfig"))
        git(repository, *personal, "http.sslVerify", "false")
        # It is pushed, but the token is sent to nobody whose certificate is not trusted.
        told = refused(kapelle, id_)
        assert (hint in told, "retries" in told) == (True, False)
        git(repository, *personal, "--unset", "http.sslVerify")
        git(repository, *personal, f"http.https://{forge.host}/.sslCAInfo", str(authority))
        kapelle.cli("pr", id_, check=True)
        assert "POST /api/v1/repos/o/r/pulls" in forge.calls


def test_a_token_of_the_daemon_is_not_given_to_the_credential_helpers_of_a_person(
    repository: Path, tmp_path: Path
) -> None:
    kapelle = Instance(tmp_path / "home", FORGE_TOKEN=TOKEN)
    with serving(tmp_path, repository, name="127.0.0.2") as forge:
        try:
            kapelle.home.root.mkdir()
            kapelle.home.config.write_text(forge.config("gitea"), encoding="utf-8")
            kapelle.start()
            id_ = kapelle.play(_WRITE.format(name="a.txt"), repository)
            kapelle.wait(id_)
            assert "insecure_http = true" in refused(kapelle, id_)
            # The helper has an old password, which git would try first and forget.
            forge.log_in(kapelle.user_home, "an-old-password")
            stored = (kapelle.user_home / ".git-credentials").read_text(encoding="utf-8")
            settings = {"insecure_http": "true", "token_variable": '"FORGE_TOKEN"'}
            kapelle.home.config.write_text(forge.config("gitea", **settings), encoding="utf-8")
            kapelle.cli("pr", id_, check=True)
            assert (kapelle.user_home / ".git-credentials").read_text(encoding="utf-8") == stored
            forge.token = "another-token"
            told = refused(kapelle, id_)
            assert ("kapelle stop" in told, "git ls-remote" in told) == (True, False)
            # Gitea takes a password with its name alone.
            forge.password = "an-old-password"
            settings = {"insecure_http": "true"}
            kapelle.home.config.write_text(forge.config("gitea", **settings), encoding="utf-8")
            kapelle.cli("pr", id_, check=True)
        finally:
            kapelle.destroy()


def test_commits_of_others_refused_pushes_and_merged_work(
    kapelle: Instance, repository: Path, forge: ForgeServer, tmp_path: Path
) -> None:
    configure(kapelle, forge, "gitea")
    id_ = kapelle.play(_WRITE.format(name="a.txt"), repository, deliver="pr")
    branch = delivered(kapelle, id_)["workspace"]["branch"]
    # A reviewer pushes to the branch. What is told to type mends that.
    identity = ("-c", "user.name=rev", "-c", "user.email=rev@example.com")
    theirs = forge.git(*identity, "commit-tree", f"{branch}^{{tree}}", "-p", branch, "-m", "theirs")
    forge.git("update-ref", f"refs/heads/{branch}", theirs)
    reason = play_on(kapelle, id_, "b.txt")["delivery"]["reason"]
    command = re.search(r"`git (-C .* pull --no-rebase origin .*?)`", reason)
    assert command is not None, reason
    pull = ["git", *identity, *shlex.split(command[1])]
    subprocess.run(
        pull, check=True, capture_output=True, env={**os.environ, "HOME": str(kapelle.user_home)}
    )
    kapelle.cli("pr", id_, check=True)
    assert forge.git("merge-base", theirs, branch) == theirs
    assert forge.git("cat-file", "-t", f"{branch}:b.txt") == "blob"
    # What the server says about a push that it refuses is told, without its colors.
    forge.reject_pushes("\033[31mGitea: User permission denied.\033[0m", "x" * 500)
    told = play_on(kapelle, id_, "c.txt")["delivery"]
    assert told["status"] == "failed"
    assert "Its message: Gitea: User permission denied. xxx" in told["reason"]
    # What to type is not cut off behind it.
    assert f"`kapelle pr {id_}` again" in kapelle.cli("status", id_).stdout.replace("\n", " ")
    forge.reject_pushes()
    kapelle.cli("pr", id_, check=True)
    # A second pull request of merged work would be empty.
    forge.merge()
    assert kapelle.cli("pr", id_, "--ready", check=True).stdout.strip().endswith("/pull/1")
    assert (len(forge.pulls), forge.tip(branch)) == (1, "")
    assert kapelle.task(id_)["delivery"]["state"] == "merged"


def test_what_a_reviewer_has_to_know_is_told(
    kapelle: Instance, repository: Path, forge: ForgeServer
) -> None:
    configure(kapelle, forge, "gitea")
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "only here")
    id_ = kapelle.play(_WRITE.format(name="a.txt"), repository, deliver="pr")
    delivered(kapelle, id_)
    assert "It also holds 1 commit of main" in forge.pulls[0]["body"]
    # A pull request that is opened again is looked at again.
    forge.pulls[0]["state"] = "closed"
    until(lambda: kapelle.task(id_)["delivery"]["state"] == "closed")
    forge.pulls[0]["state"] = "open"
    until(lambda: kapelle.task(id_)["delivery"]["state"] == "open")
    # What could not be refreshed is not shown as if it were fresh.
    forge.token = "another-token"
    until(lambda: kapelle.task(id_)["delivery"]["reason"])
    assert "may be outdated" in kapelle.cli("status", id_, check=True).stdout
    forge.token = TOKEN
    forge.git("update-ref", "-d", f"refs/heads/kapelle/{id_}")
    forge.git("update-ref", "refs/heads/kapelle", "main")
    blocked = kapelle.play(_WRITE.format(name="b.txt"), repository, deliver="pr")
    told = delivered(kapelle, blocked, "failed")["delivery"]["reason"]
    assert "git push origin --delete kapelle" in told
