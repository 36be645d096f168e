"""`kapelle report`: what became of a night, as people and programs read it."""

from pathlib import Path

from tests.e2e.support.ensembles import perform
from tests.e2e.support.instance import Instance
from tests.e2e.support.night import night, require_true
from tests.e2e.support.repositories import git


def test_the_report_of_an_unattended_night_is_true_and_says_what_to_type(
    kapelle: Instance, repository: Path
) -> None:
    report, since = night(kapelle, repository)
    text = report["markdown"]
    assert (
        "5 submitted: 3 done (2 verified, 1 not verified), 1 failed, 3 need you, 2 merged." in text
    )
    asked, done = (text.split(f"## {heading}\n")[1] for heading in ("Needs you", "Done"))
    assert "It asks: Which database?" in asked.split("##")[0]
    assert "kapelle answer task_" in asked.split("##")[0]
    assert "the model has no idea" in asked.split("##")[0]
    assert "kapelle retry task_" in asked.split("##")[0]
    assert report["needs_total"] == 3
    assert "workflow, by schedule, 8 attempts, merged into main, $0.88" in done
    assert "Verified by `grep good good.txt` on " in done
    assert "merged into main" in done
    assert "Not verified." in asked.split("##")[0]
    printed = kapelle.cli("report", "--since", since)
    assert printed.stdout.splitlines()[2:] == text.splitlines()[2:]
    assert kapelle.cli("report", "--since", "1h", "--project", "none").stdout.endswith(
        "No work was submitted or active.\n"
    )
    assert "neither a duration nor a date" in kapelle.cli("report", "--since", "soon").stderr
    ends = ("report", "--since", "1h", "--until", "2h")
    assert "until is before since" in kapelle.cli(*ends).stderr
    # What began before is not told again, except what is open.
    later = require_true(kapelle, "2999-01-01T00:00:00+00:00")
    assert [entry["group"] for entry in later["entries"]] == ["needs"]


def test_what_a_person_called_off_has_not_failed_and_a_merge_is_told_where_it_went(
    kapelle: Instance, repository: Path
) -> None:
    git(repository, "branch", "release")
    part = '[[do]]\nwrite = "new.txt"\ncontent = "x"'
    done = kapelle.wait(kapelle.play(part, repository, title="Done"))
    kapelle.post(f"/tasks/{done['id']}/merge", {"into": "release"})
    asking = kapelle.wait(kapelle.play('[[do]]\nask = "Which?"', repository))
    kapelle.post(f"/tasks/{asking['id']}/cancel")
    text = kapelle.get("/report")["markdown"]
    assert "2 submitted: 1 done (0 verified, 1 not verified), 1 cancelled, 1 merged." in text
    assert "merged into release" in text


def test_neither_unknown_tokens_nor_a_score_are_told_as_what_they_are_not(
    kapelle: Instance, repository: Path
) -> None:
    kapelle.cli("config", "set", "agents.silent.command", '["sh", "-c", "echo 1 > size"]')
    run = perform(
        kapelle, "loop", repository, agent="silent", prompt="Make it small",
        eval="cat size 2>/dev/null || echo 9", direction="minimize", max_iterations=1,
    )  # fmt: skip
    assert run["status"] == "completed", run["reason"]
    report = kapelle.get(f"/report?repository={repository}")
    [entry] = report["entries"]
    assert (entry["evidence"], entry["scores"]) == ([], ["cat size 2>/dev/null || echo 9"])
    assert "no check was made." in report["markdown"]
    assert "1 attempt, tokens unknown." in report["markdown"]
    kapelle.wait(
        kapelle.play(
            '[[do]]\nusage = {input = 1200, output = 30}\n[[do]]\nresult = "x"', repository
        )
    )
    text = kapelle.get(f"/report?repository={repository}")["markdown"]
    assert "≥ 1,200 tokens in, ≥ 30 out." in text
