"""What is sent, and to whom."""

import os
from pathlib import Path

import pytest

from kapelle.client.address import Address
from kapelle.client.requests import Ask, base_url, path_of
from kapelle.client.wishes import pipeline_steps, schedule_wish, wish
from kapelle.domain.errors import InvalidInput, Unauthorized
from kapelle.domain.schedule import ScheduleSpec
from kapelle.domain.specs import CheckSpec, Priority, TaskSpec
from kapelle.patterns.pipeline import PipelineSpec, StepSpec

URL = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAPELLE_URL", "KAPELLE_TOKEN", "KAPELLE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_a_home_that_is_named_wins_over_the_url_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAPELLE_URL", URL)
    monkeypatch.setenv("KAPELLE_HOME", str(tmp_path / "other"))
    assert Address.given().url == URL
    assert Address.given(home=tmp_path).url is None
    assert Address.given(home=tmp_path).home.root == tmp_path
    assert Address.given(url="http://localhost:2").url == "http://localhost:2"


def test_a_token_that_is_given_wins_over_the_environment_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAPELLE_TOKEN", "theirs")
    address = Address.given(URL, "mine", tmp_path)
    assert address.headers() == {"Authorization": "Bearer mine"}
    assert "mine" not in repr(address)
    assert Address.given(URL).headers() == {"Authorization": "Bearer theirs"}
    monkeypatch.delenv("KAPELLE_TOKEN")
    (tmp_path / "token").write_text("stored\n", encoding="ascii")
    assert Address.given(URL, home=tmp_path).headers() == {"Authorization": "Bearer stored"}
    with pytest.raises(Unauthorized, match="url is set"):
        Address.given(URL, home=tmp_path / "empty").headers()


@pytest.mark.parametrize("url", ["localhost:8470", "ftp://x", "http://", "http://x:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="url is not an address"):
        base_url(Address.given(url, "t"))


def test_routes_begin_behind_the_path_of_a_url() -> None:
    assert base_url(Address.given("http://[::1]:8/k/", "t")) == "http://[::1]:8/k/api/v1"
    assert base_url(Address.given("https://u:p@host", "t")) == "https://host/api/v1"


def test_an_id_cannot_lead_elsewhere() -> None:
    assert path_of("tasks", " a/../b?c#d ", "wait") == "/tasks/a%2F..%2Fb%3Fc%23d/wait"
    with pytest.raises(InvalidInput):
        path_of("tasks", " ")


def test_what_has_no_value_is_not_asked_for() -> None:
    ask = Ask("GET", "/tasks", {"status": ["a", "b"], "tag": None, "archived": False})
    assert ask.arguments()["params"] == {"status": ["a", "b"], "archived": "false"}


def test_a_relative_directory_is_one_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert wish("prompt", "x", {})["directory"] == str(tmp_path)
    assert wish("prompt", "x", {"directory": None})["directory"] == str(tmp_path)
    assert wish("prompt", "x", {"directory": Path("a")})["directory"] == str(tmp_path / "a")
    assert wish("prompt", "x", {"directory": "/b/../c"})["directory"] == "/c"


def test_without_a_current_directory_one_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    os.rmdir(gone)
    with pytest.raises(InvalidInput, match="directory is gone"):
        wish("prompt", "x", {})
    assert wish("prompt", "x", {"directory": "/tmp"})["directory"] == "/tmp"


def test_values_become_json() -> None:
    options = {"priority": Priority.P0, "checks": ["true", CheckSpec(command="make", timeout_s=5)]}
    found = wish("prompt", "x", {**options, "directory": "/", "idempotency_key": "k"})
    assert found["priority"] == "P0"
    assert found["checks"][0] == "true"
    assert (found["checks"][1]["command"], found["checks"][1]["timeout_s"]) == ("make", 5)
    assert set(found) == {"prompt", "priority", "checks", "directory"}
    with pytest.raises(InvalidInput, match="cannot be sent"):
        wish("prompt", "x", {"env": {"A": object()}})


def test_options_replace_fields_of_a_whole_spec() -> None:
    spec = TaskSpec(prompt="x", directory="/tmp", checks=["true"], agent="a")
    found = wish("prompt", spec, {"agent": "b"})
    assert found == {
        "prompt": "x",
        "directory": "/tmp",
        "checks": [{"command": "true"}],
        "agent": "b",
    }
    assert TaskSpec(**found) == spec.model_copy(update={"agent": "b"})


def test_a_pipeline_is_its_steps_or_a_whole_one() -> None:
    whole = PipelineSpec(directory="/tmp", steps=["a", "b"])
    assert pipeline_steps([whole]) is whole
    assert pipeline_steps(["a", StepSpec(prompt="b")]) == ["a", StepSpec(prompt="b")]
    with pytest.raises(InvalidInput):
        pipeline_steps([whole, "c"])


def test_a_schedule_says_what_it_starts() -> None:
    found = schedule_wish("task", {"prompt": "x", "directory": "/tmp"}, {"cron": "0 3 * * *"})
    assert found == {
        "kind": "task",
        "cron": "0 3 * * *",
        "spec": {"prompt": "x", "directory": "/tmp"},
    }
    whole = ScheduleSpec(spec={"prompt": "x", "directory": "/tmp"}, every_s=60)
    assert schedule_wish(whole, None, {"title": "t"}) == {
        "spec": {"prompt": "x", "directory": "/tmp"},
        "every_s": 60,
        "title": "t",
    }
    with pytest.raises(InvalidInput, match="is missing"):
        schedule_wish("task", None, {"every_s": 60})
