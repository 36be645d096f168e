"""What a pattern may call: everything that touches the world goes through here."""

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
)
from kapelle.patterns.spec import PatternSpec

WorkLocation = Literal["run", "own"]
Env = dict[str, str] | None  # variables besides the others


class Who(TypedDict, total=False):
    agent: str | None
    model: str | None
    coordinate: bool  # whether it is given Kapelle's own tools, if it can use them
    tools: Sequence[str]  # the only ones that it may use, by its agent's own names
    max_turns: int | None
    continue_from: str | None
    browser: bool  # whether it has a browser, where browser.enabled says so
    read_only: bool  # whether it only reports: what it changes is thrown away


class Manner(TypedDict, total=False):
    """How ctx.task has something done, and what for."""

    role: str | None  # in the pattern, such as plan or review: kept with the step
    cycle: int | None  # the number of the cycle, round or iteration that it is of
    workspace: WorkLocation
    keep_session: bool
    max_attempts: int
    afresh: bool
    disposable: bool
    patient: bool
    expects_json: bool  # whether an answer that holds no JSON is a failure of the task


class TaskArgs(Who, Manner, total=False):
    """How, and the fields of a TaskSpec; of those what is left out comes from the run's spec."""

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
_SHOWN = 8_000


class State:
    """What a pattern has come to so far; one that is more than a model with a reason extends it."""

    def __init__(self, model: BaseModel) -> None:
        self._model = model

    def result(self, reason: str, stopped_by: StoppedBy) -> BaseModel:
        """What the run leaves; the reason of the model is the run's."""
        untold = getattr(self._model, "stopped_by", reason) is None
        if untold:
            more = {"stopped_by": stopped_by}
        else:
            more = {}
        return self._model.model_copy(update={"reason": reason, **more})

    def restore(self, _stopped_by: StoppedBy) -> str | None:
        """The commit that the run's branch goes back to; None leaves it as it is."""
        return None


