"""What follows a failure: pauses of an account, agents that take over, a diagnosis, a new start."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.staging import kinds, set_up, shared_instance, until

DONE = '[[do]]\nresult = "done"'


@pytest.fixture(scope="module")
def kapelle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with shared_instance(tmp_path_factory.mktemp("failures")) as instance:
        yield instance


def limited(reset_in_s: int, then: str = "") -> str:
    """A part that is limited on its first attempt, and later does something else."""
    rule = f"[[rule]]\n[[rule.do]]\nrate_limit = {{ reset_in_s = {reset_in_s} }}\n"
    return f"[[rule]]\nattempt = 1\n{rule.partition(chr(10))[2]}{then}" if then else rule


def agents_of(task: Any) -> list[str]:
    return [attempt["agent"] for attempt in task["attempts"]]


def waiting(kapelle: Instance, task_id: str) -> Any:
    return kapelle.wait_for_status(task_id, "waiting", timeout_s=60)


def test_crashes_in_a_row_pause_an_agent_and_its_tasks_go_on_by_themselves(
    kapelle: Instance, tmp_path: Path
) -> None:
    settings = """
[failures]
breaker = 3
breaker_s = 6
[agents.brittle]
type = "command"
command = ["sh", "-c", "cat > /dev/null; test -f mended || kill -SEGV $$"]
"""
    set_up(tmp_path, settings)
    for _ in range(3):
        task = kapelle.wait(kapelle.submit("break", tmp_path, agent="brittle"))
        assert (task["status"], task["attempts"][0]["failure"]) == ("failed", "crash")
    (tmp_path / "mended").touch()
    task_id = kapelle.submit("work", tmp_path, agent="brittle")
    task = waiting(kapelle, task_id)
    assert task["reason"] == "brittle failed 3 times in a row"
    assert task["not_before"]
    assert (task["attempts"], task["waiting_for"]) == ([], "rate_limit")
    shown = kapelle.cli("list", "--status", "waiting").stdout
    assert task_id in shown
    assert "brittle failed 3 times in a row" in shown
    assert "goes on" in shown
    paused = kapelle.cli("events", "--after", "0").stdout
    assert "account.paused" in paused
    assert "brittle failed 3 times in a row; it pauses until " in paused
    assert kapelle.wait(task_id)["status"] == "completed"


def test_a_success_between_crashes_keeps_an_agent_from_being_paused(
    kapelle: Instance, tmp_path: Path
) -> None:
    settings = """
[failures]
breaker = 2
breaker_s = 600
[agents.moody]
type = "command"
command = ["sh", "-c", "grep -q well || kill -SEGV $$"]
"""
    set_up(tmp_path, settings)
    wanted = {"badly": "failed", "well": "completed"}
    for prompt in ("badly", "well", "badly", "well"):
        task = kapelle.wait(kapelle.submit(prompt, tmp_path, agent="moody"))
        assert task["status"] == wanted[prompt]


def test_one_tasks_limit_makes_the_others_of_its_agent_wait_visibly(
    kapelle: Instance, tmp_path: Path
) -> None:
    book = """
[[rule]]
match = "first"
attempt = 1
do = [{ rate_limit = { reset_in_s = 8 } }]
[[rule]]
do = [{ result = "done" }]
"""
    set_up(tmp_path, shared=book, unaffected=DONE)
    first = kapelle.submit("first", tmp_path, agent="shared")
    waiting(kapelle, first)
    others = [kapelle.submit(f"other {n}", tmp_path, agent="shared") for n in range(2)]
    for task_id in others:
        task = waiting(kapelle, task_id)
        assert task["reason"] == "shared is rate-limited"
        assert (task["waiting_for"], task["attempts"]) == ("rate_limit", [])
        shown = " ".join(kapelle.cli("status", task_id).stdout.split())
        assert "shared is rate-limited; goes on" in shown
    other = kapelle.submit("other agent", tmp_path, agent="unaffected")
    assert kapelle.wait(other)["status"] == "completed"
    for task_id in [first, *others]:
        assert kapelle.wait(task_id)["status"] == "completed"
    assert len(kapelle.task(first)["attempts"]) == 2


def test_a_task_that_is_always_refused_does_not_stop_the_others(
    kapelle: Instance, tmp_path: Path
) -> None:
    """Its account pauses until the reset; then somebody else tries first, and alone."""
    book = """
