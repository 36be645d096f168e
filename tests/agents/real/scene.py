"""One real agent, one daemon, one repository: what every test of the real agents plays on."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.agents.model import ModelServer, Request, Step
from tests.agents.setup import AgentSetup, agent_setup
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import make_repository

# US dollars per million tokens, for whatever model an agent names.
PRICE = {"input": 3.0, "output": 15.0, "cached": 0.3}
UNDERSTUDY = "understudy"
_PATIENCE_S = 240.0
_ABSOLUTE = frozenset({"qwen", "acp-qwen"})

# Faster than a person would want it, so that a test of a refusal does not take minutes.
_SETTINGS = """
[failures]
patience_s = 10
[tasks]
grace_s = 3
[agents.understudy]
type = "rehearsal"
playbook = "{playbook}"
[prices."{model}"]
input = 3.0
output = 15.0
cached = 0.3
"""
_PART = """
[[do]]
write = "hello.txt"
content = "hello\\n"
[[do]]
result = "The understudy did it."
"""


@dataclass
class Scene:
    """A daemon that knows one real agent and its understudy."""

    setup: AgentSetup
    kapelle: Instance
    repository: Path
    place: Path | None = None
    steps: tuple[Step, ...] = ()

    @property
    def agent(self) -> str:
        return self.setup.agent

    def script(self, *steps: Step) -> None:
        self.steps = steps
        self.setup.scripts.put(self.setup.lane, [self._placed(step) for step in steps])

    def _placed(self, step: Step) -> Step:
        """The step as this agent takes it: some write only to absolute paths."""
        if self.agent not in _ABSOLUTE or self.place is None or "write" not in step:
            return step
        wanted = step["write"]
        return {**step, "write": {**wanted, "path": str(self.place / wanted["path"])}}

    def requests(self) -> list[Request]:
        return self.setup.scripts.requests(self.setup.lane)

    def submit(self, prompt: str, **spec: Any) -> str:
        task_id = self.kapelle.submit(prompt, self.repository, agent=self.agent, **spec)
        # Where the first task works is known only now, and before the agent has started.
        self.place = self.place or self.kapelle.home.worktrees / task_id
        if self.agent in _ABSOLUTE and self.setup.scripts.taken(self.setup.lane) == 0:
            self.script(*self.steps)
        return task_id

    def wait(self, task_id: str) -> Any:
        return self.kapelle.wait(task_id, _PATIENCE_S)

    def until(self, task_id: str, status: str) -> Any:
        return self.kapelle.wait_for_status(task_id, status, _PATIENCE_S)

    def run(self, prompt: str, **spec: Any) -> Any:
        return self.wait(self.submit(prompt, **spec))

    def file(self, task: Any, name: str) -> str | None:
        path = Path(task["workspace"]["path"]) / name
        return path.read_text(encoding="utf-8") if path.exists() else None

    def events(self, task_id: str) -> list[Any]:
        done = self.kapelle.cli("events", "--json", "--task", task_id, check=True)
        return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]

    def transcript(self, task_id: str) -> list[Any]:
        done = self.kapelle.cli("logs", "--json", task_id, check=True)
        return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]

    def await_process(self, mark: str) -> None:
        """Until a process has this word in its command line."""
        deadline = time.monotonic() + _PATIENCE_S
        while not processes_with(mark):
            assert time.monotonic() < deadline, f"no process with {mark} came up"
            time.sleep(0.05)


@contextmanager
def scene(agent: str, server: ModelServer, more: str = "", **settings: Any) -> Iterator[Scene]:
    """Set up, and leave no process behind; more is added to the configuration."""
    with agent_setup(agent, server, **settings) as setup:
        playbook = setup.root / "understudy.toml"
        playbook.write_text(_PART, encoding="utf-8")
        kapelle = setup.instance()
        text = _SETTINGS.format(playbook=playbook, model=setup.recipe.model)
        config = setup.home / "config.toml"
        config.write_text(setup.config + text + more, encoding="utf-8")
        kapelle.start()
        try:
            yield Scene(setup, kapelle, make_repository(setup.root / "repository"))
        finally:
            kapelle.destroy()


def processes_with(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and mark in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def head_of(repository: Path) -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(
        command, cwd=repository, capture_output=True, text=True, check=True
    ).stdout.strip()