class Context(ABC):
    """The world of one run. Each call is a step: made once, and after a crash remembered.

    Calls that are to happen at the same time go through gather, so that every step keeps its
    place; time and chance come from now and from the results of steps.
    """

    run_id: str
    spec: PatternSpec
    prompts: Mapping[str, str] = {}  # what the repository has its roles told, by role
    kept: State | None = None

    @property
    @abstractmethod
    def is_git(self) -> bool:
        """Whether the run works in a worktree of its own, where commits can be made."""

    def keep(self, state: K) -> K:
        """Have this be what the run leaves if a limit, a person or a failure ends it before the
        pattern returns: a model whose reason is then filled in, or a State."""
        if isinstance(state, BaseModel):
            self.kept = State(state)
        else:
            self.kept = state
        return state

    def prompt(self, role: str, built_in: str, **parts: str | list[str]) -> str:
        """What a role is told: the repository's own text, or else the built-in one; each part
        stands where the text names it in braces, otherwise behind it under a heading; a list has
        a line for each of its texts."""
        text = self.prompts.get(role, built_in)
        told = {name: part if isinstance(part, str) else "\n".join(f"- {one}" for one in part)
                for name, part in parts.items()}  # fmt: skip
        behind = [name for name in told if told[name] and f"{{{name}}}" not in text]
        text = re.sub(r"\{(\w+)\}", lambda named: told.get(named[1], named[0]), text).strip()
        headed = (f"## {name.replace('_', ' ').capitalize()}\n{told[name]}" for name in behind)
        return "\n\n".join([text, *headed])

    @abstractmethod
    async def task(self, prompt: str, **asked: Unpack[TaskArgs]) -> TaskResult:
        """Have an agent do something and wait for the end.

        workspace "run", by default, is the run's own worktree, in which one task works after
        another; "own" is a worktree for this task alone, made from where the run's branch is now,
        or the branch of the task that it goes on from unless it is to begin afresh all the same; a
        disposable one is removed at the end, and what was changed there goes to the archive. Unless
        it is patient, which is the default, it is cancelled rather than wait for the end of a
        rate limit. It is tried once unless max_attempts says otherwise.

        role and cycle are kept with the step, so that a program finds it whatever its title is.
        """

    @abstractmethod
    async def run(
        self, pattern: str, spec: dict[str, Any], *, workspace: WorkLocation = "own"
    ) -> RunResult:
        """Another pattern as a run inside this one."""

    @abstractmethod
    async def check(
        self, *checks: CheckSpec | str, env: Env = None, task: str | None = None
    ) -> Checked:
        """Commands that decide about the work, in the run's workspace or in a task's own."""

    @abstractmethod
    async def score(
        self, command: str, *, timeout_s: float = 600, env: Env = None, task: str | None = None
    ) -> Scored:
        """The number in the last line that a command prints."""

    @abstractmethod
    async def ask(self, question: str, default: str | None = None) -> str:
        """A person's answer; the run waits for it and uses nothing meanwhile."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Wait, also over restarts."""

    @abstractmethod
    async def now(self) -> datetime:
        """The time, the same one whenever this step is replayed."""

    @abstractmethod
    async def progress(self, **facts: Fact) -> None:
        """Tell how far it is: shown with the run and kept in its history."""

    @abstractmethod
    async def note(self, key: str, value: str) -> None:
        """Write a note of the run, which its agents and people can read."""

    @abstractmethod
    async def read_note(self, key: str) -> str | None:
        """What a person, or the run itself, wrote there; None if that is gone, or if an agent
        wrote over it."""

    @abstractmethod
    async def astray(self) -> str | None:
        """What the run's worktree stands on instead of the run's branch; None if on that."""

    @abstractmethod
    async def commit(self, message: str) -> str | None:
        """Commit everything in the run's worktree; the commit that its branch then holds."""

    @abstractmethod
    async def revert(self, commit: str) -> None:
        """Put the run's worktree and branch back to a commit; what is thrown away is archived."""

    @abstractmethod
    async def merge(self, work: TaskResult | RunResult) -> Merged:
        """Merge what a task or a run did in a worktree of its own into the run's branch: exactly
        the commit that was verified."""

    @abstractmethod
    async def put_away(self, task: TaskResult) -> None:
        """Remove the worktree of a task that is not needed any more; its work is archived."""

    @abstractmethod
    async def take_in(self, task: TaskResult) -> list[str]:
        """Merge the run's branch into a task's: the files that conflict, with their markers."""

    @abstractmethod
    async def combine(self, task: TaskResult) -> Combined:
        """The same, with the commit that the task's branch then holds; where nothing conflicts it
        is what a merge leads to, made aside."""

    @abstractmethod
    async def read_file(self, path: str, task: TaskResult | None = None) -> str | None:
        """A text file of the run's worktree, or of a task's; None if there is none."""

    @abstractmethod
    async def write_file(self, path: str, text: str) -> None:
        """Write a text file of the run's worktree; commit keeps it."""

    @abstractmethod
    async def name_branch(self, name: str, task: TaskResult, before: str | None = None) -> bool:
        """Have a branch of this name hold what a task did; before is what it holds by an earlier
        call. False, and nothing is moved, if somebody else's branch is called so."""

    @abstractmethod
    async def conflicted(self, task: TaskResult, paths: list[str]) -> list[str]:
        """Which of these files of a task still hold conflict markers."""

    @abstractmethod
    async def changes(self, task: TaskResult | None = None, *, patch: bool = False) -> str:
        """Log and summary of what the run, or one task, has changed so far; with patch, the
        beginning of the changes themselves."""

    @abstractmethod
    async def compare(self, one: TaskResult, other: TaskResult) -> str:
        """A summary of how two tasks' work differs."""

    @abstractmethod
    async def budget(self) -> RemainingBudget:
        """What is left of the run's limits."""

    @abstractmethod
    def lock(self, name: str, places: int = 1) -> AbstractAsyncContextManager[None]:
        """So many branches at a time in what `async with` encloses; one of `asyncio` would let
        others in after a crash."""

    @abstractmethod
    async def gather(self, *branches: Coroutine[Any, Any, T]) -> list[T]:
        """Several branches at once; the first error, in their order, once all have ended."""

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

        An answer that cannot be read is asked for once more; then Failed is raised.
        The agent only reports: in git, nothing that it changes, commits or deletes has an effect.
        """
        who.setdefault("read_only", self.is_git)
        asked = f"{prompt}\n\n{format_answer_instructions(shape)}"
        problem = ""
        for name in (title, f"{title} (again)"):
            answer = await self.task(
                asked + problem,
                title=name,
                role=role,
                cycle=cycle,
                workspace="own",
                disposable=True,
                expects_json=True,
                **who,
            )
            failed = {check.name for check in answer.failed_checks}
            if not answer.ok and failed != {ANSWER_CHECK}:
                raise Failed(f"{title}: {answer.reason or answer.status}")
            try:
                return read_answer(answer.text, shape)
            except UnreadableAnswer as error:
                problem = (
                    f"\n\n## Your answer before this one could not be used\n{error}\n\n"
                    f"It was:\n~~~\n{answer.text[-_SHOWN:]}\n~~~\nAnswer again."
                )
                why = f"{title}: the answer of {answer.agent} is unusable: {error}"
        raise UnusableAnswer(why)
