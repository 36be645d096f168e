"""Progress of a call that takes its time: each event of what it waits for, as one short line.

The protocol wants the number to rise with every notification, so a total is told only where one is
known: the iterations, steps or items of one run, or the number of tasks and runs that are awaited.
"""

import asyncio
import time
from contextlib import aclosing, suppress
from typing import Any, cast

from mcp.server.context import ServerRequestContext
from starlette.requests import HTTPConnection

from kapelle.api.mcp.tools import Tool
from kapelle.api.security import attempt_too
from kapelle.domain.errors import KapelleError
from kapelle.domain.run import Run
from kapelle.domain.states import FINAL, RUN_FINAL
from kapelle.domain.task import Event, Task
from kapelle.domain.text import make_title
from kapelle.patterns.registry import load_built_in
from kapelle.service import Service

# Clients give up on calls that say nothing for long.
_SILENCE_S = 5.0
_MOST_NAMED = 200
_LONGEST = 300
# The least by which the number rises where the work itself made no step.
_LEAST_STEP = 0.001
# Facts of a run's progress that count something, each with the fact or the field of the pattern's
# specification that holds its total; counted are those that have ended, or the one under way.
_ENDED = (("ended", "items"), ("done", "milestones"))
_UNDER_WAY = (("iteration", "max_iterations"), ("step", "steps"), ("cycle", "cycles"))
_TASK_EVENTS = frozenset({"running", "waiting", "completed", "failed", "cancelled", "reported"})
_VERDICTS = {"pass": "checks pass", "progress": "checks fail", "keep": "better, kept",
             "discard": "not better, discarded", "fail": "failed", "start": "start"}  # fmt: skip


class Progress:
    """What is told while a call goes on."""

    def __init__(
        self,
        context: ServerRequestContext,
        service: Service,
        tool: Tool,
        arguments: dict[str, Any],
        request: HTTPConnection,
    ) -> None:
        self._context = context
        self._service = service
        self._tool = tool
        self._arguments = arguments
        self._request = request
        self._is_wanted = bool((context.meta or {}).get("progress_token") is not None)
        self._works: dict[str, Task | Run] = {}
        self._ended: set[str] = set()
        self._value = 0.0
        self._units = 0.0
        self._total: float | None = None
        self._message = ""
        self._began = time.monotonic()

    async def tell_until(self, calling: asyncio.Task[Any]) -> None:
        """Tell what happens until the call has ended."""
        if not self._is_wanted:
            await asyncio.wait([calling])
            return
        telling = asyncio.create_task(self._tell_events())
        beating = asyncio.create_task(self._beat())
        try:
            await asyncio.wait([calling])
        finally:
            for one in (telling, beating):
                one.cancel()
            await asyncio.gather(telling, beating, return_exceptions=True)

    async def _beat(self) -> None:
        """Say that the call goes on wherever nothing was told for some time."""
        while True:
            before = self._value
            await asyncio.sleep(_SILENCE_S)
            if self._value == before:
                waited = f"{time.monotonic() - self._began:.0f} s"
                if self._message:
                    last = f"; last: {self._message}"
                else:
                    last = ""
                await self._send(f"{self._tool.name}: waiting for {waited}{last}")

    async def _tell_events(self) -> None:
        # What this caller may not see, or what is not there, is refused by the call itself.
        with suppress(KapelleError):
            after = await self._service.events.last_seq()
            await self._load()
            if not self._works:
                return
            events = self._service.events.stream(after, None, True)
            async with aclosing(cast(Any, events)) as stream:
                async for found in stream:
                    for event in found:
                        await self._tell(event)

    async def _load(self) -> None:
        """Load what is awaited, and tell how it is at first."""
        ids = self._awaited()
        caller = await attempt_too(self._request, self._service)
        await self._service.callers.require_own(caller, *ids, itself=True)
        for text in ids:
            work = await self._service.work.get(text)
            self._works[work.id] = work
            if work.status in FINAL | RUN_FINAL:
                self._ended.add(work.id)
        if len(self._works) > 1:
            self._total = float(len(self._works))
            self._units = float(len(self._ended))
        for work in self._works.values():
            if isinstance(work, Run):
                facts = work.progress
            else:
                facts = {}
            self._update_count(work, facts)
            place = _describe_place(facts, self._find_limit(work, facts))
            words = ", ".join(one for one in (place, work.reason) if one)
            await self._send_about(work, f"{work.status}: {words}" if words else str(work.status))

    def _awaited(self) -> list[str]:
        """The tasks and runs that the call is about."""
        ids = self._arguments.get("ids")
        if isinstance(ids, list):
            named = [*ids]
        else:
            named = []
        named += [self._arguments[key] for key in ("task_id", "run_id") if key in self._arguments]
        return [one for one in named if isinstance(one, str)][:_MOST_NAMED]

    async def _tell(self, event: Event) -> None:
        work = self._works.get(event.task_id or "") or self._works.get(event.run_id or "")
        if work is None or not (words := self._describe_event(work, event)):
            return
        noun, _, what = event.kind.partition(".")
        if work.id in {event.task_id, event.run_id} and noun in {"task", "run"}:
            is_of_part = noun == "task" and isinstance(work, Run)
            if what in FINAL and not is_of_part:
                self._ended.add(work.id)
                self._units = max(self._units, float(len(self._ended)))
        await self._send_about(work, words)

    def _describe_event(self, work: Task | Run, event: Event) -> str:
        """What an event says, in a line; empty for what tells nobody anything."""
        noun, _, what = event.kind.partition(".")
        data = event.data
        if event.kind == "run.progress":
            self._update_count(work, data)
            return _describe_facts(data, self._find_limit(work, data))
        if noun == "check" and what != "started":
            return f"check {data.get('name')} {what}"
        if noun == "task" and what in _TASK_EVENTS:
            if isinstance(work, Run):
                part = f"{data.get('title') or 'a task'} "
            else:
                part = ""
            return _add_reason(f"{part}{what}", data)
        if noun == "run" and what not in {"created", "queued", "marked", "archived"}:
            return _add_reason(what, data)
        if event.kind == "attempt.warning":
            return str(data.get("text") or "")
        return ""

    def _find_limit(self, work: Task | Run, facts: dict[str, Any]) -> int | None:
        """The most iterations, steps or cycles that a run makes."""
        for name, total in _UNDER_WAY:
            if facts.get(name) is None or not isinstance(work, Run):
                continue
            default = _find_defaults(work.pattern).get(total)
            limit = facts.get(total) or work.spec.get(total) or default
            if isinstance(limit, int) and limit > 0:
                return limit
            return None
        return None

    def _update_count(self, work: Task | Run, facts: dict[str, Any]) -> None:
        """Take over how far a run is, where one run alone is awaited."""
        if len(self._works) != 1:
            return
        for name, total in _ENDED:
            of = facts.get(total)
            of = len(of) if isinstance(of, list) else of
            if isinstance(facts.get(name), int) and isinstance(of, int) and of > 0:
                self._units, self._total = float(facts[name]), float(of)
                return
        for name, _ in _UNDER_WAY:
            if isinstance(facts.get(name), int):
                is_over = facts.get("verdict") or facts.get("phase") in {"done", "not done"}
                self._units = float(max(facts[name] - (0 if is_over else 1), 0))
                self._total = self._find_limit(work, facts)
                return

    async def _send_about(self, work: Task | Run, words: str) -> None:
        if len(self._works) > 1:
            title = f"{make_title(work.title, 60)}: "
        else:
            title = ""
        self._message = make_title(f"{title}{words}", _LONGEST)
        await self._send(self._message)

    async def _send(self, message: str) -> None:
        # Of a run the total may be known later, so its number begins small.
        is_counted = self._total or any(isinstance(one, Run) for one in self._works.values())
        step = _LEAST_STEP if is_counted else 1.0
        self._value = round(max(self._units, self._value + step), 3)
        await self._context.session.report_progress(self._value, self._total, message)


