"""`kapelle questions` and `kapelle answer`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from kapelle.cli.command import CommandOutput, argument, option
from kapelle.cli.format import between, clean, field, one_line, paint
from kapelle.cli.ids import TaskId, completing, is_run, path_of, task_path
from kapelle.cli.output import data, say
from kapelle.cli.pages import RepositoryOption, repository_filter, whole_list
from kapelle.cli.values import read_prompt
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput
from kapelle.domain.text import format_count, shorten_paths

if TYPE_CHECKING:
    from kapelle.client.records import QuestionJson, WorkJson

_ANSWER = 'Write `kapelle answer ID "…"`, or pipe it in with `-`.'
QuestionReference = Annotated[
    str,
    argument(
        "ID|TOKEN",
        "The id of the task or run, or the token of its question.",
        autocompletion=completing("work"),
    ),
]


_NOT_NOW = "This agent cannot be interrupted; it gets your message in its next attempt."


def questions(repository: RepositoryOption = None) -> CommandOutput:
    """List what tasks and runs ask of you, the oldest first."""
    query = {"repository": repository_filter(repository)}
    found = DaemonConnection().get("/questions", query)["questions"]
    return whole_list(found, _questions, "No open questions.")


def _questions(found: "list[QuestionJson]") -> Iterator[str]:
    paths = {question.get("repository") or "" for question in found}
    names = shorten_paths(paths - {""})
    for question in found:
        where = names.get(question.get("repository") or "")
        if where:
            asked = f"in {one_line(where, 40)}, "
        else:
            asked = ""
        age = paint(f"{asked}{between(question['asked_at'], None)} ago", "dim")
        yield f"{one_line(question['title'], 70)} {age}"
        yield from (f"  {line}" for line in question_lines(question))


def asked_lines(item: "WorkJson") -> Iterator[str]:
    """What a task or a run asks, in the view of it."""
    # An older daemon that still runs does not know the field of a task.
    asked = item.get("questions") or ()
    if asked:
        yield field("asks", "")
    for question in asked:
        yield from (f"    {line}" for line in question_lines(question))


def question_lines(question: "QuestionJson") -> list[str]:
    """What is asked, what may be chosen, and what to type."""
    if question["default"]:
        default = f" [{one_line(question['default'])}]"
    else:
        default = ""
    choices = enumerate(question.get("choices") or (), 1)
    chosen = [f"    {number} {one_line(choice)}" for number, choice in choices]
    text = paint(f"? {clean(question['text']).strip()}{default}", "yellow")
    return [text, *chosen, f'  kapelle answer {question["token"]} "…"']


def answer(
    whose: QuestionReference,
    text: str = argument(
        "TEXT", "What it wanted to know, or the number of a choice; - reads stdin."
    ),
    token: str | None = option("TOKEN", "Which question, when there are several."),
) -> CommandOutput:
    """Answer a question of a task or a run; it then goes on."""
    said = read_prompt(text, None, _ANSWER, "answer")
    if not (asked := (token or whose).strip()):
        raise InvalidInput(
            "An empty text is no id.", hint="`kapelle questions` shows what is asked."
        )
    client = DaemonConnection()
    question = client.post(f"/questions/{quote(asked, safe='')}/answer", {"answer": said})
    yield (work := client.get(path_of(question["run_id"] or question["task_id"])))
    data(work["id"])
    if left := len(work["questions"]):
        more = format_count(left, "question")
        say(f"It has {more} more; `kapelle questions` shows what is asked.")
    else:
        if is_run(work["id"]):
            follow = "runs tail"
        else:
            follow = "logs -f"
        say(f"It has your answer; `kapelle {follow} {work['id']}` follows it.")


def say_(
    task_id: TaskId, text: str = argument("TEXT", "What it is to know; - reads stdin.")
) -> CommandOutput:
    """Tell the agent of a task something, at once if it can hear that.

    An agent over ACP is interrupted and goes on with it; any other is told when its present
    attempt has ended, in another one.
    """
    said = read_prompt(text, None, 'Write `kapelle say ID "…"`.', "message")
    yield (found := DaemonConnection().post(task_path(task_id, "say"), {"message": said}))
    data(found["id"])
    now = found["told"] == "now"
    say("The agent reads it now." if now else _NOT_NOW)
