"""The command template: what is filled in, what is refused, and how it is judged."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.agents.adapters.command import CommandAgent
from kapelle.agents.base import LONGEST_ARGUMENT, AgentCommand, AgentRequest
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
    session: str | None = None,
    **settings: object,
) -> AgentCommand:
    configured = AgentSettings.model_validate({"command": [PYTHON, *template], **settings})
    request = AgentRequest(
        prompt,
        WORKSPACE,
        Path("/run/prompt.txt"),
        configured,
        system_prompt=system,
        model=model,
        session_id=session,
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


READ = {
    "text": "message.content.0.text",
    "result": "result",
    "session": "session_id",
    "error": "error.message",
    "model": "message.model",
    "input_tokens": "usage.input",
    "output_tokens": "usage.output",
    "cached_tokens": "usage.cached",
    "cost_usd": "cost",
}


def reader(template: str = "--resume={session}", **read: str) -> CommandAgent:
    given = {"command": [PYTHON, template], "output": "json", "read": read or READ}
    return CommandAgent("mytool", AgentSettings.model_validate(given))


def test_a_session_is_resumed_where_there_is_one() -> None:
    template = ["--resume", "{session}", "--id={session}", "{prompt}"]
    assert build(template).argv[1:] == ["Do it"]
    assert build(template, session="s 1").argv[1:] == ["--resume", "s 1", "--id=s 1", "Do it"]


def test_it_can_resume_if_it_takes_a_session_and_tells_one() -> None:
    assert reader().capabilities.resume
    assert not reader("{prompt}").capabilities.resume
    assert not reader(result="result").capabilities.resume
    template = [PYTHON, "{session}"]
    by_events = CommandAgent("mytool", AgentSettings(command=template, output="events"))
    assert by_events.capabilities.resume
    assert not CommandAgent("mytool", AgentSettings(command=template)).capabilities.resume
    assert (reader().capabilities.usage, reader().capabilities.cost) == (True, True)
    assert not reader(result="result", cost_usd="c").capabilities.usage


def test_json_lines_are_read_by_the_paths_of_the_settings() -> None:
    said = {"model": "large", "content": [{"text": "Hm."}]}
    lines = [
        "Loading…",
        json.dumps({"session_id": "s1", "message": said, "usage": {"input": 10, "output": 2}}),
        json.dumps({"usage": {"input": 20, "output": 3, "cached": 5}, "cost": 0.25, "error": None}),
        json.dumps({"result": "All done.", "session_id": "s2"}),
    ]
    summary = summarise(reader(), lines)
    assert (summary.session_id, summary.model, summary.tail) == ("s2", "large", "Hm.")
    assert summary.usage is not None
    assert (summary.usage.input_tokens, summary.usage.output_tokens) == (30, 5)
    assert (summary.usage.cached_tokens, summary.usage.cost_usd) == (5, 0.25)
    verdict = reader().judge(summary, OK, "")
    assert (verdict.success, verdict.result) == (True, "All done.")


def test_without_a_path_of_the_result_the_text_is_the_result() -> None:
    agent = reader(text="say")
    verdict = agent.judge(summarise(agent, ['{"say": "one"}', '{"say": "two"}']), OK, "")
    assert (verdict.success, verdict.result) == (True, "one\ntwo")


def test_an_empty_result_is_one_and_none_is_not() -> None:
    agent = reader(result="result", text="say")
    assert agent.judge(summarise(agent, ['{"result": ""}']), OK, "").success
    silences: list[list[str]] = [
        [],
        ["done"],
        ['{"a": 1}'],
        ['{"result": null}'],
        ['{"say": "Hm."}'],
    ]
    for silent in silences:
        verdict = agent.judge(summarise(agent, silent), OK, "")
        assert not verdict.success
        assert "result" in (verdict.reason or "")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ({"error": "Out of credit"}, "Out of credit"),
        ({"error": {"code": 5}}, '{"code": 5}'),
        ({"error": True, "result": "I could not"}, "I could not"),
        ({"error": True}, "It reported an error without a message."),
    ],
)
def test_an_error_is_a_failure_whatever_else_is_said(error: object, reason: str) -> None:
    agent = reader(result="result", error="error")
    for lines in ([error, {"result": "Done"}], [{"result": "Done"}, error]):
        verdict = agent.judge(summarise(agent, map(json.dumps, lines)), OK, "")
        assert (verdict.success, verdict.reason, verdict.claimed) == (False, reason, "failure")


def test_no_error_is_not_an_error() -> None:
    agent = reader(result="result", error="error")
    nothings: list[object] = [None, False, "", [], {}, 0]
    for nothing in nothings:
        summary = summarise(agent, [json.dumps({"error": nothing, "result": "Done"})])
        assert agent.judge(summary, OK, "").success


def test_a_bad_exit_is_a_failure_with_any_result() -> None:
    agent = reader()
    summary = summarise(agent, ['{"result": "Done"}'])
    verdict = agent.judge(summary, Exit(kind="exited", code=2), "no such file")
    assert verdict.reason == "The agent exited with code 2: no such file"


def test_json_needs_a_path_of_the_answer() -> None:
    with pytest.raises(AgentMisconfigured, match="answer's field") as caught:
        build(["{prompt}"], output="json", read={"session": "id"})
    assert "agents.mytool.read.result" in (caught.value.hint or "")


@pytest.mark.parametrize("indent", [None, 2])
def test_a_printed_document_may_take_any_number_of_lines(indent: int | None) -> None:
    document = [{"type": "start"}, {"result": "x" * 50_000 + "\n}", "usage": {"n": 7}}]
    script = f"import json; print('[1/2] {{'); print(json.dumps({document!r}, indent={indent}))"
    read = {"result": "-1.result", "input_tokens": "-1.usage.n"}
    command = build(["-c", script, "{prompt}"], output="json", read=read)
    done = subprocess.run(command.argv, capture_output=True, check=True, text=True)
    agent = reader("{prompt}", **read)
    summary = summarise(agent, done.stdout.splitlines())
    assert agent.judge(summary, OK, "").success
    assert summary.usage is not None
    assert summary.usage.input_tokens == 7


VALUES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def said(lines: list[str]) -> list[str]:
    """What the documents in these lines say, of an agent that prints JSON."""
    agent = reader(text="say")
    return [event.text for line in lines for event in agent.parse(line)]


@given(st.lists(VALUES, max_size=3), st.sampled_from([None, 1, 2, "\t"]))
def test_any_documents_are_read_over_any_lines(values: list[Any], indent: int | str | None) -> None:
    documents = [{"other": value, "say": f"no {at}"} for at, value in enumerate(values)]
    printed = "\n".join(json.dumps(one, indent=indent) for one in documents)
    assert said(printed.split("\n")) == [one["say"] for one in documents]
    assert said(printed.replace("\n", "\r\n").split("\n")) == [one["say"] for one in documents]


def test_what_is_no_document_holds_nothing_back() -> None:
    one = '{"say": "one"}'
    for before in (
        "Loading {",
        "[INFO] x {",
        "",
        "  { indented",
        "{not json}",
        "{",
        '{\n  "a": [1',
    ):
        assert said([*before.split("\n"), one, one]) == ["one", "one"]
