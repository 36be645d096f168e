"""Agents in a terminal: the bare program with the prompt, judged by how it ends."""

from pathlib import Path

import pytest

from kapelle.agents.base import AgentRequest, Summary
from kapelle.agents.registry import get
from kapelle.domain.errors import AgentMisconfigured, InvalidInput
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings, Settings

PLACE = Path("/nowhere")
HEADLESS = {
    "-p", "exec", "run", "--json", "stream-json", "--yes-always", "yolo",
    "--dangerously-skip-permissions", "--dangerously-bypass-approvals-and-sandbox", "--auto",
}  # fmt: skip


def argv_of(name: str, prompt: str, **settings: object) -> list[str]:
    own = AgentSettings.model_validate({"program": "/bin/true", **settings})
    agent = get(name, Settings(agents={name: own}), interactive=True)
    command = agent.command(AgentRequest(prompt, PLACE, PLACE / "prompt", agent.settings))
    assert command.stdin is None
    assert command.env["TERM"] == "xterm-256color"
    return command.argv


@pytest.mark.parametrize(
    ("name", "option"),
    [("claude", "--"), ("codex", "--"), ("gemini", "-i"), ("opencode", "--prompt")],
)
def test_it_is_the_bare_program_with_the_prompt(name: str, option: str) -> None:
    argv = argv_of(name, "Look around", model="m1")
    assert argv[-2:] == [option, "Look around"]
    assert "m1" in argv or name == "opencode"
    assert not HEADLESS & {*argv}
    assert option not in argv_of(name, "")


def test_what_takes_no_prompt_says_so() -> None:
    assert not HEADLESS & {*argv_of("aider", "")}
    with pytest.raises(AgentMisconfigured, match="aider takes no prompt"):
        argv_of("aider", "Look around")
    assert argv_of("own", "hi", command=["sh", "-c", "{prompt}"]) == ["sh", "-c", "hi"]
    with pytest.raises(AgentMisconfigured, match="own takes no prompt"):
        argv_of("own", "hi", command=["sh"])
    with pytest.raises(InvalidInput, match="cannot be used in a terminal"):
        argv_of("copilot", "hi")


def test_its_end_is_what_its_program_says_and_its_screen_reads_as_text() -> None:
    agent = get("rehearsal", Settings(), interactive=True)
    assert agent.judge(Summary(), Exit(kind="exited", code=0), "").success
    assert not agent.judge(Summary(), Exit(kind="exited", code=1), "rate limit").success
    shown = agent.parse("\x1b]0;title\x07\x1b[1;32m$\x1b[m typed\x1b[K\r")
    assert [event.text for event in shown] == ["$ typed"]
