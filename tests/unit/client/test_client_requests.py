"""What is sent, and to whom."""

import os
from email.message import Message
from pathlib import Path

import pytest

from kapelle.client.address import Address
from kapelle.client.http import DaemonConnection, channel
from kapelle.client.protocol import target
from kapelle.client.values import schedule_body, spec_body
from kapelle.client.work import Runs, Tasks
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
    assert Address.find().url == URL
    assert Address.find(home=tmp_path).url is None
    assert Address.find(home=tmp_path).home.root == tmp_path
    assert Address.find(url="http://localhost:2").url == "http://localhost:2"


def test_a_token_that_is_given_wins_over_the_environment_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAPELLE_TOKEN", "theirs")
    address = Address.find(URL, "mine", tmp_path)
    assert address.headers() == {"Authorization": "Bearer mine"}
    assert "mine" not in repr(address)
    assert Address.find(URL).headers() == {"Authorization": "Bearer theirs"}
    monkeypatch.delenv("KAPELLE_TOKEN")
    (tmp_path / "token").write_text("stored\n", encoding="ascii")
    assert Address.find(URL, home=tmp_path).headers() == {"Authorization": "Bearer stored"}
    with pytest.raises(Unauthorized, match="url is set"):
        Address.find(URL, home=tmp_path / "empty").headers()


@pytest.mark.parametrize("url", ["localhost:8470", "ftp://x", "http://", "http://x:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="url is not an address"):
        channel(Address.find(url, "t"), 1)


def test_routes_begin_behind_the_path_of_a_url() -> None:
    address = Address.find("http://[::1]:8/k/", "t")
    connection = channel(address, 1)
    assert (connection.host, connection.port, address.base_path) == ("::1", 8, "/k")
    assert channel(Address.find("https://u:p@host", "t"), 1).host == "host"


def test_an_id_cannot_lead_elsewhere(recorded: "Recorded") -> None:
    tasks = Tasks(recorded)
    tasks.patch(" a/../b?c#d ")
    assert recorded.asked == ["/tasks/a%2F..%2Fb%3Fc%23d/patch"]
    with pytest.raises(InvalidInput, match="The id for /tasks is empty"):
        tasks.patch(" ")


def test_what_has_no_value_is_not_asked_for() -> None:
    query = {"status": ["a", "b"], "tag": None, "archived": False}
    assert target("/tasks", query) == "/api/v1/tasks?status=a&status=b&archived=false"


class Recorded(DaemonConnection):
    """Notes what is asked for, and answers nothing."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def get_bytes(
        self, path: str, query: object = None, timeout: float = 0
    ) -> tuple[bytes, Message]:
        self.asked.append(path)
        return b"", Message()

    def create(self, path: str, body: object, key: str | None = None) -> object:
        self.asked.append(body)
        raise NotImplementedError


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def test_a_relative_directory_is_one_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert spec_body("prompt", "x", {})["directory"] == str(tmp_path)
    assert spec_body("prompt", "x", {"directory": None})["directory"] == str(tmp_path)
    assert spec_body("prompt", "x", {"directory": Path("a")})["directory"] == str(tmp_path / "a")
    assert spec_body("prompt", "x", {"directory": "/b/../c"})["directory"] == "/c"


def test_without_a_current_directory_one_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    os.rmdir(gone)
    with pytest.raises(InvalidInput, match="directory is gone"):
        spec_body("prompt", "x", {})
    assert spec_body("prompt", "x", {"directory": "/tmp"})["directory"] == "/tmp"


def test_values_become_json() -> None:
    options = {"priority": Priority.P0, "checks": ["true", CheckSpec(command="make", timeout_s=5)]}
    found = spec_body("prompt", "x", {**options, "directory": "/"})
    assert found["priority"] == "P0"
    assert found["checks"][0] == "true"
    assert (found["checks"][1]["command"], found["checks"][1]["timeout_s"]) == ("make", 5)
    assert set(found) == {"prompt", "priority", "checks", "directory"}
    with pytest.raises(InvalidInput, match="cannot be sent"):
        spec_body("prompt", "x", {"env": {"A": object()}})


def test_options_replace_fields_of_a_whole_spec() -> None:
    spec = TaskSpec(prompt="x", directory="/tmp", checks=["true"], agent="a")
    found = spec_body("prompt", spec, {"agent": "b"})
    assert found == {
        "prompt": "x",
        "directory": "/tmp",
        "checks": [{"command": "true"}],
        "agent": "b",
    }
    assert TaskSpec(**found) == spec.model_copy(update={"agent": "b"})


def test_a_run_is_its_fields_or_a_whole_spec(recorded: Recorded) -> None:
    runs = Runs(recorded)
    whole = PipelineSpec(directory="/tmp", steps=["a", "b"])
    with pytest.raises(NotImplementedError):
        runs.start("pipeline", whole, directory="/tmp")
    with pytest.raises(NotImplementedError):
        runs.start("pipeline", steps=["a", StepSpec(prompt="b")], directory="/tmp")
    first, second = (PipelineSpec(**body["spec"]) for body in recorded.asked)  # type: ignore[index]
    assert first == second == whole


def test_a_schedule_says_what_it_starts() -> None:
    found = schedule_body("task", {"prompt": "x", "directory": "/tmp"}, {"cron": "0 3 * * *"})
    assert found == {
        "kind": "task",
        "cron": "0 3 * * *",
        "spec": {"prompt": "x", "directory": "/tmp"},
    }
    whole = ScheduleSpec(spec={"prompt": "x", "directory": "/tmp"}, every_s=60)
    assert schedule_body(whole, None, {"title": "t"}) == {
        "spec": {"prompt": "x", "directory": "/tmp"},
        "every_s": 60,
        "title": "t",
    }
    with pytest.raises(InvalidInput, match="is missing"):
        schedule_body("task", None, {"every_s": 60})
