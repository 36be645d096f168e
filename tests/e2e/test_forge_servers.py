"""What servers of forges do that is not in every description of their APIs."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kapelle.workspaces.forge import PullRequest, Wanted
from kapelle.workspaces.forge.github import Gitea, GitHub
from kapelle.workspaces.forge.gitlab import GitLab
from tests.e2e.forge_server import TOKEN, ForgeServer
from tests.e2e.instance import Instance
from tests.e2e.repositories import git
from tests.e2e.test_forge import configure, delivered

_WRITE = '[[do]]\nwrite = "{name}"\ncontent = "x"'
_KINDS: dict[str, Any] = {"github": GitHub, "gitlab": GitLab, "gitea": Gitea}


@pytest.fixture
def forge(tmp_path: Path, repository: Path) -> Iterator[ForgeServer]:
    """A forge that holds main of the repository, and the login of a person for it."""
    server = ForgeServer(tmp_path / "forge")
    server.log_in(tmp_path)
    git(repository, "remote", "add", "origin", "work:o/r.git")
    git(repository, "push", "--quiet", str(server.bare), "main")
    try:
        yield server
    finally:
        server.close()


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
    commit = git(repository, "commit-tree", "main^{tree}", "-p", "main", "-m", "work")
    git(repository, "push", "--quiet", str(forge.bare), f"{commit}:refs/heads/work")
    client = _KINDS[kind](forge.host, "o/r", forge.api(kind), TOKEN)

    def save(draft: bool | None) -> PullRequest:
        wanted = Wanted("work", "main", "Do it", "Done.", draft)
        saved: PullRequest = asyncio.run(client.save(wanted, None))
        return saved

    assert save(None).state == "open"
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
