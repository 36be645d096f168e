"""Hints, answers and messages to an agent at work: part of the conversation, with their state."""

import json
from pathlib import Path

from tests.e2e.support.ensembles import rule, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.support.staging import until
from tests.e2e.test_knowledge import hits
from tests.e2e.test_questions import asking


def person_lines(kapelle: Instance, task_id: str) -> list[tuple[str, str, str]]:
    """Kind, text and state of what people said, as a transcript tells it."""
    _, stream = kapelle.request("GET", f"/tasks/{task_id}/transcript")
    found = []
    for block in stream.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if fields.get("event") == "person":
            data = json.loads(fields["data"])
            found.append((data["message"], data["text"], data["state"]))
    return found


def test_a_hint_is_in_the_conversation_the_history_and_the_search(
    kapelle: Instance, repository: Path
) -> None:
    with_playbook(kapelle, rule("Mend the import", {"fail": "no ideas"}))
    task_id = kapelle.submit("Mend the import", repository)
    kapelle.wait(task_id)
    kapelle.post(f"/tasks/{task_id}/resume", {"message": "Run it with xylophone"})
    kapelle.wait(task_id)
    assert person_lines(kapelle, task_id) == [("hint", "Run it with xylophone", "delivered")]
    [message] = kapelle.get(f"/tasks/{task_id}/messages")
    assert (message["kind"], message["attempt"], message["at_work"]) == ("hint", 2, False)
    assert [hit["id"] for hit in hits(kapelle, "xylophone", kind="message")] == [task_id]
    for command in (("events", "--task"), ("logs",), ("status",)):
        assert "Run it with xylophone" in kapelle.cli(*command, task_id).stdout


def test_an_answer_is_in_the_conversation_with_its_question(
    kapelle: Instance, repository: Path
) -> None:
    with_playbook(kapelle, rule("Choose", {"ask": "Which colour?"}))
    ended = kapelle.submit("Choose a colour", repository)
    at_work = kapelle.play(asking(repository, '{"text": "Red or blue?"}'), repository)
    kapelle.wait(ended)
    kapelle.wait(at_work)
    for task_id, text in ((ended, "green"), (at_work, "blue")):
        kapelle.post(f"/questions/{kapelle.task(task_id)['questions'][0]['token']}/answer",
                     {"answer": text})  # fmt: skip
    kapelle.wait_for_status(at_work, "completed")
    until(lambda: len(kapelle.task(ended)["attempts"]) > 1, "another attempt")
    [first] = kapelle.get(f"/tasks/{ended}/messages")
    assert (first["text"], first["question"], first["attempt"]) == ("green", "Which colour?", 2)
    assert (first["kind"], first["state"], first["at_work"]) == ("answer", "delivered", False)
    [second] = kapelle.get(f"/tasks/{at_work}/messages")
    assert (second["text"], second["question"], second["attempt"]) == ("blue", "Red or blue?", 1)
    assert (second["state"], second["at_work"]) == ("delivered", True)
    assert person_lines(kapelle, at_work) == [("answer", "blue", "delivered")]


def test_a_message_to_an_agent_at_work_waits_until_an_agent_reads_it(
    kapelle: Instance, repository: Path
) -> None:
    gate = repository.parent / "gate"
    task_id = kapelle.play(
        f'[[do]]\nrun = "until test -e {gate}; do sleep 0.05; done"\n', repository
    )
    kapelle.wait_for_status(task_id, "running")
    kapelle.post(f"/tasks/{task_id}/say", {"message": "Hurry up"})
    assert states_of(kapelle, task_id) == [("Hurry up", "waiting", 1)]
    gate.touch()
    task = kapelle.wait(task_id)
    assert len(task["attempts"]) == 2
    assert states_of(kapelle, task_id) == [("Hurry up", "delivered", 1)]
    assert person_lines(kapelle, task_id) == [("message", "Hurry up", "delivered")]


def test_what_nobody_has_read_when_the_task_ends_is_refused(
    kapelle: Instance, repository: Path
) -> None:
    task_id = kapelle.play("[[do]]\nsleep = 600\n", repository)
    kapelle.wait_for_status(task_id, "running")
    kapelle.post(f"/tasks/{task_id}/say", {"message": "Stop there"})
    kapelle.post(f"/tasks/{task_id}/cancel")
    kapelle.wait(task_id)
    assert states_of(kapelle, task_id) == [("Stop there", "refused", 1)]


def states_of(kapelle: Instance, task_id: str) -> list[tuple[str, str, int]]:
    messages = kapelle.get(f"/tasks/{task_id}/messages")
    return [(one["text"], one["state"], one["attempt"]) for one in messages]
