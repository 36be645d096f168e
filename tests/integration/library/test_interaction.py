"""Questions before the work: nobody, a person at the terminal, or later with a token."""

import threading
from datetime import datetime

import pytest
from tests.integration.library.team_setup import YES, TeamSetup, prompts

from kapelle import Console, Interaction, InvalidInput, MockAgent, Suspend

INTAKE = {
    "success_criteria": ["the server answers"],
    "questions": ["Which framework?", "Which port?"],
}


def _agent() -> MockAgent:
    return MockAgent({"Intake": INTAKE})


def test_by_default_nobody_is_asked(setup: TeamSetup) -> None:
    agent = _agent()
    outcome = setup.orchestrator(agent).run("A server")
    assert outcome.ok
    assert outcome.result is not None
    assert outcome.result.success_criteria == ["the server answers"]
    assert "Which framework?" not in prompts(agent, "Plan")[0]
    # With criteria and nobody to ask there is nothing to prepare.
    agent = _agent()
    setup.orchestrator(agent).run("A server", "it answers")
    assert prompts(agent, "Intake") == []


def test_a_person_at_the_terminal_is_asked_in_the_calling_thread(
    setup: TeamSetup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads: list[threading.Thread] = []
    answers = iter(["it answers; it is fast", "flask", ""])

    def typed(_prompt: str = "") -> str:
        threads.append(threading.current_thread())
        return next(answers)

    monkeypatch.setattr("builtins.input", typed)
    agent = _agent()
    outcome = setup.orchestrator(agent, interaction=Console()).run("A server")
    assert outcome.ok
    assert threads == [threading.current_thread()] * 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["It is reached when", "- the server answers"]
    assert lines[-2:] == INTAKE["questions"]
    assert outcome.result is not None
    assert outcome.result.success_criteria == ["it answers", "it is fast"]
    assert "Which framework? flask" in prompts(agent, "Plan")[0]


def test_a_run_that_needs_answers_is_left_off_and_taken_up(setup: TeamSetup) -> None:
    agent = _agent()
    orchestrator = setup.orchestrator(agent, interaction=Suspend())
    outcome = orchestrator.run("A server")
    assert (outcome.status, outcome.questions) == ("needs_input", tuple(INTAKE["questions"]))
    assert outcome.token is not None
    assert setup.branches() == {"main"}
    assert setup.worktrees() == [str(setup.repo)]
    # Another object in another process may go on with it.
    again = setup.orchestrator(agent, interaction=Suspend())
    outcome = again.resume(outcome.token, ["flask", "8080"])
    assert outcome.ok, outcome.reason
    assert len(prompts(agent, "Intake")) == 1
    assert "Which framework? flask" in prompts(agent, "Plan")[0]
    assert "Which port? 8080" in prompts(agent, "Plan")[0]
    # The call that was made before counts.
    assert outcome.spent.agent_calls == 4
    assert outcome.result is not None
    assert outcome.result.success_criteria == ["the server answers"]


async def test_it_is_taken_up_in_an_event_loop_and_by_question(setup: TeamSetup) -> None:
    agent = _agent()
    outcome = await setup.orchestrator(agent, interaction=Suspend()).run_async("A server")
    assert outcome.token is not None
    answers = {"Which port?": "1", "Which framework?": "f"}
    outcome = await setup.orchestrator(agent).resume_async(outcome.token, answers)
    assert outcome.ok, outcome.reason
    assert "Which port? 1" in prompts(agent, "Plan")[0]


def test_tokens_that_are_not_whole_or_not_ours_are_refused(setup: TeamSetup) -> None:
    orchestrator = setup.orchestrator(_agent(), interaction=Suspend())
    token = orchestrator.run("A server").token
    assert token is not None
    middle = len(token) // 2
    other = "A" if token[middle] != "A" else "B"
    for wrong in (token[:-1], token[:middle], token[:middle] + other + token[middle + 1 :]):
        with pytest.raises(InvalidInput, match="not a token"):
            orchestrator.resume(wrong, ["a", "b"])
    for foreign in ("", "run_01m7fskm329nfyjs2f3f64ehrj", "eyJnb2FsIjoieCJ9", "kapelle1.", "ü.ü.ü"):
        with pytest.raises(InvalidInput, match="not a token"):
            orchestrator.resume(foreign, ["a", "b"])


def test_every_question_needs_an_answer(setup: TeamSetup) -> None:
    orchestrator = setup.orchestrator(_agent(), interaction=Suspend())
    token = orchestrator.run("A server").token
    assert token is not None
    with pytest.raises(InvalidInput, match="2 questions, and 1 answers"):
        orchestrator.resume(token, ["flask"])
    with pytest.raises(InvalidInput, match="Which port"):
        orchestrator.resume(token, {"Which framework?": "flask"})


def test_time_to_think_does_not_count(setup: TeamSetup) -> None:
    class Slow(Interaction):
        def ask(self, question: str, default: str | None = None) -> str:
            threading.Event().wait(1)
            return "x"

    outcome = setup.orchestrator(_agent(), interaction=Slow()).run("A server")
    began = setup.events[0]["at"]
    ended = setup.events[-1]["at"]
    assert outcome.ok
    whole = (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    assert whole - outcome.spent.seconds == pytest.approx(2, abs=0.7)


def test_an_interaction_that_fails_fails_the_run(setup: TeamSetup) -> None:
    class Broken(Interaction):
        def ask(self, question: str, default: str | None = None) -> str:
            raise RuntimeError("the line is dead")

    with pytest.raises(RuntimeError, match="the line is dead"):
        setup.orchestrator(_agent(), interaction=Broken()).run("A server")
    assert setup.worktrees() == [str(setup.repo)]


def test_the_intake_can_be_had_apart_from_the_work(setup: TeamSetup) -> None:
    agent = MockAgent()
    orchestrator = setup.orchestrator(agent, interaction=Suspend(confirms=True))
    proposed = orchestrator.run("A server")
    assert (proposed.status, len(agent.requests)) == ("needs_input", 1)
    assert proposed.result is not None
    assert proposed.result.success_criteria == ["the goal is reached"]
    assert proposed.token is not None
    outcome = orchestrator.resume(proposed.token, ["yes"])
    assert outcome.ok, outcome.reason
    assert outcome.result is not None
    assert outcome.result.success_criteria == ["the goal is reached"]


def test_the_reviewer_asks_as_well_and_the_next_plan_knows_the_answer(setup: TeamSetup) -> None:
    class Person(Interaction):
        def ask(self, question: str, default: str | None = None) -> str:
            return "blue" if question == "Which colour?" else "no idea"

    no = {**YES, "goal_complete": False, "questions": ["Which colour?", "How large?"]}
    agent = MockAgent({"reviewer": [no, YES]})
    options = {"interaction": Person(), "max_questions": 1}
    outcome = setup.orchestrator(agent, **options).run("A page", "it is there")
    assert (outcome.status, outcome.iterations) == ("completed", 2)
    assert "Which colour? blue" in prompts(agent, "Plan")[1]
    assert "How large?" not in prompts(agent, "Plan")[1]
    assert "at most 1 questions" in prompts(agent, "Review")[0]
    # Where nobody is there, what was done is not thrown away for a question.
    agent = MockAgent({"reviewer": [no, YES]})
    outcome = setup.orchestrator(agent, interaction=Suspend()).run("A page", "it is there")
    assert (outcome.status, outcome.iterations) == ("completed", 2)
