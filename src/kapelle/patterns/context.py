"""The interface between a pattern and the world: every method that a pattern may call."""

import re
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from pydantic import BaseModel

from kapelle.domain.answers import UnreadableAnswer, format_answer_instructions, read_answer
from kapelle.domain.budget import RemainingBudget
from kapelle.domain.specs import CheckSpec, Priority
from kapelle.domain.task import ANSWER_CHECK
from kapelle.patterns.results import (
    Checked,
    Combined,
    Failed,
    Merged,
    RunResult,
    Scored,
    TaskResult,
    UnusableAnswer,
    bullet_list,
)
from kapelle.patterns.spec import PatternSpec

WorkLocation = Literal["run", "own"]
Env = dict[str, str] | None  # variables in addition to those of the run


class Who(TypedDict, total=False):
    """The agent of a task, and its abilities."""

    agent: str | None
    model: str | None
    coordinate: bool  # whether the agent gets Kapelle's own tools, if it can use them
    tools: Sequence[str]  # the only tools that the agent may use, by the agent's own names
    max_turns: int | None
    continue_from: str | None
    browser: bool  # whether the agent gets a browser, where browser.enabled allows one
    read_only: bool  # whether the agent only reports: its changes are discarded


class Manner(TypedDict, total=False):
    """Options of ctx.task that are not fields of a TaskSpec."""

    role: str | None  # of the step in the pattern, such as plan or review
    cycle: int | None  # number of the cycle, round or iteration of the step
    workspace: WorkLocation
    keep_session: bool
    max_attempts: int
    afresh: bool
    disposable: bool
    patient: bool
    expects_json: bool  # whether an answer without JSON fails the task


class TaskArgs(Who, Manner, total=False):
    """Arguments of ctx.task: those of Manner, and fields of a TaskSpec.

    The run's specification provides each field that is left out.
    """

    title: str | None
    directory: str | None
    checks: Sequence[CheckSpec | str]
    system_prompt: str | None
    priority: Priority | None
    timeout_s: float | None
    budget_usd: float | None
    context: dict[str, str]


Fact = str | float | bool | list[Any] | dict[str, Any] | None
StoppedBy = Literal["failure", "budget", "cancelled"]
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
K = TypeVar("K", bound="State | BaseModel")
# Characters of an unusable answer that the agent gets back with the request to answer again.
_ANSWER_TAIL = 8_000


class State:
    """The result of a run so far, kept in case a limit, a person or a failure ends the run.

    This class is enough for a model with a reason; a pattern that needs more extends it.
    """

    def __init__(self, model: BaseModel) -> None:
        self._model = model

    def result(self, reason: str, stopped_by: StoppedBy) -> BaseModel:
        """Return the result of a stopped run; its reason is that of the run."""
        update = {"reason": reason}
        # Not every model has this field, and a pattern may have set it.
        is_unset = getattr(self._model, "stopped_by", "") is None
        if is_unset:
            update["stopped_by"] = stopped_by
        return self._model.model_copy(update=update)

    def restore(self, _stopped_by: StoppedBy) -> str | None:
        """Return the commit to reset the run's branch to; None leaves the branch alone."""
        return None


