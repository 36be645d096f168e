"""Teams from the command line: followed to their end, and asked about on the way."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.staging import shared_instance


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with shared_instance(tmp_path_factory.mktemp("teams")) as instance:
        yield instance


def test_a_team_is_followed_to_its_end(kapelle: Instance, place: Path) -> None:
    done = kapelle.cli("team", "Write it", "--verify", "test -s b.txt", "--progress", cwd=place)
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()
    told, end = map(json.loads, done.stderr.splitlines())
    assert (told["run_id"], told["iteration"], told["merged"]) == (run_id, 1, 2)
    assert (told["planned"], told["checks"]) == (2, {"of": 1, "passed": 1})
    assert (end["run_id"], end["status"]) == (run_id, "completed")
    text = kapelle.cli("status", run_id).stdout
    assert "1 of 1 checks passed" in text
    assert "review: approved" in text
    assert kapelle.cli("merge", run_id).returncode == 0
    assert (place / "b.txt").is_file()


def test_progress_is_told_beside_json_and_claims_nothing_that_was_not_checked(
    kapelle: Instance, place: Path
) -> None:
    done = kapelle.cli("team", "Write it", "--progress", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    told, end = map(json.loads, done.stderr.splitlines())
    assert (told["iteration"], told["verified"], told["checks"]["of"]) == (1, False, 0)
    assert json.loads(done.stdout.splitlines()[-1])["status"] == end["status"] == "completed"


def test_criteria_and_a_limit_for_its_commands_are_given_and_what_was_said_is_shown(
    kapelle: Instance, place: Path, tmp_path: Path
) -> None:
    file = tmp_path / "criteria.md"
    file.write_text("- it is there\n\n* it is green\nit is *fast*\n", encoding="utf-8")
    options = ["--criteria", "first", "--criteria-file", str(file), "--verify-timeout", "30s"]
    done = kapelle.cli("team", "Write it", *options, "--verify", "true", "-f", cwd=place)
    assert done.returncode == 0, done.stderr
    run = kapelle.get(f"/runs/{done.stdout.split()[0]}")
    wanted = ["first", "it is there", "it is green", "it is *fast*"]
    assert run["spec"]["success_criteria"] == wanted
    assert run["spec"]["verify"] == [{"command": "true", "timeout_s": 30}]
    assert run["result"]["stopped_by"] == "goal"
    assert "work: Part A, Part B" in done.stdout
    assert f"\n{run['result']['final_output']}\n" in done.stderr
    refused = kapelle.cli("team", "list", cwd=place)
    assert refused.returncode == 2
    assert "kapelle runs list --pattern team" in refused.stderr


def test_a_team_as_json_is_one_object_per_line(kapelle: Instance, place: Path) -> None:
    done = kapelle.cli("team", "Write it", "--criteria", "it is there", "-f", "--json", cwd=place)
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["event"], end["status"]) == ("end", "completed")
    assert end["run"]["result"]["goal_complete"] is True
    assert done.stderr == ""
    detached = kapelle.cli("team", "Write it", "--criteria", "x", "--json", cwd=place)
    run_id = json.loads(detached.stdout)["id"]
    assert kapelle.cli("wait", run_id).returncode == 0


def test_a_team_asks_and_goes_on_with_the_answers(kapelle: Instance, place: Path) -> None:
    asked = kapelle.cli("team", "Write it", "-f", "--ask", cwd=place, input="")
    assert asked.returncode == 3
    run_id = asked.stdout.split()[0]
    first, second = re.findall(r'kapelle answer (\S+) "…"', asked.stderr)
    assert first.startswith(f"{run_id}:")
    assert "? Which?" in asked.stderr
    text = kapelle.cli("status", run_id).stdout
    assert f"kapelle answer {second} " in text
    again = kapelle.cli("team", "-f", "--resume", first, "--answer", "this")
    assert (again.returncode, again.stdout.split()[0]) == (3, run_id)
    assert re.findall(r'kapelle answer (\S+) "…"', again.stderr) == [second]
    done = kapelle.cli("team", "--resume", run_id, "--answer", "so", "-f", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "completed"
    late = kapelle.cli("team", "--resume", second, "--answer", "too late")
    assert late.returncode == 2
    assert "completed" in late.stderr


def test_answers_come_through_rest_as_well(kapelle: Instance, place: Path) -> None:
    asked = kapelle.cli("team", "Write it", "-f", "--ask", "--json", cwd=place, input="")
    assert asked.returncode == 3
    run = json.loads(asked.stdout.splitlines()[-1])["run"]
    assert [question["text"] for question in run["questions"]] == ["Which?", "How?"]
    for question in run["questions"]:
        body = {"answer": "so", "token": question["token"]}
        kapelle.post(f"/runs/{run['id']}/answer", body)
    assert kapelle.cli("wait", run["id"]).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--answer", "x"], "needs the token of a question"),
        (["--resume", "run_x:1"], "needs an answer"),
        (["goal", "--resume", "run_x:1", "--answer", "x"], "The goal cannot be changed"),
        (["--resume", "a:1", "--answer", "x", "--verify", "true"], "--verify cannot be changed"),
        (["--resume", "run_zzzz:1", "--answer", "x"], "is not the id of a run"),
        ([], "There is no goal"),
    ],
)
def test_resuming_takes_a_token_and_an_answer(
    kapelle: Instance, arguments: list[str], words: str
) -> None:
    done = kapelle.cli("team", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
