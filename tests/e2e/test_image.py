"""The container image as a new user starts it: `make test-image` builds it and runs this."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.page_commands import ROOT
from tests.e2e.support.staging import until

IMAGE = os.environ.get("KAPELLE_IMAGE")
ENGINE = os.environ.get("KAPELLE_ENGINE", "docker")
pytestmark = [
    pytest.mark.skipif(IMAGE is None, reason="`make test-image` names the image"),
    pytest.mark.timeout(300),
]
GREET = """Greet.
```rehearsal
[[do]]
write = "greeting.txt"
content = "hello"
```
"""
SLEEP = """Wait.
```rehearsal
[[do]]
sleep = 600
```
"""


class Container:
    """A container with a volume for its home."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.volume = f"{name}-home"

    def start(self) -> None:
        # The engines of test machines may have no network of their own.
        listen = ["serve", "--host", "127.0.0.1", "--port", "0"]
        volume = f"{self.volume}:/home/kapelle"
        options = ["--detach", "--name", self.name, "--network", "host", "--volume", volume]
        assert IMAGE is not None
        _engine("run", *options, IMAGE, *listen)
        until(lambda: "Kapelle" in self.logs(), "the daemon is ready", 60)

    def logs(self) -> str:
        done = _engine("logs", self.name)
        return done.stdout + done.stderr

    def call(self, *arguments: str, directory: str = "/work") -> str:
        return _engine("exec", "--workdir", directory, self.name, *arguments).stdout

    def remove(self) -> None:
        _engine("rm", "--force", self.name, check=False)


def _engine(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([ENGINE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{arguments}: {done.stdout}{done.stderr}"
    return done


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    container = Container(f"kapelle-test-{os.getpid()}")
    container.start()
    try:
        yield container
    finally:
        container.remove()
        _engine("volume", "rm", container.volume, check=False)


def test_a_task_is_run_merged_and_kept_in_the_volume(container: Container) -> None:
    assert container.call("id", "--user").strip() != "0"
    make = (
        "git init -q -b main shop && cd shop && git config user.name N && git config user.email e"
    )
    container.call("sh", "-c", f"{make} && git commit -q --allow-empty -m First")
    check = ["--check", "test -e greeting.txt"]
    run = ["kapelle", "run", GREET, "--agent", "rehearsal", *check, "--follow"]
    task = container.call(*run, directory="/work/shop").split()[0]
    container.call("kapelle", "merge", task, directory="/work/shop")
    assert container.call("cat", "shop/greeting.txt") == "hello"
    _engine("stop", container.name)
    container.remove()
    container.start()
    assert '"completed"' in container.call("kapelle", "status", task, "--json")


def test_an_agent_that_ends_with_the_container_is_not_taken_for_done(container: Container) -> None:
    start = ["kapelle", "run", SLEEP, "--agent", "rehearsal", "--in-place"]
    task = container.call(*start).split()[0]
    status = ["kapelle", "status", task, "--json"]
    until(lambda: '"running"' in container.call(*status), "its agent runs", 60)
    _engine("restart", container.name)
    until(lambda: '"failed"' in _engine("exec", container.name, *status, check=False).stdout,
          "its end is noticed", 60)  # fmt: skip
    assert '"lost"' in container.call(*status)


def test_the_image_names_the_wheels_version(container: Container) -> None:
    (wheel,) = (ROOT / "dist").glob("*.whl")
    assert container.call("kapelle", "--version").split()[1] == wheel.name.split("-")[1]
