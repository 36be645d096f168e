"""Kapelle as an agent for an editor: the Agent Client Protocol over stdin and stdout."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docs.services import idle_router

from kapelle import __version__
from kapelle.cli.commands import command_names
from kapelle.patterns.registry import load_built_in
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git, make_repository

WORK = '```rehearsal\n[[do]]\nwrite = "a.txt"\ncontent = "made\\n"\n[[do]]\nsay = "made it"\n```'


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


class Editor:
    """A client of the protocol that keeps what it was told between its requests."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._number = 0
        self.updates: list[dict[str, Any]] = []
        self.before: list[dict[str, Any]] = []

    def send(self, method: str, **params: Any) -> int:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return self._number

    def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        message: dict[str, Any] = json.loads(self._process.stdout.readline())
        if message.get("method") == "session/update":
            self.updates.append(message["params"]["update"])
        return message

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = self.send(method, **params)
        while (message := self.read()).get("id") != number:
            pass
        return message

    def told(self) -> str:
        chunks = [u for u in self.updates if u["sessionUpdate"] == "agent_message_chunk"]
        self.updates, self.before = [], self.updates
        return "".join(chunk["content"]["text"] for chunk in chunks)

    def prompt(self, session: str, said: str) -> str:
        answer = self.ask("session/prompt", sessionId=session, prompt=[text(said)])
        assert answer["result"] == {"stopReason": "end_turn"}, answer
        return self.told()


@contextmanager
def editor(kapelle: Instance, *options: str) -> Iterator[Editor]:
    with subprocess.Popen(
        [sys.executable, "-m", "kapelle", "acp", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=kapelle.env,
        text=True,
    ) as process:
        try:
            yield Editor(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=30)


def test_an_editor_conducts(kapelle: Instance, tmp_path: Path) -> None:
    place = make_repository(tmp_path / "project")
    with editor(kapelle, "--agent", "rehearsal") as client:
        hello = client.ask("initialize", protocolVersion=1, clientCapabilities={})["result"]
        assert (hello["protocolVersion"], hello["agentInfo"]["name"]) == (1, "kapelle")
        session = client.ask("session/new", cwd=str(place), mcpServers=[])["result"]["sessionId"]
        said = client.prompt(session, WORK)
        assert "made it" in said
        (offered,) = [u for u in client.before if "availableCommands" in u]
        assert {"team", "merge"} <= {each["name"] for each in offered["availableCommands"]}
        assert "completed, not verified" in said
        assert "+made" in client.prompt(session, "/diff")
        assert "main" in client.prompt(session, "/merge")
        assert (place / "a.txt").read_text() == "made\n"
        assert git(place, "status", "--porcelain") == ""
        again = client.prompt(session, '```rehearsal\n[[do]]\nsay = "and on"\n```')
        assert "attempt 2" in again
        assert "and on" in again


def test_an_editor_that_is_wrong_is_told_so(kapelle: Instance, tmp_path: Path) -> None:
    with editor(kapelle, "--agent", "rehearsal") as client:
        nowhere = client.ask("session/new", cwd="nowhere")["error"]
        assert "'nowhere'" in nowhere["message"]
        assert client.ask("session/prompt", sessionId="x")["error"]["code"] == -32602
        assert client.ask("session/fly")["error"]["code"] == -32601
        session = client.ask("session/new", cwd=str(tmp_path))["result"]["sessionId"]
        assert "is empty" in client.ask("session/prompt", sessionId=session)["error"]["message"]
        assert "task_" in client.prompt(session, "/status task_nothing")
        typo = client.ask("session/prompt", sessionId=session, prompt=[text("/sttus")])["error"]
        assert "Did you mean /status" in typo["message"]
        client.prompt(session, "/notes set colour blue --scope global")
        assert "blue" in client.prompt(session, "/notes get colour --scope global")
    with editor(kapelle) as client:
        session = client.ask("session/new", cwd=str(tmp_path))["result"]["sessionId"]
        assert "No agent was named" in client.prompt(session, "hello")


def test_what_is_cancelled_in_the_editor_ends(kapelle: Instance, tmp_path: Path) -> None:
    with editor(kapelle, "--agent", "rehearsal") as client:
        session = client.ask("session/new", cwd=str(tmp_path))["result"]["sessionId"]
        forever = '```rehearsal\n[[do]]\nsay = "begun"\n[[do]]\nsleep = 600\n```'
        number = client.send("session/prompt", sessionId=session, prompt=[text(forever)])
        while "begun" not in str(client.read()):
            pass
        client.send("session/cancel", sessionId=session)
        while (message := client.read()).get("id") != number:
            pass
        assert message["result"] == {"stopReason": "cancelled"}
        (task,) = [
            one for one in kapelle.get("/tasks")["tasks"] if one["directory"] == str(tmp_path)
        ]
        assert kapelle.wait(task["id"])["status"] == "cancelled"


def test_the_plugin_names_what_there_is(kapelle: Instance, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    market = json.loads((root / ".claude-plugin/marketplace.json").read_text())
    (entry,) = market["plugins"]
    plugin = root / entry["source"]
    about = json.loads((plugin / ".claude-plugin/plugin.json").read_text())
    assert (about["name"], about["version"]) == (entry["name"], __version__)
    skill = (plugin / "skills/kapelle/SKILL.md").read_text()
    tools = {row.tool for row in idle_router().list_operations()} | {
        f"{item.name}_start" for item in load_built_in()
    }
    named = set(re.findall(r"`(\w+_\w+)`", skill)) - {"depends_on", "tool_list", "tool_call"}
    assert named <= {name.replace("-", "_") for name in tools}
    for command in set(re.findall(r"`kapelle (\w+)", skill)):
        assert command in command_names(), command
    for _ in range(2):
        kapelle.cli("init", "--agent", "rehearsal", "--agents-md", cwd=tmp_path, check=True)
        assert (tmp_path / "AGENTS.md").read_text().count("## Kapelle\n") == 1
    (tmp_path / "AGENTS.md").unlink()
    (tmp_path / "AGENTS.md").symlink_to(tmp_path / "elsewhere")
    linked = kapelle.cli("init", "--agents-md", cwd=tmp_path)
    assert (linked.returncode, (tmp_path / "elsewhere").exists()) == (2, False)
