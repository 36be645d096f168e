"""Who answers the questions that a team has before it begins."""

from abc import ABC, abstractmethod


class Suspended(Exception):
    """Nobody answers now: the run is left off, to be taken up with the answers."""


class Interaction(ABC):
    """A way to have questions answered; ask is called in the thread that called run."""

    asks: bool = True
    """Whether it is worth thinking of questions at all."""

    @abstractmethod
    def ask(self, question: str, default: str | None = None) -> str:
        """The answer to a question."""


class Auto(Interaction):
    """Nobody is asked: the planner decides what is sensible."""

    asks = False

    def ask(self, question: str, default: str | None = None) -> str:
        return default or ""


class Console(Interaction):
    """A person at the terminal; an empty line takes the default, or leaves it to the agents."""

    def ask(self, question: str, default: str | None = None) -> str:
        print(question)
        try:
            answer = input(f"[{default}] > " if default else "> ")
        except EOFError:
            answer = ""
        return answer.strip() or default or ""


class Suspend(Interaction):
    """The run ends with needs_input, its questions and a token to go on with."""

    def ask(self, question: str, default: str | None = None) -> str:
        raise Suspended(question)
