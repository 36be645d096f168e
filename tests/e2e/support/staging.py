"""Places with settings and players of their own, so that tests can share one daemon."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.support.instance import Instance, pauses


@contextmanager
def shared_instance(directory: Path) -> Iterator[Instance]:
    """A daemon for a whole file of tests, with room for some attempts at once."""
    instance = Instance(directory / "home", KAPELLE_LIMITS__MAX_ATTEMPTS="6")
    instance.start()
    try:
        yield instance
    finally:
        instance.destroy()


@contextmanager
def shell_instance(directory: Path) -> Iterator[Instance]:
    """A daemon for a whole file of tests, whose default agent is a shell."""
    instance = Instance(directory / "home")
    instance.cli("config", "set", "agents.sh.command", '["sh", "-c", "{prompt}"]', check=True)
    instance.cli("config", "set", "default_agent", "sh", check=True)
    instance.start()
    try:
        yield instance
    finally:
        instance.destroy()


def set_up(place: Path, settings: str = "", **playbooks: str) -> Path:
    """A directory with settings; each playbook makes a rehearsal agent of its name."""
    folder = place / ".kapelle"
    folder.mkdir()
    for name, text in playbooks.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
        settings += f'\n[agents.{name}]\ntype = "rehearsal"\nplaybook = "{folder}/{name}.toml"\n'
    (folder / "config.toml").write_text(settings, encoding="utf-8")
    return place


def until(found: Callable[[], Any], what: str, timeout_s: float = 60) -> Any:
    """What is found, as soon as it is true."""
    for _ in pauses(timeout_s):
        if value := found():
            return value
    raise AssertionError(f"{what} did not come about in {timeout_s:g} s")


def kinds(instance: Instance, task_id: str, kind: str) -> list[dict[str, Any]]:
    """The data of a task's events of one kind."""
    import json

    _, body = instance.request("GET", f"/events?after=0&follow=false&task_id={task_id}")
    lines = [line[5:] for line in body.decode().splitlines() if line.startswith("data:")]
    told = [json.loads(line) for line in lines]
    return [event["data"] for event in told if event.get("kind") == kind]
