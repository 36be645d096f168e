"""The public API changes only by intention."""

from tests.public_api import ACCEPT, LIST, describe


def test_the_public_api_is_the_stored_one() -> None:
    stored, current = LIST.read_text(encoding="utf-8"), describe()
    before, now = stored.splitlines(), current.splitlines()
    gone = [f"- {line}" for line in before if line not in now]
    new = [f"+ {line}" for line in now if line not in before]
    assert stored == current, "\n".join([ACCEPT, *gone, *new])


def test_the_list_has_every_part() -> None:
    """A description that finds nothing would accept every change."""
    text = LIST.read_text(encoding="utf-8")
    parts = (
        "connect(url: str | None = None,",
        "Client.tasks.run(prompt: str | TaskSpec,",
        "TaskSpec.prompt: ",
        "Context.task(prompt: str, afresh=…, ",
        "TaskStatus.COMPLETED = completed",
        "AgentAdapter.parse(",
        "POST /api/v1/tasks body(TaskSpec)",
        "StartBody: pattern*, spec*",
    )
    assert [part for part in parts if part not in text] == []