[[rule]]
match = "stuck"
do = [{ rate_limit = { reset_in_s = 1 } }]
[[rule]]
do = [{ sleep = 1 }, { result = "done" }]
"""
    set_up(tmp_path, stuck=book)
    stuck = kapelle.submit("stuck", tmp_path, agent="stuck")
    until(lambda: len(kapelle.task(stuck)["attempts"]) > 2, "the third refusal")
    others = [kapelle.submit(f"other {n}", tmp_path, agent="stuck") for n in range(3)]
    ended = [kapelle.wait(task_id) for task_id in others]
    assert [task["status"] for task in ended] == ["completed"] * 3
    first = min(task["attempts"][0]["ended_at"] for task in ended)
    began = sorted(task["attempts"][0]["started_at"] for task in ended)
    assert began[1] >= first, "one goes first"
    task = waiting(kapelle, stuck)
    assert task["reason"].startswith("stuck was refused ")
    assert task["reason"].endswith(" times in a row")
    before = len(task["attempts"])
    until(lambda: len(kapelle.task(stuck)["attempts"]) > before, "one more refusal")
    # Others have just succeeded, so that it is refused is its own affair.
    late = kapelle.wait(kapelle.submit("one more", tmp_path, agent="stuck"))
    assert (late["status"], len(late["attempts"])) == ("completed", 1)
    kapelle.post(f"/tasks/{stuck}/cancel")


def test_after_a_limit_the_task_that_was_not_refused_is_tried_first(
    kapelle: Instance, tmp_path: Path
) -> None:
    book = """
[[rule]]
match = "refused"
do = [{ rate_limit = { reset_in_s = 2 } }]
[[rule]]
do = [{ result = "done" }]
"""
    set_up(tmp_path, turns=book)
    refused = kapelle.submit("refused", tmp_path, agent="turns")
    waiting(kapelle, refused)
    other = kapelle.submit("other", tmp_path, agent="turns")
    (attempt,) = kapelle.wait(other)["attempts"]
    begun = [one["started_at"] for one in kapelle.task(refused)["attempts"]]
    assert len([at for at in begun if at < attempt["started_at"]]) == 1
    kapelle.post(f"/tasks/{refused}/cancel")


def test_a_limit_of_one_model_leaves_the_others_free(kapelle: Instance, tmp_path: Path) -> None:
    settings = """
[agents.models]
type = "command"
output = "events"
command = ["sh", "-c", "test $0 = sonnet && exec echo $DONE; echo $NO; exit 1", "{model}"]
[agents.models.env]
DONE = '{"kind": "result", "text": "done"}'
NO = '{"kind": "error", "text": "Opus weekly limit reached"}'
"""
    set_up(tmp_path, settings)
    refused = kapelle.submit("refuse", tmp_path, agent="models", model="opus")
    waiting(kapelle, refused)
    same = kapelle.submit("go", tmp_path, agent="models", model="opus")
    assert waiting(kapelle, same)["reason"] == "models is rate-limited for opus"
    other = kapelle.wait(kapelle.submit("go", tmp_path, agent="models", model="sonnet"))
    assert (other["status"], other["attempts"][0]["failure"]) == ("completed", None)
    for task_id in (refused, same):
        kapelle.post(f"/tasks/{task_id}/cancel")


def test_fallback_agents_take_over_in_order(kapelle: Instance, tmp_path: Path) -> None:
    book = """
