"""The Context of a run in the daemon: steps are journalled, tasks and worktrees are real ones."""

import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Unpack, get_args

from pydantic import ValidationError

from kapelle.domain.budget import RemainingBudget
from kapelle.domain.errors import InvalidInput, invalid_spec
from kapelle.domain.note import MAX_VALUE, NoteSpec
from kapelle.domain.question import QuestionSpec
from kapelle.domain.specs import RetrySpec, TaskSpec, WorkspaceKind, WorkSpec
from kapelle.domain.states import FINAL
from kapelle.domain.text import make_storable, make_title
from kapelle.engine.children import NoRoom, require_room
from kapelle.engine.questions import with_patience
from kapelle.engine.runs.commands import CommandContext
from kapelle.engine.runs.git import T, foreign, is_here
from kapelle.engine.runs.journal import StepNotReady, StepRequest, no_work
from kapelle.engine.runs.start import start
from kapelle.engine.runs.workspace import restore_deleted
from kapelle.engine.tasks.submit import Belonging, submit
from kapelle.patterns.context import Fact, Manner, TaskArgs, WorkLocation
from kapelle.patterns.results import Merged, RunResult, TaskResult
from kapelle.patterns.spec import PatternSpec
from kapelle.store import events, notes, questions, runs, steps, tasks
from kapelle.store.database import Connection
from kapelle.store.rows import update_work

# A run's own: what tasks and runs inside it do not take over from its spec.
_OWN = {"title", "max_seconds", "max_agent_calls", "budget_usd", "base", "deliver", "push"}

_LOOK_S = 1.0