def _add_reason(what: str, data: dict[str, Any]) -> str:
    reason = data.get("reason")
    if data.get("verified") is False:
        unverified = ", not verified"
    else:
        unverified = ""
    if reason:
        return f"{what}{unverified}: {reason}"
    return f"{what}{unverified}"


def _describe_place(facts: dict[str, Any], limit: int | None) -> str:
    """Where a run is: its iteration, step or cycle, of how many."""
    for name, _ in _UNDER_WAY:
        if facts.get(name) is not None:
            of = f"/{limit}" if limit else ""
            return f"{name} {facts[name]}{of}"
    return ""


def _describe_facts(facts: dict[str, Any], limit: int | None) -> str:
    """What a run says of its progress, such as `iteration 2/4: 3/3 subgoals ok, checks pass`."""
    found: list[str] = []
    if facts.get("planned") is not None:
        found.append(f"{facts.get('merged', 0)}/{facts['planned']} subgoals ok")
    checks = facts.get("checks")
    if isinstance(checks, dict) and checks.get("of"):
        found.append(
            "checks pass"
            if checks.get("passed") == checks["of"]
            else f"{checks.get('passed')}/{checks['of']} checks pass"
        )
    if facts.get("verdict") is not None:
        found.append(_VERDICTS.get(str(facts["verdict"]), str(facts["verdict"])))
    if facts.get("phase") is not None:
        named = {"done": "goal reached", "not done": "goal not reached"}
        found.append(named.get(str(facts["phase"]), str(facts["phase"])))
    if facts.get("ended") is not None and facts.get("items") is not None:
        found.append(f"{facts['ended']}/{facts['items']} items ended")
        found += [f"{facts['failed']} failed"] if facts.get("failed") else []
    if isinstance(subgoals := facts.get("subgoals"), list):
        found.append(f"{len(subgoals)} subgoals")
    for name in ("doing", "score", "best", "problem", "lack", "reason"):
        value = facts.get(name)
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, float | int) and not isinstance(value, bool):
            found.append(f"{name} {value:.12g}")
    known = ("candidates", "eligible", "winner", "round", "loop", "milestones")
    found += [f"{name} {facts[name]}" for name in known if isinstance(facts.get(name), int)]
    place = _describe_place(facts, limit)
    words = ", ".join(found)
    if place and words:
        return f"{place}: {words}"
    return place or words


def _find_defaults(pattern: str) -> dict[str, Any]:
    """The default of every field of a built-in pattern's specification."""
    for known in load_built_in():
        if known.name == pattern:
            fields = known.spec_schema["properties"].items()
            return {name: one.get("default") for name, one in fields}
    return {}
