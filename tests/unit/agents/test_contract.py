"""What every adapter must keep: one suite, run for each of them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.agents import registry
from kapelle.agents.base import AgentAdapter, AgentRequest, Capabilities, Summary
from kapelle.agents.events import AgentEvent
from kapelle.agents.failures import classify
from kapelle.agents.summary import summarise
from kapelle.domain.task import Exit, Usage
from kapelle.settings import AgentSettings, Settings
from kapelle.settings.models import ReadJson

PYTHON = sys.executable
AGENTS = Settings(
    agents={
        "argument": AgentSettings(command=[PYTHON, "-m", "x", "{prompt}"]),
        "combined": AgentSettings(command=[PYTHON, "--ask={combined}", "--model", "{model}"]),
        "stdin": AgentSettings(command=[PYTHON, "--system", "{system}"], extra_args=["-v"]),
        "file": AgentSettings(command=[PYTHON, "{workspace}", "{prompt_file}"]),
        "events": AgentSettings(type="command", command=[PYTHON], output="events"),
        "json": AgentSettings(
            command=[PYTHON, "--resume", "{session}", "{prompt}"],
            output="json",
            read=ReadJson(result="answer", session="id"),
        ),
        "player": AgentSettings(type="rehearsal", playbook="~/book.toml", env={"A": "1"}),
        # Nothing is started here, so any program does for one that is installed.
        **{
            kind: AgentSettings(program=PYTHON, model="m1", env={"A": "1"})
            for kind in ("claude", "codex", "gemini", "opencode", "aider", "qwen", "copilot")
        },
        "acp": AgentSettings(type="acp", command=[PYTHON, "--acp"]),
        "openai": AgentSettings(base_url="http://127.0.0.1:1/v1", model="m1"),
        "anthropic": AgentSettings(base_url="http://127.0.0.1:1", model="m1"),
    }
)
NAMES = [*AGENTS.agents, "rehearsal"]

PROMPTS = [
    "Fix the tests",
    "--help",
    "-",
    "$& $1 \\1 \\g<0> $(id) `id` %s %(a)s 100%",
    "{model} {prompt} {system} {{prompt}} {workspace}",
    "'single' \"double\" \\ back",
    "two\nlines\r\nand a tab\t\n",
    "  spaces around  ",
    "Überprüfe 🎻",
]

# Stands in for the agent's program and tells what reached it.
ECHO = "import sys, json; print(json.dumps([sys.argv[1:], sys.stdin.buffer.read().decode()]))"

NOT_A_SUCCESS = [
    Exit(kind="signaled", signal=9),
    Exit(kind="signaled", signal=15),
    Exit(kind="lost"),
    Exit(kind="not_started"),
    *[Exit(kind="exited", code=code) for code in (1, 2, 53, 145, 255)],
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
event_like = st.fixed_dictionaries(
    {"kind": st.sampled_from(["text", "usage", "result", "error", "session", "question", "x"])},
    optional={
        "text": json_values,
        "name": json_values,
        "data": json_values
        | st.fixed_dictionaries(
            {}, optional={"input_tokens": json_values, "cost_usd": json_values}
        ),
    },
).map(json.dumps)


def request(workspace: Path, prompt: str, agent: AgentAdapter, **more: Any) -> AgentRequest:
    file = workspace / "prompt.txt"
    file.write_text(prompt, encoding="utf-8", newline="")
    return AgentRequest(prompt, workspace, file, agent.settings, **more)


@pytest.fixture(params=NAMES)
def agent(request: pytest.FixtureRequest) -> AgentAdapter:
    return registry.get(request.param, AGENTS)


def test_arguments_and_standard_input_reach_a_process_as_they_are() -> None:
    """So that what an adapter puts there can be looked at without a process of its own."""
    echo = [PYTHON, "-I", "-S", "-c", ECHO, *PROMPTS]
    given = "\0".join(PROMPTS)
    done = subprocess.run(echo, capture_output=True, check=True, input=given.encode())
    assert json.loads(done.stdout) == [PROMPTS, given]


class TestEveryAgent:
    def test_says_who_it_is(self, agent: AgentAdapter) -> None:
        assert agent.name in NAMES
        assert isinstance(agent.capabilities, Capabilities)
        assert isinstance(agent.reads_whole_output, bool)
        assert agent.installed()
        assert all(isinstance(name, str) for name in agent.passes)

    @pytest.mark.parametrize("system", [None, "Be brief."])
    @pytest.mark.parametrize("model", [None, "large"])
    def test_builds_a_command_that_can_be_started(
        self, agent: AgentAdapter, tmp_path: Path, system: str | None, model: str | None
    ) -> None:
        asked = request(tmp_path, "Do it", agent, system_prompt=system, model=model)
        command = agent.command(asked)
        assert command.argv
        assert all(argument and "\0" not in argument for argument in command.argv)
        assert command.env.items() >= agent.settings.env.items()
        told = [*command.argv, (command.stdin or b"").decode(), *command.files.values()]
        told += command.env.values()
        if system and agent.capabilities.system_prompt:
            assert any(system in text for text in told)
        if model and agent.capabilities.model:
            assert any(model in text for text in told)

    @pytest.mark.parametrize("fork", [False, True])
    def test_goes_on_with_a_session_where_it_can(
        self, agent: AgentAdapter, tmp_path: Path, fork: bool
    ) -> None:
        session = str(tmp_path / "0199c0de-7e57-7000-8000-000000000001")
        Path(session).touch()
        if agent.capabilities.resume and (agent.capabilities.fork or not fork):
            asked = request(tmp_path, "Go on", agent, session_id=Path(session).name, fork=fork)
            command = agent.command(asked)
            told = [*command.argv, *command.files.values()]
            assert any(Path(session).name in text for text in told)

    def test_a_stored_key_reaches_it_by_a_variable_alone(
        self, agent: AgentAdapter, tmp_path: Path
    ) -> None:
        key = "sk-0123456789abcdef"
        command = agent.command(request(tmp_path, "Do it", agent, credential=key))
        assert not any(key in argument for argument in command.argv)
        if agent.access.variables:
            assert command.env[agent.access.variables[0]] == key

    def test_the_prompt_reaches_the_process_unchanged(
        self, agent: AgentAdapter, tmp_path: Path
    ) -> None:
        commands = [agent.command(request(tmp_path, prompt, agent)) for prompt in PROMPTS]
        for prompt, command in zip(PROMPTS, commands, strict=True):
            arguments, given = command.argv[1:], (command.stdin or b"").decode()
            values = [argument.removeprefix("--ask=") for argument in arguments]
            in_file = str(tmp_path / "prompt.txt") in arguments
            # Some take what begins with a sign of theirs only behind a newline.
            assert prompt in given or prompt in values or in_file

    @given(line=st.text() | event_like | st.text().map(json.dumps))
    def test_any_line_can_be_parsed(self, line: str) -> None:
        for name in NAMES:
            agent = registry.get(name, AGENTS)
            for event in agent.parse(line):
                assert isinstance(event, AgentEvent)
                json.dumps(event.to_json())
            exit = Exit(kind="exited", code=0)
            summary = summarise(agent, [line])
            if not agent.judge(summary, exit, line).success:
                classify(summary, exit, line)

    @pytest.mark.parametrize("exit", NOT_A_SUCCESS, ids=str)
    def test_a_bad_end_is_never_success(self, agent: AgentAdapter, exit: Exit) -> None:
        glowing = Summary(result="All done.", usage=Usage(), tail="All done.")
        for summary in (glowing, Summary()):
            verdict = agent.judge(summary, exit, "All done.")
            assert not verdict.success
            assert verdict.reason
            assert verdict.question is None
            assert classify(summary, exit, "All done.")

    def test_an_output_of_any_size_is_summarised_in_little_memory(
        self, agent: AgentAdapter
    ) -> None:
        summary = summarise(agent, ("x" * 1000 for _ in range(2000)))
        assert len(summary.tail) <= 10_000