[[rule]]
match = '(?s)Paint it.*The previous attempt.*rate limit is reached'
do = [{ result = "painted" }]
"""
    set_up(tmp_path, one=limited(600), two=limited(600), three=book, four=DONE)
    task_id = kapelle.submit(
        "Paint it", tmp_path, agent="one", fallback_agents=["two", "three", "four"]
    )
    task = kapelle.wait(task_id)
    assert (task["status"], task["result"]) == ("completed", "painted"), task["reason"]
    assert agents_of(task) == ["one", "two", "three"]
    assert [attempt["failure"] for attempt in task["attempts"]] == ["rate_limit"] * 2 + [None]
    later = kapelle.wait(
        kapelle.submit("More", tmp_path, agent="one", fallback_agents=["two", "four"])
    )
    assert agents_of(later) == ["four"], "who is known to be limited is not even asked"
    assert f"{task_id}  completed, not verified  three" in kapelle.cli("list").stdout
    shown = kapelle.cli("status", task_id).stdout
    assert "agent      one, then two, three, four" in shown
    assert "by two" in shown


@pytest.mark.parametrize(("one_s", "two_s", "heir"), [(6, 600, "first"), (600, 6, "second")])
def test_when_all_are_limited_a_task_waits_for_the_earliest_reset(
    kapelle: Instance, tmp_path: Path, one_s: int, two_s: int, heir: str
) -> None:
    names = {"first": f"first{one_s}", "second": f"second{one_s}"}
    then = '[[rule]]\n[[rule.do]]\nresult = "done"\n'
    own = {
        names["first"]: limited(one_s, then),
        # The second agent makes the second attempt, and is limited on that one.
        names["second"]: limited(two_s, then).replace("attempt = 1", "attempt = 2"),
    }
    set_up(tmp_path, **own)
    task_id = kapelle.submit(
        "Go", tmp_path, agent=names["first"], fallback_agents=[names["second"]]
    )
    task = until(lambda: _all_limited(kapelle, task_id), "the wait")
    left_s = _moment(task["not_before"]) - _moment(task["attempts"][1]["ended_at"])
    assert left_s < 20, task["reason"]
    assert "goes on in" in kapelle.cli("status", task_id).stdout
    task = kapelle.wait(task_id)
    assert task["status"] == "completed"
    assert agents_of(task) == [names["first"], names["second"], names[heir]]


def _all_limited(kapelle: Instance, task_id: str) -> Any:
    task = kapelle.task(task_id)
    return task if task["status"] == "waiting" and len(task["attempts"]) == 2 else None


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_what_a_person_said_is_not_lost_to_a_limit(kapelle: Instance, tmp_path: Path) -> None:
    book = """
[[rule]]
attempt = 1
do = [{ ask = "Which colour?" }]
[[rule]]
attempt = 2
do = [{ rate_limit = { reset_in_s = 2 } }]
[[rule]]
match = "purple"
do = [{ result = "purple it is" }]
"""
    set_up(tmp_path, painter=book)
    task_id = kapelle.submit("Paint it", tmp_path, agent="painter")
    assert kapelle.wait(task_id)["waiting_for"] == "input"
    kapelle.cli("continue", task_id, "purple", check=True)
    task = kapelle.wait(task_id)
    assert (task["status"], task["result"]) == ("completed", "purple it is"), task["reason"]


ANALYZE = {"policy": "analyze", "max_attempts": 2, "delay_s": 0.1}
HAMMERING = """
[[rule]]
match = '(?s)Why the previous attempt failed.*Use a bigger hammer'
do = [{ result = "hammered" }]
[[rule]]
do = [{ say = "The hammer is too small." }, { fail = "It does not move." }]
"""


def test_a_failure_is_analyzed_before_the_next_attempt(kapelle: Instance, tmp_path: Path) -> None:
    judge = """
