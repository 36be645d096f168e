"""Several repositories: every list names the repository of work, and each one is a project."""

import json
from pathlib import Path

from tests.e2e.support.ensembles import play
from tests.e2e.support.instance import Instance, pauses
from tests.e2e.support.repositories import make_repository


def test_work_is_told_apart_by_its_repository_and_each_is_a_project(tmp_path: Path) -> None:
    told = tmp_path / "told.jsonl"
    command = json.dumps(["/bin/sh", "-c", f"cat >> {told}; echo >> {told}"])
    kapelle = Instance(tmp_path / "home", KAPELLE_NOTIFY__COMMAND=command)
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = make_repository(tmp_path / "old/app"), make_repository(tmp_path / "new/app")
    shop = make_repository(tmp_path / "shop")
    kapelle.start()
    try:
        ended = kapelle.wait(kapelle.submit(play({"result": "x"}), old, title="Ship"))
        kapelle.wait(kapelle.submit(play({"result": "x"}), new, title="Ship"))
        asking = kapelle.wait(kapelle.submit(play({"ask": "Which?"}), shop, title="Ship"))
        projects = {one["name"]: one["work"] for one in kapelle.get("/projects")}
        assert projects == {"old/app": 1, "new/app": 1, "shop": 1}

        entries = kapelle.get("/report?repository=shop")["entries"]
        assert [entry["repository"] for entry in entries] == [str(shop)]
        text = kapelle.cli("report", "--since", "1h").stdout
        assert all(f"), in {name}" in text for name in ("old/app", "new/app", "shop"))

        [question] = kapelle.get("/questions")["questions"]
        assert question["repository"] == str(shop)
        assert kapelle.get("/questions?repository=old/app")["questions"] == []
        assert "in shop, " in kapelle.cli("questions").stdout
        assert "shop" in kapelle.cli("top").stdout
        assert "  repository shop\n" in kapelle.cli("status", asking["id"]).stdout

        def listed(*options: str) -> list[str]:
            done = kapelle.cli("list", *options, "--json", cwd=shop, check=True)
            return [item["id"] for item in json.loads(done.stdout)]

        assert listed("--repo", "old/app") == listed("--project", "old/app") == [ended["id"]]
        assert listed("--repo", str(old)) == [ended["id"]]
        refused = kapelle.cli("list", "--repo", "app")
        assert (refused.returncode, "new/app, old/app" in refused.stderr) == (2, True)
        rows = kapelle.get("/usage?by=project")["rows"]
        assert {row["key"] for row in rows} == set(projects)

        # A project that was derived is stored when somebody changes it.
        kapelle.cli("project", "rename", "old/app", "legacy", check=True)
        again = kapelle.wait(kapelle.submit(play({"result": "x"}), old, title="Ship"))
        assert (again["project"], kapelle.get(f"/tasks/{ended['id']}")["project"]) == (
            "legacy", "legacy"
        )  # fmt: skip
        for _ in pauses(10):
            if told.exists() and told.read_text().strip():
                break
        assert json.loads(told.read_text().splitlines()[0])["repository"] == str(shop)
    finally:
        kapelle.destroy()
