"""Programs as agents: judged by what they print, and never outliving their call."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.e2e.support.ensembles import play
from tests.integration.library.team_setup import TeamSetup

from kapelle import (
    AgentMisconfigured,
    AgentNotFound,
    CliAgent,
    InvalidInput,
    MockAgent,
    Request,
)
from kapelle.settings import AgentSettings


def test_a_template_is_filled_in_and_its_output_is_the_answer(tmp_path: Path) -> None:
    agent = CliAgent.command(["printf", "%s|%s", "{system}", "{prompt}"])
    response = agent.run(Request("$(id) `x` {model}", system="be brief", cwd=tmp_path))
    assert (response.ok, response.text) == (True, "be brief|$(id) `x` {model}")


def test_without_a_placeholder_the_prompt_comes_on_stdin_in_the_right_directory(
    tmp_path: Path,
) -> None:
    agent = CliAgent.command(["sh", "-c", "cat; pwd"], cwd=tmp_path)
    prompt = "words\n" * 100_000
    response = agent.run(Request(prompt))
    assert response.ok
    assert response.text.endswith(f"words\n{tmp_path.resolve()}")


def test_an_exit_code_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    response = CliAgent.command(["sh", "-c", "echo no luck >&2; exit 3"]).run(
        Request("x", cwd=tmp_path)
    )
    assert not response.ok
    assert response.reason == "The agent exited with code 3: no luck"


def test_what_went_to_stderr_is_there_even_after_a_time_out(tmp_path: Path) -> None:
    script = "echo partial out; echo partial err >&2; sleep 30"
    agent = CliAgent.command(["sh", "-c", script], cwd=tmp_path, timeout_s=1)
    response = agent.run(Request("x"))
    assert not response.ok
    assert (response.text, response.stderr.strip()) == ("partial out", "partial err")


def test_a_program_that_cannot_be_started_is_a_failure(tmp_path: Path) -> None:
    response = CliAgent.command(["true"]).run(Request("x", cwd=tmp_path / "nowhere"))
    assert not response.ok
    assert "could not be started" in str(response.reason)


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (
            CliAgent.command(["gone", "{prompt}"]),
            "The agent gone needs 'gone', which is not an executable on PATH. Install it.",
        ),
        (
            CliAgent("claude", AgentSettings(program="not-there")),
            "The agent claude needs 'not-there', which is not an executable on PATH."
            " npm install -g @anthropic-ai/claude-code.",
        ),
        (CliAgent.command([]), "The agent command has no command."),
    ],
)
def test_a_program_that_is_missing_is_a_failure_that_says_so(
    agent: CliAgent, reason: str, tmp_path: Path
) -> None:
    response = agent.run(Request("x", cwd=tmp_path))
    assert (response.ok, response.text, response.hopeless) == (False, "", True)
    assert response.reason == reason


def test_a_missing_program_ends_the_run_and_is_not_tried_again(setup: TeamSetup) -> None:
    agent = MockAgent()
    team = setup.orchestrator(agent, worker=CliAgent.command(["not-there"]))
    outcome = team.run("A server", "it is there")
    assert outcome.status == "failed"
    assert outcome.reason.startswith("The agent not-there needs 'not-there'")
    assert [request.title for request in agent.requests] == ["Plan"]


def test_an_agent_with_a_protocol_tells_cost_and_session(tmp_path: Path) -> None:
    agent = CliAgent("rehearsal")
    usage = {"usage": {"input": 7, "output": 5, "cost": 0.25}}
    response = agent.run(Request(play(usage, {"session": "s-1"}, {"result": "sung"}), cwd=tmp_path))
    assert (response.text, response.cost_usd, response.session_id) == ("sung", 0.25, "s-1")
    assert response.usage is not None
    assert response.usage.output_tokens == 5
    failed = agent.run(Request(play({"fail": "hoarse"}), cwd=tmp_path))
    assert (failed.ok, failed.reason) == (False, "hoarse")
    asks = agent.run(Request(play({"ask": "Which key?"}), cwd=tmp_path))
    assert (asks.ok, asks.reason) == (False, "It asks: Which key?")


def test_any_amount_of_output_is_survived(tmp_path: Path) -> None:
    part = play({"flood": 60_000_000}, {"result": "the end"})
    before = psutil.Process().memory_info().rss
    assert CliAgent("rehearsal").run(Request(part, cwd=tmp_path)).text == "the end"
    assert psutil.Process().memory_info().rss - before < 60_000_000


def test_a_long_answer_in_plain_text_is_whole(tmp_path: Path) -> None:
    agent = CliAgent.command(["seq", "1", "20000"])
    assert agent.run(Request("x", cwd=tmp_path)).text.splitlines()[0] == "1"


def test_a_time_out_ends_the_whole_tree(setup: TeamSetup, tmp_path: Path) -> None:
    part = play(
        {"spawn": "trap '' TERM; sleep 621; sleep 621", "detached": True},
        {"hang": True, "stubborn": True},
    )
    agent = CliAgent("rehearsal", timeout_s=1, grace_s=0.3)
    began = time.monotonic()
    response = agent.run(Request(part, cwd=tmp_path))
    assert (response.ok, response.reason) == (False, "It was stopped after 1 s.")
    assert 1 <= time.monotonic() - began < 8
    assert setup.processes() == []


def test_what_an_agent_leaves_behind_ends_with_it(setup: TeamSetup, tmp_path: Path) -> None:
    part = play({"spawn": "sleep 622", "detached": True}, {"result": "done"})
    began = time.monotonic()
    assert CliAgent("rehearsal").run(Request(part, cwd=tmp_path)).ok
    assert setup.processes() == []
    assert time.monotonic() - began < 6


def test_an_agent_sees_its_own_variables_and_not_every_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_DATABASE_PASSWORD", "hidden-from-agents")
    agent = CliAgent.command(["env"], env={"OWN": "given"})
    text = agent.run(Request("x", cwd=tmp_path)).text
    assert "OWN=given" in text
    assert "PATH=" in text
    assert "hidden-from-agents" not in text


def test_names_and_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(AgentNotFound, match="did you mean claude"):
        CliAgent("claud")
    with pytest.raises(InvalidInput, match="its name"):
        CliAgent("my tool", AgentSettings(command=["x"]))


STUB = '#!/bin/sh\ncat > /dev/null\necho "$@" > {log}\n'
DANGER = {
    "claude": ("--dangerously-skip-permissions", "--permission-mode acceptEdits"),
    "codex": ("--dangerously-bypass-approvals-and-sandbox", "--sandbox workspace-write"),
    "copilot": ("--allow-all ", "--allow-tool=write"),
    "gemini": ("--approval-mode yolo", "--approval-mode auto_edit"),
    "qwen": ("--yolo", "--approval-mode auto-edit"),
}


@pytest.mark.parametrize("name", DANGER)
def test_permissions_are_skipped_only_when_asked_for(name: str, tmp_path: Path) -> None:
    log, program = tmp_path / "argv", tmp_path / "stub"
    program.write_text(STUB.format(log=log), encoding="utf-8")
    program.chmod(0o755)
    settings = AgentSettings(program=str(program), model="m")
    dangerous, instead = DANGER[name]
    for skip in (True, False):
        agent = CliAgent(name, settings, skip_permissions=skip)
        agent.run(Request("x", cwd=tmp_path))
        argv = log.read_text(encoding="utf-8")
        assert (dangerous in argv) is skip
        assert (instead in argv) is not skip


@pytest.mark.parametrize("skip", [True, False])
def test_an_agent_that_asks_over_acp_is_denied_what_it_may_not_do(
    skip: bool, tmp_path: Path
) -> None:
    program = Path(__file__).parents[1] / "acp_agent.py"
    settings = AgentSettings(type="acp", command=[sys.executable, str(program)])
    log = tmp_path / "log"
    agent = CliAgent("small", settings, env={"ACP_LOG": str(log)}, skip_permissions=skip)
    prompt = json.dumps({"do": [["ask", "Delete all"], ["say", "x"]]})
    assert agent.run(Request(prompt, cwd=tmp_path)).text == "x"
    assert ("id_reject_once" in log.read_text(encoding="utf-8")) is not skip


def test_an_agent_that_cannot_be_held_back_says_so() -> None:
    for agent in ("opencode", "rehearsal"):
        with pytest.raises(AgentMisconfigured, match="skip_permissions=False"):
            CliAgent(agent, skip_permissions=False)
    with pytest.raises(AgentMisconfigured, match="cannot limit the permissions"):
        CliAgent.command(["mytool", "{prompt}"], skip_permissions=False)
    CliAgent.aider(skip_permissions=False)


def test_each_kind_has_a_short_name() -> None:
    made = [
        CliAgent.claude_code(cwd="."),
        CliAgent.codex(model="m"),
        CliAgent.gemini(),
        CliAgent.opencode(),
        CliAgent.aider(timeout_s=5),
        CliAgent.qwen(),
        CliAgent.copilot(skip_permissions=False),
        CliAgent.command(["/usr/bin/my tool.py", "{prompt}"]),
    ]
    names = ["claude", "codex", "gemini", "opencode", "aider", "qwen", "copilot", "my-tool-py"]
    assert [agent.name for agent in made] == names


PROGRAM = """
import sys
from kapelle import CliAgent, MockAgent, Orchestrator, Request
agent = CliAgent.command(["sh", "-c", "touch {started}; sleep 631 & sleep 632"], grace_s=1)
if {whole}:
    mock = MockAgent(cwd={repo!r})
    Orchestrator(mock, worker=agent, home={home!r}).run("x", "y")
else:
    agent.run(Request("x"))
"""


@pytest.mark.parametrize("whole", [True, False])
def test_ctrl_c_ends_the_agents_and_is_raised(
    setup: TeamSetup, tmp_path: Path, whole: bool
) -> None:
    started = tmp_path / "started"
    text = PROGRAM.format(started=started, whole=whole, repo=str(setup.repo), home=str(setup.home))
    with subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
        # A shell that starts the tests in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as program:
        deadline = time.monotonic() + 30
        # What it starts comes a moment after the file.
        while len(setup.processes()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert started.exists()
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=30)
    assert b"KeyboardInterrupt" in errors
    assert setup.processes() == []
    assert setup.worktrees() == [str(setup.repo)]
    assert setup.is_untouched()
