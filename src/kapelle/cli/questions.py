"""`kapelle questions`, `kapelle answer` and `kapelle say`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from kapelle.cli.figures import format_elapsed
from kapelle.cli.ids import complete, is_run, path_of, task_argument, task_path
from kapelle.cli.layout import field_line, paint
from kapelle.cli.output import plain_line
from kapelle.cli.pages import repository_filter, repository_option, whole_list
from kapelle.cli.parser import argument, command, option, reports
from kapelle.cli.result import Result
from kapelle.cli.text import clean, one_line
from kapelle.cli.values import read_prompt
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import InvalidInput
from kapelle.domain.text import format_count, shorten_paths

if TYPE_CHECKING:
    from kapelle.client.records import QuestionJson, WorkJson

_ANSWER_HINT = 'Write `kapelle answer ID "…"`, or pipe it in with `-`.'


@command("questions", "kapelle questions")
@repository_option
@reports
def questions(repository: str | None) -> Result:
    """List the open questions of tasks and runs, oldest first."""
    query = {"repository": repository_filter(repository)}
    items = DaemonConnection().get("/questions", query)["questions"]
    return whole_list(items, _list_lines, "No open questions.")


def _list_lines(items: "list[QuestionJson]") -> Iterator[str]:
    paths = {question.get("repository") or "" for question in items}
    names = shorten_paths(paths - {""})
    for question in items:
        asked = f"{format_elapsed(question['asked_at'], None)} ago"
        repository = names.get(question.get("repository") or "")
        if repository:
            asked = f"in {one_line(repository, 40)}, {asked}"
        yield f"{one_line(question['title'], 70)} {paint(asked, 'dim')}"
        for line in question_lines(question):
            yield f"  {line}"


def asked_lines(item: "WorkJson") -> Iterator[str]:
    """Return the open questions of a task or a run as a part of its view."""
    # An older daemon that still runs does not know the field of a task.
    items = item.get("questions") or ()
    if items:
        yield field_line("asks", "")
    for question in items:
        for line in question_lines(question):
            yield f"    {line}"


def question_lines(question: "QuestionJson") -> list[str]:
    """Return a question with its choices, then the command that answers it."""
    text = f"? {clean(question['text']).strip()}"
    if question["default"]:
        text += f" [{one_line(question['default'])}]"
    lines = [paint(text, "yellow")]
    for number, choice in enumerate(question.get("choices") or (), 1):
        lines.append(f"    {number} {one_line(choice)}")
    lines.append(f'  kapelle answer {question["token"]} "…"')
    return lines


@command("answer", 'kapelle answer 7k2dp "use the second one"')
@argument(
    "reference",
    metavar="ID|TOKEN",
    help="Id of the task or run, or token of its question.",
    shell_complete=complete("work"),
)
@argument("text", metavar="TEXT", help="Answer, or the number of a choice; - reads stdin.")
@option("--token", metavar="TOKEN", help="Token of the question, where there are several.")
@reports
def answer(reference: str, text: str, token: str | None) -> Result:
    """Answer a question of a task or a run, which then goes on."""
    body = {"answer": read_prompt(text, None, _ANSWER_HINT, "answer")}
    question_id = (token or reference).strip()
    if not question_id:
        raise InvalidInput(
            "An empty text is no id.", hint="`kapelle questions` lists the open questions."
        )
    client = DaemonConnection()
    question = client.post(f"/questions/{quote(question_id, safe='')}/answer", body)
    work = client.get(path_of(question["run_id"] or question["task_id"]))
    return Result(work, [plain_line(work["id"])], [_after_answer(work)])


def _after_answer(work: "WorkJson") -> str:
    """Return what the person may do after an answer."""
    remaining = len(work["questions"])
    if remaining:
        return f"It has {format_count(remaining, 'question')} more; `kapelle questions` lists them."
    follow = "runs tail" if is_run(work["id"]) else "logs -f"
    return f"It has your answer; `kapelle {follow} {work['id']}` follows it."


@command("say", 'kapelle say 4f2xq "leave the tests alone"')
@task_argument
@argument("text", metavar="TEXT", help="Message for the agent; - reads stdin.")
@reports
def say_(task_id: str, text: str) -> Result:
    """Send a message to the agent of a task.

    An agent over ACP is interrupted and goes on with the message; any other agent gets it in a new
    attempt, when its present attempt has ended.
    """
    message = read_prompt(text, None, 'Write `kapelle say ID "…"`.', "message")
    task = DaemonConnection().post(task_path(task_id, "say"), {"message": message})
    remark = "This agent cannot be interrupted; it gets your message in its next attempt."
    if task["told"] == "now":
        remark = "The agent reads it now."
    return Result(task, [plain_line(task["id"])], [remark])
