"""A file of features in parallel tracks, with everything that can go wrong among them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.support.ensembles import on_branch, perform, rest, start
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git, make_repository
from tests.e2e.support.staging import until

_TEST = (
    'for f in features/*; do [ ! -e "$f" ] || [ -s "$f" ] || exit 1; done; ! grep "<<<" menu.txt'
)
_AGENT = Path(__file__).parent / "support" / "track_agent.py"


def _sample(kapelle: Instance, path: Path, *categories: str, count: int = 6) -> Path:
    features = [
        {
            "id": number,
            "category": categories[(number - 1) % len(categories)],
            "name": f"Feature {number}",
            "steps": [f"features/{number}.txt says ok"],
            "status": "open",
            "owner": "kept as it is",
        }
        for number in range(1, count + 1)
    ]
    listed = json.dumps({"features": features}, indent="\t") + "\n"
    files = {"features.json": listed, "menu.txt": "item 0\n"}
    files |= {"test.sh": _TEST + "\n", "ORCHESTRATOR.md": "Be brief.\n"}
    (state := kapelle.home.root / "state").mkdir()
    command = json.dumps([sys.executable, str(_AGENT)])
    kapelle.home.config.write_text(
        f"[agents.maker]\ncommand = {command}\nenv = {{ TRACK_STATE = {json.dumps(str(state))} }}\n"
        '[tasks]\nprove = "never"\n[failures]\nbreaker = 100\n',
        encoding="utf-8",
    )
    return make_repository(path, files)


def _features(repository: Path, commit: str) -> dict[int, str]:
    text = git(repository, "show", f"{commit}:features.json")
    found = json.loads(text)
    assert text == json.dumps(found, indent="\t")
    assert all(one["owner"] == "kept as it is" for one in found["features"])
    return {one["id"]: one["status"] for one in found["features"]}


def _require_true(repository: Path, commit: str, scratch: Path) -> None:
    """The tests pass at a commit, and what is called passed there has passed."""
    git(repository, "worktree", "add", "--force", "--detach", str(scratch), commit)
    subprocess.run(["sh", "test.sh"], cwd=scratch, check=True)
    for number, status in _features(repository, commit).items():
        made = scratch / "features" / f"{number}.txt"
        assert status != "passed" or made.read_text(encoding="utf-8") == "ok\n", (commit, number)
    git(repository, "worktree", "remove", "--force", str(scratch))


def test_features_over_three_tracks_and_a_crash(
    kapelle: Instance, tmp_path: Path, exhaustive: bool
) -> None:
    """Two conflict, one passes the third time, one lies, one fails its checks first, one meets a
    failing environment; the daemon is killed amid it."""
    count = 12 if exhaustive else 6
    repository = _sample(kapelle, tmp_path / "sample", "api", "web", "docs", count=count)
    main = git(repository, "rev-parse", "main")
    run_id = start(
        kapelle, "tracks", repository, agent="maker", checks=["sh test.sh"],
        tracks={"first": "api", "second": "web", "others": ""},
    )  # fmt: skip

    def passed() -> bool:
        told: list[Any] = kapelle.get(f"/runs/{run_id}")["progress"].get("features", [])
        return len([one for one in told if one["status"] == "passed"]) >= 2

    until(passed, "two passed features", 120)
    kapelle.kill()
    kapelle.start()
    run = rest(kapelle, run_id, 240)
    assert run["status"] == "failed"
    assert run["reason"].startswith(f"{count - 1} of {count} features passed; Feature 5: STEP 1")
    made = {one["id"]: one for one in run["result"]["features"]}
    assert {number: made[number]["track"] for number in (1, 2, 3)} == {
        1: "first", 2: "second", 3: "others",
    }  # fmt: skip
    assert [made[number]["verifications"] for number in (4, 5, 6)] == [3, 3, 2]
    assert len(made[3]["tasks"]) == 2  # the first met the environment
    assert on_branch(repository, run, "menu.txt") in {"item 1\nitem 2\n", "item 2\nitem 1\n"}
    branch = run["workspace"]["branch"]
    assert _features(repository, branch) == {n: "failed" if n == 5 else "passed" for n in made}
    for commit in git(repository, "rev-list", "--first-parent", f"main..{branch}").split():
        _require_true(repository, commit, tmp_path / "scratch")
    # A verifying agent is told what the implementers changed, and not what Kapelle did.
    told = (kapelle.home.root / "state" / "told").read_text("utf-8")
    assert "features/1.txt" in told
    assert "features.json" not in told
    # What failed is on its branch; what verifying agents did to branches is nowhere.
    assert git(repository, "show", "feature/5-feature-5:features/5.txt").startswith("trust me")
    assert git(repository, "rev-parse", "main") == main
    told = on_branch(repository, run, ".orchestrator/progress.txt") or ""
    assert len(told.splitlines()) == count
    assert "Feature 5: failed (STEP 1" in told


def test_a_track_pauses_after_two_failures_of_its_environment(
    kapelle: Instance, tmp_path: Path
) -> None:
    repository = _sample(kapelle, tmp_path / "sample", "api", count=2)
    with kapelle.home.config.open("a", encoding="utf-8") as config:
        config.write('[agents.cut]\ncommand = ["sh", "-c", "echo ECONNREFUSED >&2; exit 1"]\n')
    run = perform(kapelle, "tracks", repository, agent="maker", worker="cut")
    assert "track all paused, its environment failed twice" in run["reason"]
    assert _features(repository, run["workspace"]["branch"]) == {1: "open", 2: "open"}
    git(repository, "rm", "-q", "features.json")
    git(repository, "commit", "-qm", "none")
    run = perform(kapelle, "tracks", repository, agent="maker")
    assert "there is no features.json on the branch" in run["reason"]
