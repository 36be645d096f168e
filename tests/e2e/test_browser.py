"""An agent with a browser: a real Chromium, driven through the real package of its MCP server."""

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.support.ensembles import on_branch, rest, start, tasks_of
from tests.e2e.support.instance import ApiError, Instance
from tests.e2e.support.repositories import make_repository

_PACKAGE = "chrome-devtools-mcp@1.11.0"
_SERVE = f"{sys.executable} -m http.server $PORT --bind 127.0.0.1"


@pytest.fixture(scope="module")
def package() -> str:
    if not shutil.which("npx") or not shutil.which("chromium"):
        pytest.skip("there is no npx, or no Chromium")
    got = subprocess.run(
        ["npx", "-y", _PACKAGE, "--version"], capture_output=True, timeout=240, check=False
    )
    if got.returncode:
        pytest.skip(f"npm does not give {_PACKAGE}")
    return _PACKAGE


def _sample(
    kapelle: Instance, path: Path, package: str, serve: str = _SERVE, feature: str = "[]"
) -> Path:
    stub = kapelle.home.root / "claude"
    agent = Path(__file__).parent / "support" / "browser_agent.py"
    stub.write_text(f'#!/bin/sh\nexec {sys.executable} {agent} "$@"\n', encoding="utf-8")
    stub.chmod(0o755)
    args = ["--headless", "--isolated", "--no-usage-statistics", "--chromeArg=--no-sandbox"]
    args.append(f"--executablePath={shutil.which('chromium')}")
    kapelle.home.config.write_text(
        f"[browser]\nenabled = true\npackage = {json.dumps(package)}\nargs = {json.dumps(args)}\n"
        f"serve = {json.dumps(serve)}\n[agents.claude]\nprogram = {json.dumps(str(stub))}\n",
        encoding="utf-8",
    )
    page = "<!doctype html><h1>Hello there</h1>\n"
    return make_repository(path, {"index.html": page, "features.json": feature})


def test_what_a_browser_shows_is_kept_as_evidence(
    kapelle: Instance, tmp_path: Path, package: str
) -> None:
    repository = _sample(kapelle, tmp_path / "web", package)
    task_id = kapelle.submit("Look", repository, agent="claude", browser=True, read_only=True)
    task = kapelle.wait(task_id, 240)
    assert task["status"] == "completed", task["reason"]
    assert "Hello there" in task["result"]
    [shot] = kapelle.get(f"/tasks/{task_id}/files")
    assert (shot["attempt"], shot["name"]) == (1, "1-the-page.png")
    answer, data = kapelle.request("GET", f"/tasks/{task_id}/files/{shot['name']}")
    assert (answer.headers["content-type"], len(data)) == ("image/png", shot["bytes"])
    with pytest.raises(ApiError):
        kapelle.get(f"/tasks/{task_id}/files/other.png")
    # The application has ended with its agent, and what else lay there is gone.
    [attempt] = task["attempts"]
    assert len(list((kapelle.home.files / attempt["id"]).iterdir())) == 1
    for process in kapelle.processes():
        with suppress(psutil.Error):
            assert "http.server" not in process.cmdline()


def test_a_feature_whose_page_is_wrong_is_mended_by_what_a_browser_shows(
    kapelle: Instance, tmp_path: Path, package: str
) -> None:
    feature = {"id": 1, "name": "Greeting", "steps": ["the page says Hello there"]}
    repository = _sample(kapelle, tmp_path / "web", package, feature=json.dumps([feature]))
    run = rest(kapelle, start(kapelle, "tracks", repository, agent="claude"), 240)
    assert run["status"] == "completed", run["reason"]
    [made] = run["result"]["features"]
    assert (made["status"], made["verifications"]) == ("passed", 2)
    assert "Hello there" in (on_branch(repository, run, "index.html") or "")
    looked = [one for one in tasks_of(kapelle, run["id"]) if one["title"].startswith("Verify")]
    said = [json.loads(one["result"])["steps"][0] for one in looked]
    assert [one["passed"] for one in said] == [False, True]
    assert "Goodbye" in said[0]["evidence"]
    shots = []
    for task in looked:
        [shot] = kapelle.get(f"/tasks/{task['id']}/files")
        shots.append(kapelle.request("GET", f"/tasks/{task['id']}/files/{shot['name']}")[1])
    assert shots[0] != shots[1]
    assert all(shot.startswith(b"\x89PNG") for shot in shots)


def test_an_application_that_does_not_start_is_told(kapelle: Instance, tmp_path: Path) -> None:
    repository = _sample(kapelle, tmp_path / "web", "none", "echo no database >&2; exit 3")
    task_id = kapelle.submit("Look", repository, agent="claude", browser=True)
    task = kapelle.wait(task_id)
    assert task["status"] == "failed"
    assert "The application ended before it answered: no database" in task["reason"]