class Context(ABC):
    """Access of one run to the world.

    Each call is a step of the run: it happens once, and after a crash the journal returns its
    result. Concurrent calls go through gather, so that every step keeps its place. A pattern
    takes the time from now and randomness from the results of steps.
    """

    run_id: str
    spec: PatternSpec
    prompts: Mapping[str, str] = {}  # the repository's own prompts, by role
    state: State | None = None  # set by keep

    @property
    @abstractmethod
    def is_git(self) -> bool:
        """Tell whether the run has a worktree of its own, in which it can commit."""

    def keep(self, state: K) -> K:
        """Set the result to return if a limit, a person or a failure stops the run early.

        A model gets its reason filled in then; a State decides by itself.
        """
        if isinstance(state, BaseModel):
            self.state = State(state)
        else:
            self.state = state
        return state

    def prompt(self, role: str, built_in: str, **parts: str | list[str]) -> str:
        """Return the prompt of a role: the repository's own text, or else the built-in one.

        Each part replaces its name in braces, as in `{plan}`. A part that the text does not name
        follows under a heading, unless it is empty. A list becomes a list in Markdown.
        """
        text = self.prompts.get(role, built_in)
        values = {name: _as_markdown(part) for name, part in parts.items()}
        body = re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), text)
        sections = [body.strip()]
        for name, value in values.items():
            if value and f"{{{name}}}" not in text:
                heading = name.replace("_", " ").capitalize()
                sections.append(f"## {heading}\n{value}")
        return "\n\n".join(sections)

    @abstractmethod
    async def task(self, prompt: str, **fields: Unpack[TaskArgs]) -> TaskResult:
        """Have an agent do a task and wait for its end.

        workspace "run", the default, is the run's own worktree, in which one task works after
        another. "own" is a worktree for this task alone: made from the tip of the run's branch,
        or, with continue_from, from the branch of that task unless afresh is set. The worktree of
        a disposable task is removed at its end, and its changes go to the archive.

        A patient task, the default, waits for the end of a rate limit; any other is cancelled.
        The task gets one attempt unless max_attempts is higher. role and cycle are stored with
        the step, so that programs find the step whatever its title is.
        """

    @abstractmethod
    async def run(
        self, pattern: str, spec: dict[str, Any], *, workspace: WorkLocation = "own"
    ) -> RunResult:
        """Execute another pattern as a run inside this one, and wait for its end."""

    @abstractmethod
    async def check(
        self, *checks: CheckSpec | str, env: Env = None, task: str | None = None
    ) -> Checked:
        """Execute checks in the run's workspace, or in that of a task."""

    @abstractmethod
    async def score(
        self, command: str, *, timeout_s: float = 600, env: Env = None, task: str | None = None
    ) -> Scored:
        """Execute a command and return the number in the last line that it prints."""

    @abstractmethod
    async def ask(self, question: str, default: str | None = None) -> str:
        """Ask a person and return the answer; the run uses no resources while it waits."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait; a restart of the daemon does not begin the time anew."""

    @abstractmethod
    async def now(self) -> datetime:
        """Return the time at which this step was first executed; a replay returns the same."""

    @abstractmethod
    async def progress(self, **facts: Fact) -> None:
        """Report progress: it is shown with the run and kept in its history."""

    @abstractmethod
    async def note(self, key: str, value: str) -> None:
        """Write a note of the run; its agents and people can read it."""

    @abstractmethod
    async def read_note(self, key: str) -> str | None:
        """Return the text of a note that a person or this run wrote.

        Return None if the note is gone, or if an agent wrote it.
        """

    @abstractmethod
    async def astray(self) -> str | None:
        """Return what the run's worktree has checked out instead of the run's branch, if so."""

    @abstractmethod
    async def commit(self, message: str) -> str | None:
        """Commit everything in the run's worktree; return the tip of the run's branch."""

    @abstractmethod
    async def revert(self, commit: str) -> None:
        """Reset the run's worktree and branch to a commit; discarded work is archived."""

    @abstractmethod
    async def merge(self, work: TaskResult | RunResult) -> Merged:
        """Merge the work of a task or run with its own worktree into the run's branch.

        What is merged is exactly the commit that was verified.
        """

    @abstractmethod
    async def put_away(self, task: TaskResult) -> None:
        """Remove the worktree of a task that is no longer needed; its work is archived."""

    @abstractmethod
    async def take_in(self, task: TaskResult) -> list[str]:
        """Merge the run's branch into that of a task; return the files with conflict markers."""

    @abstractmethod
    async def combine(self, task: TaskResult) -> Combined:
        """Merge the run's branch into that of a task; return the commit and the conflicts.

        Without conflicts the commit is the one that a merge of the task would result in.
        """

    @abstractmethod
    async def read_file(self, path: str, task: TaskResult | None = None) -> str | None:
        """Return a text file of the run's worktree, or of a task's; None if there is none."""

    @abstractmethod
    async def write_file(self, path: str, text: str) -> None:
        """Write a text file in the run's worktree; commit keeps it."""

    @abstractmethod
    async def name_branch(self, name: str, task: TaskResult, before: str | None = None) -> bool:
        """Create or move the branch of this name to the work of a task.

        before is the commit at which an earlier call left the branch. Return False, and move
        nothing, if somebody else's branch has this name.
        """

    @abstractmethod
    async def conflicted(self, task: TaskResult, paths: list[str]) -> list[str]:
        """Return those of the files of a task that still contain conflict markers."""

    @abstractmethod
    async def changes(self, task: TaskResult | None = None, *, patch: bool = False) -> str:
        """Return the log and a summary of the changes of the run so far, or of one task.

        With patch, the beginning of the diff follows.
        """

    @abstractmethod
    async def compare(self, one: TaskResult, other: TaskResult) -> str:
        """Return a summary of the differences between the work of two tasks."""

    @abstractmethod
    async def budget(self) -> RemainingBudget:
        """Return the remaining budget of the run."""

    @abstractmethod
    def lock(self, name: str, places: int = 1) -> AbstractAsyncContextManager[None]:
        """Limit how many branches execute an `async with` block at the same time.

        After a crash the same branches hold the places again; a lock of asyncio would admit
        others.
        """

    @abstractmethod
    async def gather(self, *branches: Coroutine[Any, Any, T]) -> list[T]:
        """Execute branches concurrently and return their results in order.

        When all have ended, the first error in the order of the branches is raised.
        """

    @overload
    async def query(
        self,
        prompt: str,
        shape: type[M],
        *,
        title: str,
        role: str | None = None,
        cycle: int | None = None,
        **who: Unpack[Who],
    ) -> M: ...

    @overload
    async def query(
        self,
        prompt: str,
        shape: dict[str, Any],
        *,
        title: str,
        role: str | None = None,
        cycle: int | None = None,
        **who: Unpack[Who],
    ) -> dict[str, Any]: ...

    async def query(
        self,
        prompt: str,
        shape: Any,
        *,
        title: str,
        role: str | None = None,
        cycle: int | None = None,
        **who: Unpack[Who],
    ) -> Any:
        """Return an agent's answer as an object of this model or JSON schema.

        An answer that cannot be read is requested once more; then Failed is raised. The agent
        only reports: in git, nothing that it changes, commits or deletes has an effect.
        """
        who.setdefault("read_only", self.is_git)
        request = f"{prompt}\n\n{format_answer_instructions(shape)}"
        complaint = ""
        problem = ""
        for step_title in (title, f"{title} (again)"):
            answer = await self.task(
                request + complaint,
                title=step_title,
                role=role,
                cycle=cycle,
                workspace="own",
                disposable=True,
                expects_json=True,
                **who,
            )
            if not answer.ok and not _lacks_json_alone(answer):
                raise Failed(f"{title}: {answer.reason or answer.status}")
            try:
                return read_answer(answer.text, shape)
            except UnreadableAnswer as error:
                complaint = (
                    f"\n\n## Your previous answer could not be used\n{error}\n\n"
                    f"It was:\n~~~\n{answer.text[-_ANSWER_TAIL:]}\n~~~\nAnswer again."
                )
                problem = f"{title}: the answer of {answer.agent} is unusable: {error}"
        raise UnusableAnswer(problem)


def _as_markdown(part: str | list[str]) -> str:
    if isinstance(part, str):
        return part
    return bullet_list(part)


def _lacks_json_alone(answer: TaskResult) -> bool:
    """Tell whether the failed task did everything but answer in JSON."""
    return {check.name for check in answer.failed_checks} == {ANSWER_CHECK}
