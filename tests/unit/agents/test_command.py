"""The command template: what is filled in, what is refused, and how it is judged."""

import sys
from pathlib import Path

import pytest

from kapelle.agents.base import AgentRequest, Command
from kapelle.agents.command import LONGEST_ARGUMENT, CommandAgent
from kapelle.agents.summary import summarise
from kapelle.domain.errors import AgentMisconfigured
from kapelle.domain.task import Exit
from kapelle.settings import AgentSettings

PYTHON = sys.executable
WORKSPACE = Path("/work space")
OK = Exit(kind="exited", code=0)


def build(
    template: list[str],
    prompt: str = "Do it",
    system: str | None = None,
    model: str | None = None,
    **settings: object,
) -> Command:
    configured = AgentSettings.model_validate({"command": [PYTHON, *template], **settings})
    request = AgentRequest(
        prompt, WORKSPACE, Path("/run/prompt.txt"), configured, system_prompt=system, model=model
    )
    return CommandAgent("mytool", configured).command(request)


def test_all_placeholders_are_filled() -> None:
    template = ["{prompt}", "s={system}", "{combined}", "{model}", "{workspace}", "{prompt_file}"]
    command = build(template, system="Be brief", model="large")
    combined = "Be brief\n\nDo it"
    expected = ["Do it", "s=Be brief", combined, "large", "/work space", "/run/prompt.txt"]
    assert command.argv[1:] == expected
    assert command.stdin is None


def test_only_known_placeholders_are_filled_and_only_once() -> None:
    command = build(["{other}", "{{prompt}}", "{prompt:x}", "{}", "{prompt}"], "{model}", model="m")
    assert command.argv[1:] == ["{other}", "{{model}}", "{prompt:x}", "{}", "{model}"]


def test_without_a_placeholder_the_prompt_comes_on_stdin() -> None:
    assert build([]).stdin == b"Do it"
    assert build([], system="Be brief").stdin == b"Be brief\n\nDo it"
    assert build(["{system}"], system="Be brief").stdin == b"Do it"


def test_what_has_no_value_goes_with_its_option() -> None:
    template = ["run", "--model", "{model}", "--system={system}", "{model}", "{prompt}"]
    assert build(template).argv[1:] == ["run", "Do it"]
    assert build(template, model="m").argv[1:] == ["run", "--model", "m", "m", "Do it"]


def test_the_settings_add_model_arguments_and_variables() -> None:
    command = build(["{model}"], extra_args=["-v"], model=None, env={"A": "1"})
    assert (command.argv[1:], command.env) == (["-v"], {"A": "1"})
    settings = AgentSettings(command=[PYTHON, "{model}"], model="small")
    request = AgentRequest("Do it", WORKSPACE, Path("/p"), settings)
    assert CommandAgent("mytool", settings).command(request).argv[1:] == ["small"]


@pytest.mark.parametrize("template", [["{prompt}"], ["--ask={combined}"]])
def test_a_prompt_too_large_for_an_argument_is_refused(template: list[str]) -> None:
    with pytest.raises(AgentMisconfigured, match="bytes") as caught:
        build(template, "ü" * (LONGEST_ARGUMENT // 2 + 1))
    assert "{prompt_file}" in (caught.value.hint or "")


@pytest.mark.parametrize("template", [[], ["{prompt_file}"]])
def test_a_large_prompt_has_other_ways(template: list[str]) -> None:
    assert build(template, "x" * 1_000_000).argv[0] == PYTHON


def test_an_empty_command_says_what_to_type() -> None:
    agent = CommandAgent("mytool", AgentSettings())
    with pytest.raises(AgentMisconfigured, match="no command") as caught:
        agent.command(AgentRequest("x", WORKSPACE, Path("/p"), AgentSettings()))
    assert "kapelle config set agents.mytool.command" in (caught.value.hint or "")
    assert agent.installed() is None


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program", "./no-such-program"])
def test_a_missing_program_is_named(program: str) -> None:
    settings = AgentSettings(command=[program])
    agent = CommandAgent("mytool", settings)
    with pytest.raises(AgentMisconfigured, match=program):
        agent.command(AgentRequest("x", WORKSPACE, Path("/p"), settings))


def test_a_relative_program_is_the_workspaces(tmp_path: Path) -> None:
    program = tmp_path / "agent.sh"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    settings = AgentSettings(command=["./agent.sh"])
    agent = CommandAgent("mytool", settings)
    assert agent.command(AgentRequest("x", tmp_path, Path("/p"), settings)).argv == ["./agent.sh"]


def test_an_empty_argument_is_refused() -> None:
    with pytest.raises(AgentMisconfigured, match="empty"):
        build(["", "{prompt}"])


def test_exit_code_0_is_a_claim_of_success_with_the_last_output() -> None:
    agent = CommandAgent("mytool", AgentSettings())
    summary = summarise(agent, ["first", "", "last \r\n", '{"kind": "result"}'])
    verdict = agent.judge(summary, OK, "")
    assert (verdict.success, verdict.claimed) == (True, "success")
    assert verdict.result == 'first\n\nlast \n{"kind": "result"}'


def test_a_failure_quotes_the_last_words() -> None:
    agent = CommandAgent("mytool", AgentSettings())
    verdict = agent.judge(summarise(agent, []), Exit(kind="exited", code=3), "a\nno such file\n\n")
    assert verdict.reason == "The agent exited with code 3: no such file"
    assert verdict.claimed == "failure"
    killed = agent.judge(summarise(agent, []), Exit(kind="signaled", signal=9), "")
    assert (killed.reason, killed.claimed) == ("The agent was killed by SIGKILL.", None)


def test_an_agent_that_prints_events_is_judged_by_them() -> None:
    agent = CommandAgent("mytool", AgentSettings(output="events"))
    said = ['{"kind": "result", "text": "no luck", "data": {"is_error": true}}']
    assert not agent.judge(summarise(agent, said), OK, "").success
    assert not agent.judge(summarise(agent, ["plain text"]), OK, "").success