class DurableContext(CommandContext):
    async def task(self, prompt: str, **asked: Unpack[TaskArgs]) -> TaskResult:
        workspace = asked.get("workspace", "run")
        is_own = workspace == "own"

        async def begin(step: StepRequest) -> None:
            if workspace not in get_args(WorkLocation):
                raise InvalidInput(f"ctx.task: workspace is run or own, not {workspace!r}.")
            left = await self._control.require_time_and_money()
            kind, base = await self._place(asked, is_own=is_own)
            tries = asked.get("max_attempts", 1)
            calls = left.agent_calls
            tries = max(1, tries if calls is None else min(tries, calls))
            own = {
                "workspace": kind,
                "base": base,
                "fork_session": bool(asked.get("keep_session") and asked.get("continue_from")),
                "budget_usd": min(filter(None, (left.usd, asked.get("budget_usd"))), default=None),
                "retry": RetrySpec(policy="same" if tries > 1 else "none", max_attempts=tries),
            }
            await self._submit(step, self._task_spec(prompt, asked, own), is_own=is_own)

        async def perform(step: StepRequest) -> str:
            may_ask = not self.spec.never_blocks
            patient = asked.get("patient", True)
            task_id = await self._child(step, may_ask=may_ask, patient=patient)
            if asked.get("disposable") and is_own:
                await self._put_away(task_id)
            return task_id

        label = asked.get("title") or prompt.strip()[:80]
        expects_json = {"expects_json": True} if asked.get("expects_json") else {}
        step = StepRequest("task", label, perform, begin, self._task_ended, data=expects_json)
        step = replace(step, role=asked.get("role"), cycle=asked.get("cycle"))
        return TaskResult.model_validate(await self._journal.step(step))

    async def _child(self, step: StepRequest, *, may_ask: bool = True, patient: bool = True) -> str:
        """The task or run that a step has started, once it has ended."""
        child_id = await self._parts.db.read(steps.load_subject, self.run_id, step.position)
        await self._control.for_child(child_id, may_ask=may_ask, patient=patient)
        return child_id

    async def _place(
        self, arguments: TaskArgs, *, is_own: bool
    ) -> tuple[WorkspaceKind, str | None]:
        """Return where a task works, and the branch from which its own worktree starts."""
        if not self._is_git:
            return WorkspaceKind.IN_PLACE, None
        directory = arguments.get("directory")
        here = directory is None or await is_here(self._workspaces, self.spec, directory)
        if not here and not is_own:
            raise foreign(directory)
        # What goes on from another task starts from that one's branch.
        begins = arguments.get("continue_from") is None or arguments.get("afresh")
        branches = is_own and here and begins
        return WorkspaceKind.WORKTREE, await self._branch() if branches else None

    def _task_spec(self, prompt: str, fields: TaskArgs, own: dict[str, Any]) -> TaskSpec:
        """Return the task to submit: the pattern's arguments, completed by the run's spec."""
        run = self.spec
        arguments: dict[str, Any] = {}
        for name, value in fields.items():
            if value and name not in Manner.__annotations__:
                arguments[name] = value
        if unknown := sorted(set(arguments) - set(TaskArgs.__annotations__)):
            raise InvalidInput(f"ctx.task takes no {', '.join(unknown)}.")
        names = set(WorkSpec.model_fields) - _OWN
        run_values = {name: getattr(run, name) for name in names} | {"project": self._project}
        # A model belongs to the agent that it was named with.
        run_values["model"] = run.model if arguments.get("agent", run.agent) == run.agent else None
        run_values["timeout_s"] = run.task_timeout_s
        own_values = {"prompt": make_storable(prompt)}
        if arguments.get("browser"):
            arguments["browser"] = self._parts.settings(run.directory).browser.enabled
        if title := arguments.get("title"):
            own_values["title"] = make_title(str(title))
        try:
            return TaskSpec.model_validate({**run_values, **arguments, **own_values, **own})
        except ValidationError as error:
            raise invalid_spec(error, "ctx.task: ") from None

    async def _submit(self, step: StepRequest, spec: TaskSpec, *, is_own: bool) -> None:
        """Store the task and the beginning of its step in one transaction."""
        if self._is_git and not is_own:
            owner = self._owner
        else:
            owner = None

        def also(connection: Connection, task_id: str) -> None:
            self._journal.store(connection, replace(step, label=spec.display_title), task_id)
            self._control.require_call(connection)
            if owner is not None and tasks.has_others_in(connection, owner, task_id):
                raise InvalidInput(
                    "Tasks that share the run's workspace work one after another.",
                    hint='In ctx.gather, give each one its own: ctx.task(…, workspace="own").',
                )
            require_room(connection, self.run_id, self._parts.settings().children)

        key = f"{self.run_id}/{step.position}"
        belonging = Belonging(run_id=self.run_id, workspace_owner=owner)
        await self._in_turn(lambda: submit(self._parts, spec, key, belonging, also))

    async def _in_turn(self, store: Callable[[], Awaitable[object]]) -> None:
        """Store a task or run as soon as there is room in the tree that it belongs to."""
        while True:
            try:
                await store()
                return
            except NoRoom:
                await self._control.until(time.time() + _LOOK_S)

    def _task_ended(self, connection: Connection, task_id: str) -> Any:
        """How a task ended; with its step ended, it is not done again in the run's worktree."""
        task = tasks.get(connection, task_id)
        if task.status not in FINAL:
            raise StepNotReady  # a person has it done again in the very moment in which it ends
        if task.workspace.owner == self._owner and task.workspace.commit:
            self._remember(connection, task.workspace.commit)
        return TaskResult.of(task).model_dump(mode="json")

    async def run(
        self, pattern: str, spec: dict[str, Any], *, workspace: WorkLocation = "own"
    ) -> RunResult:
        async def begin(step: StepRequest) -> None:
            await self._control.require_time_and_money()
            if self._is_git and workspace == "run":
                owner = self._owner
            else:
                owner = None

            def also(connection: Connection, run_id: str) -> None:
                self._journal.store(connection, step, run_id)
                self._control.require_call(connection, one_more=True)
                require_room(connection, self.run_id, self._parts.settings().children)

            run_values = await self._inherit_values(owner is None)
            child_spec = {**run_values, **spec}
            key = f"{self.run_id}/{step.position}"
            whose = Belonging(run_id=self.run_id, workspace_owner=owner)
            await self._in_turn(partial(start, self._parts, pattern, child_spec, key, whose, also))

        step = StepRequest("run", pattern, self._child, begin, _run_ended)
        return RunResult.model_validate(await self._journal.step(step))

    async def _inherit_values(self, own: bool) -> dict[str, Any]:
        """Return the values for a run inside this one; its own worktree starts at this branch."""
        fields = set(PatternSpec.model_fields) - _OWN
        values = self.spec.model_dump(mode="json", include=fields, exclude_none=True)
        values |= {"project": self._project} if self._project else {}
        if own and self._is_git:
            values["base"] = await self._branch()
        return values

    async def ask(self, question: str, default: str | None = None) -> str:
        if not isinstance(default, str | None):
            raise InvalidInput(f"ctx.ask: the default is a text, not {default!r}.")

        def store(connection: Connection, step: StepRequest, spec: QuestionSpec) -> None:
            self._journal.store(connection, step)
            questions.ask(connection, self.run_id, spec, place=step.position)

        async def begin(step: StepRequest) -> None:
            spec = QuestionSpec.model_construct(text=question, default=default)
            await self._parts.db.write(store, step, with_patience(self._parts, spec))

        def perform(step: StepRequest) -> Coroutine[Any, Any, str]:
            return self._control.suspend(step.position)

        data = {"default": default}
        answer: str = await self._journal.step(
            StepRequest("ask", question, perform, begin, data=data)
        )
        return answer

    async def sleep(self, seconds: float) -> None:
        def perform(step: StepRequest) -> Awaitable[None]:
            return self._control.until(step.data["until"])

        data = {"until": time.time() + seconds}
        await self._journal.step(StepRequest("sleep", f"{seconds:g} s", perform, data=data))

    async def now(self) -> datetime:
        async def perform() -> float:
            return time.time()

        return datetime.fromtimestamp(await self._git_step("now", "now", perform), UTC)

    async def progress(self, **facts: Fact) -> None:
        for name, value in facts.items():
            if name == "run_id":
                raise InvalidInput("ctx.progress: run_id is the run itself; call it otherwise.")
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                text = f"ctx.progress: {name} is nothing for JSON: {value!r}."
                raise InvalidInput(text) from None

        def end(connection: Connection, _result: None) -> None:
            progress = runs.load_row(connection, self.run_id)["progress"]
            runs.update(connection, self.run_id, progress={**progress, **facts})
            events.append(connection, "run.progress", self.run_id, **facts)

        step = StepRequest("progress", "progress", no_work, end=end, data=facts, at_once=True)
        await self._journal.step(step)

    async def note(self, key: str, value: str) -> None:
        try:
            spec = NoteSpec(key=key, value=make_storable(value)[:MAX_VALUE], scope=self.run_id)
        except ValidationError as error:
            raise invalid_spec(error, "ctx.note: ") from None

        def end(connection: Connection, _made: None) -> None:
            notes.put(connection, spec, None, self.run_id)

        await self._journal.step(StepRequest("note", key, no_work, end=end, at_once=True))

    async def read_note(self, key: str) -> str | None:
        read = partial(self._parts.db.read, notes.read_of_people, self.run_id, key)
        return await self._git_step("read_note", key, read)

    async def commit(self, message: str) -> str | None:
        async def perform(_step: StepRequest) -> Any:
            if not self._is_git:
                return None, None
            await restore_deleted(self._parts, self._owner)
            text = f"{message}\n\nRun: {self.run_id}"
            commit = await self._workspaces.commit(self._owner, text)
            return commit, commit or await self._workspaces.tip(self._owner)

        def end(connection: Connection, commits: Any) -> Any:
            if self._is_git:
                self._remember(connection, commits[0])
            return commits[1]

        tip = await self._journal.step(
            StepRequest("commit", message, perform, end=end, at_once=True)
        )
        return str(tip) if tip else None

    async def revert(self, commit: str) -> None:
        async def perform(step: StepRequest) -> None:
            if self._is_git:
                await restore_deleted(self._parts, self._owner)
                name = f"step-{step.position.replace('.', '-')}"
                await self._workspaces.restore(self._owner, commit, name)

        def end(connection: Connection, _result: None) -> None:
            if self._is_git:
                self._remember(connection, commit)

        await self._journal.step(StepRequest("revert", commit[:12], perform, end=end, at_once=True))

    def _remember(self, connection: Connection, commit: str | None) -> None:
        """Store the commit of the run's branch, so that exactly this commit is merged later."""
        runs.update(connection, self._owner, workspace_commit=commit)

    async def _branch(self) -> str:
        run = await self._parts.db.glance(runs.load_row, self._owner)
        branch: str = run["workspace_branch"]
        return branch

    async def _git_step(
        self, kind: str, label: str, perform: Callable[[], Awaitable[T]], *, again: bool = True
    ) -> T:
        step = StepRequest(kind, label, lambda _step: perform(), at_once=again)
        result: T = await self._journal.step(step)
        return result

    async def merge(self, work: TaskResult | RunResult) -> Merged:
        def perform(_step: StepRequest) -> Awaitable[Merged]:
            return self._merge(work)

        def end(connection: Connection, result: Merged) -> Any:
            if result.ok:
                self._remember(connection, result.commit)
                update_work(connection, work.id, merged_at=datetime.now(UTC))
            return result.model_dump(mode="json")

        step = StepRequest("merge", work.id, perform, end=end)
        return Merged.model_validate(await self._journal.step(step))

    async def budget(self) -> RemainingBudget:
        async def perform() -> Any:
            return (await self._control.left()).model_dump()

        return RemainingBudget.model_validate(await self._git_step("budget", "budget", perform))

    def lock(self, name: str, places: int = 1) -> AbstractAsyncContextManager[None]:
        return self._journal.lock(name, places)

    async def gather(self, *branches: Coroutine[Any, Any, T]) -> list[T]:
        return await self._journal.gather(branches)


def _run_ended(connection: Connection, run_id: str) -> Any:
    run = runs.get(connection, run_id)
    same = ("id", "status", "reason", "result", "title", "directory", "verified")
    values = {name: getattr(run, name) for name in same}
    values |= {name: getattr(run.workspace, name) for name in ("base_commit", "commit")}
    result = RunResult.model_validate({**values, "cost_usd": run.spent.cost_usd})
    return result.model_dump(mode="json")