[[rule]]
match = '(?s)Diagnose the failure.*Hammer it in.*The hammer is too small'
do = [{ result = "Use a bigger hammer." }]
"""
    set_up(tmp_path, '[roles]\njudge = "foreman"\n', smith=HAMMERING, foreman=judge)
    task_id = kapelle.submit("Hammer it in", tmp_path, agent="smith", retry=ANALYZE)
    task = kapelle.wait(task_id)
    assert (task["status"], task["result"]) == ("completed", "hammered"), task["reason"]
    assert [a["diagnosis"] for a in task["attempts"]] == [None, "Use a bigger hammer."]
    assert kinds(kapelle, task_id, "attempt.diagnosed") == [
        {"agent": "foreman", "text": "Use a bigger hammer."}
    ]
    assert "Use a bigger hammer." in kapelle.cli("status", task_id).stdout
    shown = kapelle.cli("events", "--after", "0", "--task", task_id).stdout
    assert "by foreman: Use a bigger hammer." in shown


def test_a_diagnosis_that_cannot_be_had_is_a_warning(kapelle: Instance, tmp_path: Path) -> None:
    judge = '[[do]]\nfail = "I have a day off."'
    set_up(tmp_path, '[roles]\njudge = "idler"\n', smith2=HAMMERING, idler=judge)
    task = kapelle.wait(kapelle.submit("Hammer it", tmp_path, agent="smith2", retry=ANALYZE))
    assert (task["status"], len(task["attempts"])) == ("failed", 2)
    [warning] = task["attempts"][1]["warnings"]
    assert warning["text"] == "idler gave no diagnosis: I have a day off."


TIERS = """
[difficulty]
classify = true
{agent}
[agents.player]
type = "rehearsal"
model = "usual"
models = {{ simple = "small", complex = "large" }}
"""


@pytest.mark.parametrize(
    ("verdict", "model", "words"),
    [
        ('result = "It is complex."', "large", "complex: grader said so"),
        ('fail = "no idea"', "usual", "medium: grader could not tell: no idea"),
        ('result = "hm"', "usual", "medium: grader could not tell: it replied 'hm'"),
    ],
)
def test_an_agent_may_judge_the_difficulty(
    kapelle: Instance, tmp_path: Path, verdict: str, model: str, words: str
) -> None:
    grader = f"[[rule]]\nmatch = '(?s)Judge how difficult.*Fix the typo'\n[[rule.do]]\n{verdict}\n"
    set_up(tmp_path, TIERS.format(agent='agent = "grader"'), grader=grader)
    task = kapelle.wait(kapelle.submit("Fix the typo", tmp_path, agent="player"))
    attempt = task["attempts"][0]
    assert (attempt["model"], attempt["model_reason"]) == (model, words)
    assert f"by player with {model} ({words})" in kapelle.cli("status", task["id"]).stdout


def test_its_own_agent_judges_the_difficulty_where_no_other_does(
    kapelle: Instance, tmp_path: Path
) -> None:
    judging = "[[rule]]\nmatch = 'Judge how difficult'\n[[rule.do]]\nresult = 'simple'\n"
    own = f"{judging}[[rule]]\ndo = []\n"
    player = f'playbook = "{tmp_path}/own.toml"'
    (tmp_path / "own.toml").write_text(own, encoding="utf-8")
    set_up(tmp_path, TIERS.format(agent="") + player)
    task = kapelle.wait(kapelle.submit("Fix the typo", tmp_path, agent="player"))
    assert task["attempts"][0]["model_reason"] == "simple: player said so"


LOST = r"""[
  { print = "{\"kind\": \"error\", \"name\": \"session_lost\", \"text\": \"gone\"}\n" },
  { exit = 1 },
]"""


def test_a_lost_session_leads_to_a_new_conversation_that_is_told_everything(
    kapelle: Instance, tmp_path: Path
) -> None:
    book = f"""
[[rule]]
attempt = 1
do = [{{ session = "s-1" }}, {{ say = "The left half is painted." }}, {{ fail = "tired" }}]
[[rule]]
attempt = 2
match = '^Now the right half'
do = {LOST}
[[rule]]
match = '(?s)^Paint it.*The left half is painted.*Now the right half'
do = [{{ result = "painted" }}]
"""
    set_up(tmp_path, forgetful=book)
    task_id = kapelle.submit("Paint it", tmp_path, agent="forgetful")
    kapelle.wait(task_id)
    kapelle.cli("continue", task_id, "Now the right half", check=True)
    task = kapelle.wait(task_id)
    assert (task["status"], task["result"]) == ("completed", "painted"), task["reason"]
    assert [a["failure"] for a in task["attempts"]] == ["task", "session_lost", None]


def test_an_agent_that_loses_every_session_is_not_asked_for_ever(
    kapelle: Instance, tmp_path: Path
) -> None:
    set_up(tmp_path, hopeless=f"[[rule]]\ndo = {LOST}")
    task = kapelle.wait(kapelle.submit("Paint it", tmp_path, agent="hopeless"))
    assert task["status"] == "failed"
    assert len(task["attempts"]) <= 2
