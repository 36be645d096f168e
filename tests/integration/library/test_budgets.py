"""A budget holds while agents are at work, and ends all that they started."""

import time
from pathlib import Path

import pytest
from tests.e2e.support.ensembles import answer, rule
from tests.integration.library.team_setup import NO, YES, TeamSetup, plan, subgoal

from kapelle import Budget, CliAgent, MockAgent, Request, Response
from kapelle.settings import AgentSettings

# A stubborn program with a child, and a grandchild in a session of its own whose parent is gone.
HANGS = """
trap '' TERM
echo started >> {log}
sleep 611 &
(setsid sh -c 'trap "" TERM; sleep 612; sleep 612' &)
sleep 613
sleep 613
"""


def _hanging(log: Path) -> CliAgent:
    return CliAgent.command(["sh", "-c", HANGS.format(log=log)], grace_s=0.5)


def test_when_the_time_is_over_a_hanging_agent_ends_with_all_its_children(
    setup: TeamSetup, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    seen: list[list[str]] = []

    def observe(event: dict[str, object]) -> None:
        if event["kind"] == "task.started" and event["role"] == "worker":
            deadline = time.monotonic() + 4
            while len(setup.processes()) < 4 and time.monotonic() < deadline:
                time.sleep(0.05)
            seen.append(setup.processes())

    orchestrator = setup.orchestrator(
        MockAgent(), worker=_hanging(log), budget=Budget(max_seconds=6), observer=observe
    )
    began = time.monotonic()
    outcome = orchestrator.run("Hang", "never")
    assert (outcome.status, outcome.reason) == ("budget", "Time limit of 6 s reached.")
    assert time.monotonic() - began < 15
    assert any("sleep 612" in line for line in seen[0]), seen
    assert setup.processes() == []
    assert log.read_text(encoding="utf-8") == "started\n"


def test_several_hanging_workers_end_together(setup: TeamSetup, tmp_path: Path) -> None:
    mock = MockAgent({"planner": plan(subgoal("a"), subgoal("b"), subgoal("c"))})
    worker = CliAgent.command(["sleep", "614"])
    began = time.monotonic()
    outcome = setup.orchestrator(mock, worker=worker, budget=Budget(max_seconds=3)).run("x", "y")
    assert outcome.status == "budget"
    assert time.monotonic() - began < 8
    assert setup.processes() == []


def test_calls_of_agents_are_counted_the_intake_too(setup: TeamSetup) -> None:
    agent = MockAgent()
    outcome = setup.orchestrator(agent, budget=Budget(max_agent_calls=2)).run("x")
    assert [request.title for request in agent.requests] == ["Intake", "Plan"]
    assert (outcome.status, outcome.spent.agent_calls) == ("budget", 2)
    assert outcome.reason == "Limit of 2 agent calls reached."


def test_work_that_was_merged_before_the_limit_stays_on_the_branch(setup: TeamSetup) -> None:
    budget = Budget(max_agent_calls=2)
    agent = MockAgent({"planner": plan(subgoal("a"), subgoal("b", "a"))})
    outcome = setup.orchestrator(agent, budget=budget).run("x", "y")
    assert outcome.status == "budget"
    assert setup.show(outcome.branch, "MOCK.md") == "- part a"


def test_money_ends_an_agent_that_is_still_at_work(setup: TeamSetup, tmp_path: Path) -> None:
    playbook = tmp_path / "playbook.toml"
    spends = {"usage": {"input": 10, "output": 10, "cost": 0.5}}
    playbook.write_text(
        "\n".join(
            [
                rule("You plan the work", spends, answer(plan(subgoal("a")))),
                rule("^WORK-a", {"write": "a.txt"}, spends, {"sleep": 1}, spends, {"hang": True}),
            ]
        ),
        encoding="utf-8",
    )
    agent = CliAgent("rehearsal", AgentSettings(playbook=str(playbook)), grace_s=0.5)
    began = time.monotonic()
    outcome = setup.orchestrator(agent, budget=Budget(max_usd=1.2)).run("x", "y")
    assert (outcome.status, outcome.reason) == ("budget", "Budget of $1.2 reached.")
    assert outcome.spent.cost_usd == pytest.approx(1.5)
    assert time.monotonic() - began < 20


def test_money_that_responses_tell_of_is_counted(setup: TeamSetup) -> None:
    def work(request: Request) -> Response:
        assert request.cwd is not None
        with open(request.cwd / "n.txt", "a", encoding="utf-8") as file:
            file.write("more\n")
        return Response("Done.", cost_usd=0.4)

    agent = MockAgent({"worker": work, "reviewer": NO})
    outcome = setup.orchestrator(agent, budget=Budget(max_usd=1.0)).run("x", "y")
    assert outcome.status == "budget"
    assert outcome.spent.cost_usd == pytest.approx(1.2)
    # What the last of the money paid for is on the branch.
    assert setup.show(outcome.branch, "n.txt").splitlines() == ["more"] * 3


def test_the_time_ends_a_check_too(setup: TeamSetup) -> None:
    agent = MockAgent({"reviewer": YES})
    orchestrator = setup.orchestrator(agent, verify="sleep 615", budget=Budget(max_seconds=4))
    began = time.monotonic()
    outcome = orchestrator.run("x", "y")
    assert (outcome.status, outcome.reason) == ("budget", "Time limit of 4 s reached.")
    assert outcome.result is not None
    # A check that was cut short is not one that failed.
    assert outcome.result.iterations[0].checks == []
    assert time.monotonic() - began < 10
    assert setup.processes() == []


def test_python_code_that_does_not_end_is_left_behind(setup: TeamSetup) -> None:
    def never(request: Request) -> str:
        time.sleep(30)
        return "too late"

    agent = MockAgent({"worker": never})
    began = time.monotonic()
    outcome = setup.orchestrator(agent, budget=Budget(max_seconds=2)).run("x", "y")
    assert outcome.status == "budget"
    assert time.monotonic() - began < 8


def test_python_code_that_listens_ends_at_once(setup: TeamSetup) -> None:
    told: list[str] = []

    def listens(request: Request) -> str:
        request.stop.wait(30)
        told.append(request.stop.reason)
        return "stopped"

    outcome = setup.orchestrator(MockAgent({"worker": listens}), budget=Budget(max_seconds=2)).run(
        "x", "y"
    )
    assert outcome.status == "budget"
    assert "have passed" in told[0]


def test_iterations_are_a_budget(setup: TeamSetup) -> None:
    outcome = setup.orchestrator(MockAgent({"reviewer": NO}), budget=Budget(max_iterations=2)).run(
        "x", "y"
    )
    assert (outcome.status, outcome.iterations) == ("budget", 2)
    assert "the reviewer says no to goal complete" in outcome.reason
