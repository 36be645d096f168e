"""Asking a person at the terminal."""

import sys
from typing import TYPE_CHECKING

from kapelle.cli.output import say
from kapelle.cli.questions import question_lines
from kapelle.cli.text import clean
from kapelle.client.http import DaemonConnection
from kapelle.domain.errors import Conflict

if TYPE_CHECKING:
    from kapelle.client.records import QuestionJson, WorkJson


def can_ask() -> bool:
    """Tell whether a person can read a question and type an answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def read_line(question: str) -> str | None:
    """Return the line that a person types after a question; None at the end of input."""
    sys.stderr.write(clean(question))
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        sys.stderr.write("\n")
        return None
    return line.rstrip("\n")


def confirm(question: str) -> bool:
    """Ask a person; only y and yes confirm."""
    answer = read_line(f"{question} [y/N] ") or ""
    return answer.strip().lower() in {"y", "yes"}


def answer_questions(client: DaemonConnection, item: "WorkJson") -> bool:
    """Ask a person every open question of a task or a run, and send the answers.

    Returns False if the input ended before the last question.
    """
    for question in item["questions"]:
        answer = _read_answer(question)
        if answer is None:
            return False
        try:
            client.post(f"/questions/{question['token']}/answer", {"answer": answer})
        except Conflict as error:
            say(error.message)  # another person was faster
    return True


def _read_answer(question: "QuestionJson") -> str | None:
    """Return the answer to a question; an empty line stands for the default, if there is one."""
    say("\n".join(question_lines(question)[:-1]))
    while (answer := read_line("Your answer: ")) is not None:
        if answer.strip():
            return answer
        if question["default"] is not None:
            return question["default"]
    return None
