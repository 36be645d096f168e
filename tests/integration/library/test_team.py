"""A team in the calling process reaches its goal, or says truly why not."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.support.ensembles import diamond_team
from tests.e2e.support.repositories import git
from tests.integration.library.team_setup import (
    NO,
    YES,
    TeamSetup,
    Together,
    plan,
    prompts,
    subgoal,
    writes,
)

from kapelle import (
    Agent,
    Budget,
    CheckSpec,
    CliAgent,
    InvalidInput,
    MockAgent,
    Orchestrator,
    Request,
    Response,
    WorkspaceError,
)
from kapelle.settings import AgentSettings


def test_the_shortest_program_completes_and_touches_no_checkout(setup: TeamSetup) -> None:
    outcome = setup.orchestrator(MockAgent()).run(goal="Say hello.")
    assert (outcome.status, outcome.ok, outcome.iterations) == ("completed", True, 1)
    assert outcome.branch is not None
    assert outcome.branch.startswith("kapelle/")
    assert setup.files(outcome.branch) == {"README.md", "sub/x.txt", "MOCK.md"}
    assert outcome.commit == git(setup.repo, "rev-parse", outcome.branch)
    assert outcome.worktree is not None
    assert (outcome.worktree / "MOCK.md").read_text(encoding="utf-8") == "- All of it\n"
    assert outcome.spent.agent_calls == 4
    assert setup.is_untouched()
    assert setup.kinds()[0] == "run.started"
    assert setup.kinds()[-1] == "run.completed"


def test_what_lies_in_the_checkout_is_the_worktrees_for_its_checks(
    setup: TeamSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{setup.repo}/sub:{setup.repo}/gone")
    check = 'test "$PYTHONPATH" = "$PWD/sub"'
    outcome = setup.orchestrator(MockAgent(), verify=[check]).run("Say hello.", "said")
    assert outcome.ok, outcome.reason


def test_four_subgoals_in_a_diamond_become_one_branch(setup: TeamSetup, tmp_path: Path) -> None:
    playbook = tmp_path / "playbook.toml"
    playbook.write_text(diamond_team(), encoding="utf-8")
    agent = CliAgent("rehearsal", AgentSettings(playbook=str(playbook)))
    check = "test -f d.txt && test \"$(cat all.txt | tr -d '\\n')\" = abc"
    outcome = setup.orchestrator(agent, verify=[check]).run("All four", ["they are there"])
    assert outcome.ok, outcome.reason
    assert {"a.txt", "b.txt", "c.txt", "d.txt", "all.txt"} <= setup.files(outcome.branch)
    assert outcome.result is not None
    (iteration,) = outcome.result.iterations
    assert [item.status for item in iteration.outcomes] == ["merged"] * 4
    assert [check.passed for check in iteration.checks] == [True]
    # Nothing is left but the run's own worktree.
    assert setup.worktrees() == [str(setup.repo), str(outcome.worktree)]
    assert setup.is_untouched()


def test_each_worker_has_a_worktree_of_its_own_and_two_work_at_once(setup: TeamSetup) -> None:
    agent = MockAgent({"planner": plan(subgoal("a"), subgoal("b")), "worker": Together(2)})
    outcome = setup.orchestrator(agent).run("Two at once", "both are there")
    assert outcome.ok, outcome.reason
    assert {"part-a.txt", "part-b.txt"} <= setup.files(outcome.branch)
    places = {request.cwd for request in agent.requests}
    assert len(places) == len(agent.requests) == 4
    assert not any(place and place.is_relative_to(setup.repo) for place in places)


def test_no_more_workers_than_allowed(setup: TeamSetup) -> None:
    agent = MockAgent({"planner": plan(subgoal("a"), subgoal("b")), "worker": Together(2)})
    orchestrator = setup.orchestrator(
        agent, max_workers=1, budget=Budget(max_iterations=1, max_task_retries=0, max_seconds=3)
    )
    # The first one waits in vain for the second, until the time is over.
    assert orchestrator.run("One at a time", "both").status == "budget"
    assert [request.role for request in agent.requests] == ["planner", "worker"]


def test_a_conflict_is_resolved_by_a_worker(setup: TeamSetup) -> None:
    def resolve(request: Request) -> str:
        assert request.cwd is not None
        text = (request.cwd / "README.md").read_text(encoding="utf-8")
        assert "<<<<<<<" in text
        assert "from a" in text
        assert "from b" in text
        (request.cwd / "README.md").write_text("from a and b\n", encoding="utf-8")
        return "Both are served."

    agent = MockAgent(
        {
            "planner": plan(subgoal("a"), subgoal("b")),
            "part a": writes("README.md", "from a\n"),
            "part b": writes("README.md", "from b\n"),
            "part a (conflict)": resolve,
            "part b (conflict)": resolve,
        }
    )
    outcome = setup.orchestrator(agent).run("Both in one file", "both are there")
    assert outcome.ok, outcome.reason
    assert setup.show(outcome.branch, "README.md") == "from a and b"
    assert len([request for request in agent.requests if "conflict" in request.title]) == 1
    assert setup.is_untouched()


def test_a_conflict_left_in_the_files_is_not_merged(setup: TeamSetup) -> None:
    agent = MockAgent(
        {
            "planner": plan(subgoal("a"), subgoal("b")),
            "part a": writes("README.md", "from a\n"),
            "part b": writes("README.md", "from b\n"),
            "worker": "I resolved it.",
            "reviewer": NO,
        }
    )
    budget = Budget(max_iterations=1)
    outcome = setup.orchestrator(agent, budget=budget).run("Both in one file", "both")
    assert outcome.result is not None
    statuses = [item.status for item in outcome.result.iterations[0].outcomes]
    assert sorted(statuses) == ["conflict", "merged"]
    assert "<<<<<<<" not in setup.show(outcome.branch, "README.md")


def test_a_file_changed_here_and_deleted_there_is_a_conflict_until_somebody_decides(
    setup: TeamSetup,
) -> None:
    def deletes(request: Request) -> str:
        assert request.cwd is not None
        (request.cwd / "README.md").unlink()
        return "Deleted."

    parts = {
        "planner": plan(subgoal("a"), subgoal("b")),
        "part a": deletes,
        "part b": writes("README.md", "from b\n"),
        "reviewer": NO,
    }
    budget = Budget(max_iterations=1)
    idle = MockAgent({**parts, "worker": "I resolved it."})
    outcome = setup.orchestrator(idle, budget=budget).run("Both", "both")
    assert outcome.result is not None
    statuses = [item.status for item in outcome.result.iterations[0].outcomes]
    assert sorted(statuses) == ["conflict", "merged"]
    decided = MockAgent({**parts, "worker": writes("README.md", "kept\n"), "reviewer": YES})
    outcome = setup.orchestrator(decided, budget=budget).run("Both", "both")
    assert outcome.ok, outcome.reason
    assert setup.show(outcome.branch, "README.md") == "kept"


def test_a_worker_that_only_says_that_it_is_done_is_caught(setup: TeamSetup) -> None:
    agent = MockAgent({"worker": "All done, every file is written.", "reviewer": NO})
    outcome = setup.orchestrator(agent, budget=Budget(max_iterations=1)).run("Do it", "done")
    assert outcome.status == "budget"
    assert outcome.result is not None
    (item,) = outcome.result.iterations[0].outcomes
    assert (item.status, item.reason) == ("failed", "failed its check: diff_not_empty")
    first, again = [request for request in agent.requests if request.title == "All of it"]
    assert "The agent changed nothing." not in first.prompt
    assert "The agent changed nothing." in again.prompt
    assert (outcome.branch, outcome.commit, outcome.worktree) == (None, None, None)
    assert setup.branches() == {"main"}
    assert setup.is_untouched()


def test_a_retry_begins_anew_and_is_told_why(setup: TeamSetup) -> None:
    def breaks_down(request: Request) -> str:
        writes("most.txt", "most of it\n")(request)
        raise RuntimeError("out of breath")

    agent = MockAgent({"worker": [breaks_down, writes("all.txt", "all of it\n")]})
    outcome = setup.orchestrator(agent).run("Do it", "done")
    assert outcome.ok, outcome.reason
    assert setup.show(outcome.branch, "all.txt") == "all of it"
    assert "most.txt" not in setup.files(outcome.branch)
    assert "it raised RuntimeError: out of breath" in agent.requests[2].prompt


def test_agents_that_raise_are_failed_results(setup: TeamSetup) -> None:
    class Broken(Agent):
        name = "broken"

        def run(self, request: Request) -> Response:
            raise ValueError("no model today")

    class Odd(Agent):
        def run(self, request: Request) -> Response:
            return "text"  # type: ignore[return-value]

    mock = MockAgent({"reviewer": NO})
    for worker, words in ((Broken(), "ValueError: no model today"), (Odd(), "returned a str")):
        budget = Budget(max_iterations=1)
        outcome = setup.orchestrator(mock, worker=worker, budget=budget).run("Do it", "done")
        assert outcome.result is not None
        assert words in str(outcome.result.iterations[0].outcomes[0].reason)
    outcome = setup.orchestrator(Broken(), budget=Budget(max_iterations=2)).run("Do it", "done")
    assert (outcome.status, outcome.iterations) == ("budget", 2)
    assert "ValueError: no model today" in outcome.reason


def test_the_reviewers_no_brings_another_iteration(setup: TeamSetup) -> None:
    agent = MockAgent({"reviewer": [NO, YES]})
    outcome = setup.orchestrator(agent).run("A zoo", "it has a zebra")
    assert (outcome.ok, outcome.iterations) == (True, 2)
    first, second = prompts(agent, "Plan")
    assert "zebra is missing" not in first
    assert "The zebra is missing." in second
    assert setup.show(outcome.branch, "MOCK.md").count("All of it") == 2


def test_a_failed_check_brings_another_iteration_that_reads_the_end_of_its_output(
    setup: TeamSetup,
) -> None:
    script = "echo THE-BEGINNING; seq 1 200000; echo THE-END; touch left.txt; test -f fixed.txt"
    check = CheckSpec(command=script, name="is it fixed?")
    agent = MockAgent({"worker": [writes("a.txt", "a\n"), writes("fixed.txt", "f\n")]})
    outcome = setup.orchestrator(agent, verify=[check]).run("Fix it", "fixed")
    assert (outcome.ok, outcome.iterations) == (True, 2)
    _, second = prompts(agent, "Plan")
    assert "THE-END" in second
    assert "exit code 1" in second
    assert "THE-BEGINNING" not in second
    # Without the check's yes nobody was asked for a review.
    assert len(prompts(agent, "Review")) == 1
    assert "left.txt" not in setup.files(outcome.branch)


def test_a_check_that_hangs_fails_at_its_own_time(setup: TeamSetup) -> None:
    orchestrator = setup.orchestrator(
        MockAgent(), verify="sleep 300", verify_timeout_s=0.5, budget=Budget(max_iterations=1)
    )
    outcome = orchestrator.run("Do it", "done")
    assert outcome.result is not None
    assert "timed out after 0.5 s" in outcome.result.iterations[0].checks[0].output


def test_a_plan_that_cannot_be_read_is_asked_for_once_more(setup: TeamSetup) -> None:
    agent = MockAgent({"planner": ["I would begin with a.", plan(subgoal("a"))]})
    outcome = setup.orchestrator(agent).run("Do it", "done")
    assert outcome.ok, outcome.reason
    assert "I would begin with a." in prompts(agent, "Plan (again)")[0]
    agent = MockAgent({"planner": ["Hm.", "Hm.", plan(subgoal("a"))]})
    outcome = setup.orchestrator(agent, budget=Budget(max_iterations=2)).run("Do it", "done")
    assert (outcome.ok, outcome.iterations) == (True, 2)


def test_what_planner_and_reviewer_write_is_thrown_away(setup: TeamSetup) -> None:
    def scribbles(request: Request) -> Mapping[str, Any]:
        writes("scribble.txt", "mine\n")(request)
        return plan(subgoal("a")) if request.role == "planner" else YES

    outcome = setup.orchestrator(MockAgent({"planner": scribbles, "reviewer": scribbles})).run(
        "Do it", "done"
    )
    assert outcome.ok, outcome.reason
    assert "scribble.txt" not in setup.files(outcome.branch)
    scribbled = [name for name in setup.branches() if "scribble.txt" in setup.files(name)]
    assert scribbled == []


def test_every_role_may_have_an_agent_of_its_own(setup: TeamSetup) -> None:
    main, planner, worker, reviewer = (MockAgent(name=name) for name in "mpwr")
    setup.orchestrator(main, planner=planner, worker=worker, reviewer=reviewer).run("x", "y")
    assert [request.role for request in planner.requests] == ["planner"]
    assert [request.role for request in worker.requests] == ["worker"]
    assert [request.role for request in reviewer.requests] == ["reviewer"]
    assert main.requests == []


def test_outside_of_git_it_works_in_place_one_after_another(
    tmp_path: Path, setup: TeamSetup
) -> None:
    directory = tmp_path / "plain"
    directory.mkdir()
    at_work: list[str] = []

    def alone(request: Request) -> str:
        at_work.append(request.title)
        assert at_work == [request.title]
        assert request.cwd == directory
        request.stop.wait(0.2)
        at_work.remove(request.title)
        (directory / f"{request.title}.txt").touch()
        return "Done."

    agent = MockAgent({"planner": plan(subgoal("a"), subgoal("b")), "worker": alone})
    outcome = setup.orchestrator(agent, cwd=directory, verify="test -f 'part b.txt'").run("x", "y")
    assert outcome.ok, outcome.reason
    assert {path.name for path in directory.iterdir()} == {"part a.txt", "part b.txt"}
    assert (outcome.branch, outcome.worktree) == (None, None)
    with pytest.raises(Exception, match="nothing to merge"):
        outcome.merge()


def test_isolation_can_be_declined(setup: TeamSetup) -> None:
    outcome = setup.orchestrator(MockAgent(), isolate=False).run("x", "y")
    assert outcome.ok
    assert (setup.repo / "MOCK.md").exists()
    assert setup.branches() == {"main"}


def test_in_a_subdirectory_it_works_in_that_of_the_worktree(setup: TeamSetup) -> None:
    outcome = setup.orchestrator(MockAgent(cwd=setup.repo / "sub"), cwd=None).run("x", "y")
    assert outcome.ok
    assert "sub/MOCK.md" in setup.files(outcome.branch)


def test_an_accepted_branch_is_merged_and_its_worktree_goes(setup: TeamSetup) -> None:
    outcome = setup.orchestrator(MockAgent()).run("x", "y")
    (setup.repo / "notes.txt").write_text("of the user\n", encoding="utf-8")
    commit = outcome.merge()
    assert git(setup.repo, "rev-parse", "main") == commit
    assert (setup.repo / "MOCK.md").exists()
    assert (setup.repo / "notes.txt").exists()
    assert setup.worktrees() == [str(setup.repo)]
    git(setup.repo, "branch", "release", "HEAD~1")
    outcome.merge(into="release")
    assert "MOCK.md" in setup.files("release")


def test_what_is_not_accepted_is_not_merged(setup: TeamSetup) -> None:
    orchestrator = setup.orchestrator(MockAgent({"reviewer": NO}), budget=Budget(max_iterations=1))
    outcome = orchestrator.run("x", "y")
    assert outcome.status == "budget"
    assert "MOCK.md" in setup.files(outcome.branch)
    with pytest.raises(Exception, match="not accepted"):
        outcome.merge()
    outcome.remove()
    assert setup.worktrees() == [str(setup.repo)]
    assert "MOCK.md" in setup.files(outcome.branch)
    assert setup.is_untouched()


async def test_it_also_runs_in_an_event_loop(setup: TeamSetup) -> None:
    outcome = await setup.orchestrator(MockAgent()).run_async("x", "y")
    assert outcome.ok
    # The other form works there as well, for programs such as notebooks.
    assert setup.orchestrator(MockAgent()).run("x", "y").ok


def test_an_observer_that_fails_spoils_nothing(setup: TeamSetup) -> None:
    def fails(_event: object) -> None:
        raise RuntimeError("cannot look")

    assert setup.orchestrator(MockAgent(), observer=fails).run("x", "y").ok


def test_an_agent_that_is_not_installed_ends_the_run_at_once(setup: TeamSetup) -> None:
    agent = CliAgent.command(["no-such-program-anywhere", "{prompt}"])
    outcome = setup.orchestrator(agent).run("x", "y")
    assert (outcome.status, outcome.spent.agent_calls) == ("failed", 1)
    assert "no-such-program-anywhere" in outcome.reason


def test_what_cannot_be_begun_is_refused(setup: TeamSetup, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="goal is empty"):
        setup.orchestrator(MockAgent()).run("  ")
    with pytest.raises(InvalidInput, match="no directory"):
        setup.orchestrator(MockAgent(), cwd=tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="belongs to git"):
        setup.orchestrator(MockAgent(), cwd=setup.repo / ".git")
    with pytest.raises(InvalidInput, match="max_workers"):
        setup.orchestrator(MockAgent(), max_workers=0)
    with pytest.raises(InvalidInput, match="no_error_in_output"):
        setup.orchestrator(MockAgent(), verify=["no_error_in_output"])
    with pytest.raises(InvalidInput, match="max_seconds"):
        Budget(max_seconds=0)
    with pytest.raises(InvalidInput, match="max_iterations"):
        Budget(max_iterations=0)
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    with pytest.raises(WorkspaceError, match="commit"):
        Orchestrator(MockAgent(), cwd=empty, home=setup.home).run("x")


def test_in_place_the_reviewer_is_asked_again_and_a_retry_is_told_the_truth(
    setup: TeamSetup, tmp_path: Path
) -> None:
    """Nothing in the prompts differs from one iteration to the next, for there is no log."""
    place = tmp_path / "plain"
    place.mkdir()
    tries: list[Request] = []

    def work(request: Request) -> Response:
        tries.append(request)
        (place / "half.txt").touch()
        return Response("Done.", ok=len(tries) > 1, reason="it broke off")

    agent = MockAgent({"worker": work, "reviewer": [NO, YES]})
    outcome = setup.orchestrator(agent, cwd=place).run("A page", "it is there")
    assert (outcome.status, outcome.iterations) == ("completed", 2)
    assert len(prompts(agent, "Review")) == 2
    assert "Part of its changes may be in your files" in tries[1].prompt
    assert "begin anew" not in tries[1].prompt


def test_events_tell_what_was_planned_said_and_found(setup: TeamSetup) -> None:
    agent = MockAgent({"reviewer": [NO, YES]})
    outcome = setup.orchestrator(agent, verify="exit 0").run("A file", "it is there")
    assert outcome.ok, outcome.reason
    facts = [event for event in setup.events if event["kind"] == "run.progress"]
    work = next(event for event in facts if event["phase"] == "work")
    assert work["subgoals"] == [{"id": "all", "title": "All of it"}]
    ended = next(event for event in facts if event["phase"] == "not done")
    assert ended["review"] == {**NO, "questions": [], "approves": False}
    assert (ended["merged"], ended["planned"]) == (1, 1)
    assert ended["checks"] == {"of": 1, "passed": 1}
    done = [event for event in setup.events if event["kind"] == "task.completed"]
    assert "Done." in {event["text"] for event in done}


def test_what_ended_it_is_a_field(setup: TeamSetup) -> None:
    outcome = setup.orchestrator(MockAgent()).run("A file", "it is there")
    assert outcome.result is not None
    assert (outcome.result.stopped_by, outcome.final_output) == ("goal", "Done.")
    few = Budget(max_iterations=1)
    gate = setup.orchestrator(MockAgent(), budget=few, verify="echo broken; exit 7")
    outcome = gate.run("A file", "it is there")
    assert outcome.result is not None
    assert (outcome.status, outcome.result.stopped_by) == ("budget", "max_iterations")
    assert [check.exit_code for check in outcome.result.iterations[0].checks] == [7]
    few = Budget(max_agent_calls=2)
    outcome = setup.orchestrator(MockAgent(), budget=few).run("A file", "it is there")
    assert outcome.result is not None
    assert (outcome.status, outcome.result.stopped_by) == ("budget", "budget")


def test_an_intake_that_fails_does_not_end_it(setup: TeamSetup) -> None:
    agent = MockAgent({"Intake": Response(ok=False, reason="quota exhausted")})
    outcome = setup.orchestrator(agent).run("A file")
    assert outcome.ok, outcome.reason
    assert outcome.result is not None
    assert outcome.result.success_criteria == ["The goal is reached as it is stated."]
    lacks = [event.get("lack") for event in setup.events if event.get("phase") == "intake"]
    assert lacks == [None, "Intake: quota exhausted"]


def test_a_plan_may_be_a_list_of_texts_and_work_may_be_text_alone(setup: TeamSetup) -> None:
    def work(request: Request) -> str:
        return f"About {request.title}: " + "strings " * 100

    answer = {**subgoal("c"), "text_only": True, "title": "the winds"}
    outcome = setup.orchestrator(
        MockAgent({"planner": plan(answer), "worker": work}), verify="true"
    ).run("A briefing", "it is complete")
    assert outcome.ok, outcome.reason
    assert outcome.final_output == "About the winds: " + "strings " * 100
    texts = {"subgoals": ["Write A\nin full", "Write B"]}
    agent = MockAgent({"planner": texts, "worker": Together(2)})
    outcome = setup.orchestrator(agent).run("Two files", "they are there")
    assert outcome.ok, outcome.reason
    assert {"Write-A.txt", "Write-B.txt"} <= setup.files(outcome.branch)


def test_standing_instructions_and_playwright_reach_those_whom_they_concern(
    setup: TeamSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npx = tmp_path / "bin" / "npx"
    npx.parent.mkdir()
    npx.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    npx.chmod(0o755)
    monkeypatch.setenv("PATH", str(npx.parent), prepend=os.pathsep)
    agent = MockAgent()
    options = {"system_prompt": "Speak French.", "playwright": True, "verify": "true"}
    outcome = setup.orchestrator(agent, **options).run("A page", "it is there")
    assert outcome.ok, outcome.reason
    assert outcome.result is not None
    checks = outcome.result.iterations[0].checks
    assert [(check.name, check.output) for check in checks] == [
        ("true", ""),
        ("npx playwright test", "playwright test"),
    ]
    assert {request.system for request in agent.requests} == {"Speak French."}
    told = {request.role for request in agent.requests if "Playwright" in request.prompt}
    assert told == {"worker", "reviewer"}
