"""Progress notifications of a long call: one short line for each event of the awaited work.

The protocol requires that the number rises with every notification. The total is sent only where it
is known: the iterations, steps or items of one run, or the number of awaited tasks and runs.
"""

import asyncio
import time
from collections.abc import Iterator
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

# Clients give up on calls that are silent for long.
_SILENCE_S = 5.0
_MAX_IDS = 200
_MAX_MESSAGE = 300
# The number rises by this much when the work itself has made no step.
_MIN_STEP = 0.001
# Facts in the progress of a run that count something, each with the fact, or the field of the
# pattern's specification, that has its total: numbers of ended parts, and the number of the current
# one.
_COUNTS_OF_ENDED = (("ended", "items"), ("done", "milestones"))
_CURRENT_NUMBERS = (("iteration", "max_iterations"), ("step", "steps"), ("cycle", "cycles"))
_TASK_EVENTS = frozenset({"running", "waiting", "completed", "failed", "cancelled", "reported"})
_VERDICTS = {"pass": "checks pass", "progress": "checks fail", "keep": "better, kept",
             "discard": "not better, discarded", "fail": "failed", "start": "start"}  # fmt: skip
_PHASES = {"done": "goal reached", "not done": "goal not reached"}


class Progress:
    """The progress of one call, sent to its client as notifications."""

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
        # A client that wants notifications sends a token with its call.
        self._is_requested = bool((context.meta or {}).get("progress_token") is not None)
        self._works: dict[str, Task | Run] = {}
        self._ended_ids: set[str] = set()
        # The number that was sent last, and the steps of the work, which it follows.
        self._value = 0.0
        self._units = 0.0
        self._total: float | None = None
        self._message = ""
        self._start = time.monotonic()

    async def report_until(self, call: asyncio.Task[Any]) -> None:
        """Report progress until the call has ended."""
        if not self._is_requested:
            await asyncio.wait([call])
            return
        reports = asyncio.create_task(self._report_events())
        heartbeat = asyncio.create_task(self._report_silence())
        try:
            await asyncio.wait([call])
        finally:
            reports.cancel()
            heartbeat.cancel()
            await asyncio.gather(reports, heartbeat, return_exceptions=True)

    async def _report_silence(self) -> None:
        """Report that the call continues whenever nothing was reported for some time."""
        while True:
            value_before = self._value
            await asyncio.sleep(_SILENCE_S)
            if self._value != value_before:
                continue
            text = f"{self._tool.name}: waiting for {time.monotonic() - self._start:.0f} s"
            if self._message:
                text = f"{text}; last: {self._message}"
            await self._send(text)

    async def _report_events(self) -> None:
        # For ids that are unknown or forbidden, the call itself fails.
        with suppress(KapelleError):
            after = await self._service.events.last_seq()
            await self._load_works()
            if not self._works:
                return
            event_stream = self._service.events.stream(after, None, True)
            async with aclosing(cast(Any, event_stream)) as stream:
                async for events in stream:
                    for event in events:
                        await self._report(event)

    async def _load_works(self) -> None:
        """Load the awaited tasks and runs, and report the state of each."""
        ids = self._list_ids()
        caller = await attempt_too(self._request, self._service)
        await self._service.callers.require_own(caller, *ids, itself=True)
        for text in ids:
            work = await self._service.work.get(text)
            self._works[work.id] = work
            if work.status in FINAL | RUN_FINAL:
                self._ended_ids.add(work.id)
        if len(self._works) > 1:
            self._total = float(len(self._works))
            self._units = float(len(self._ended_ids))
        for work in self._works.values():
            facts = work.progress if isinstance(work, Run) else {}
            self._update_count(work, facts)
            place = _describe_place(facts, self._find_limit(work, facts))
            details = ", ".join(text for text in (place, work.reason) if text)
            text = str(work.status)
            if details:
                text = f"{text}: {details}"
            await self._send_about(work, text)

    def _list_ids(self) -> list[str]:
        """Return the ids of the tasks and runs for which the call waits."""
        values: list[object] = []
        ids = self._arguments.get("ids")
        if isinstance(ids, list):
            values += ids
        for name in ("task_id", "run_id"):
            values.append(self._arguments.get(name))
        return [value for value in values if isinstance(value, str)][:_MAX_IDS]

    async def _report(self, event: Event) -> None:
        """Send a notification about an event of the awaited work, unless it says nothing."""
        work = self._works.get(event.task_id or "") or self._works.get(event.run_id or "")
        if work is None:
            return
        text = self._describe_event(work, event)
        if not text:
            return
        noun, _, verb = event.kind.partition(".")
        # The end of a task inside an awaited run is not the end of the run.
        is_about_part = noun == "task" and isinstance(work, Run)
        is_own = work.id in {event.task_id, event.run_id} and noun in {"task", "run"}
        if verb in FINAL and is_own and not is_about_part:
            self._ended_ids.add(work.id)
            self._units = max(self._units, float(len(self._ended_ids)))
        await self._send_about(work, text)

    def _describe_event(self, work: Task | Run, event: Event) -> str:
        """Return one line about an event, empty if it is of no interest."""
        noun, _, verb = event.kind.partition(".")
        data = event.data
        if event.kind == "run.progress":
            self._update_count(work, data)
            return _describe_facts(data, self._find_limit(work, data))
        if noun == "check" and verb != "started":
            return f"check {data.get('name')} {verb}"
        if noun == "task" and verb in _TASK_EVENTS:
            text = _add_reason(verb, data)
            if isinstance(work, Run):
                return f"{data.get('title') or 'a task'} {text}"
            return text
        if noun == "run" and verb not in {"created", "queued", "marked", "archived"}:
            return _add_reason(verb, data)
        if event.kind == "attempt.warning":
            return str(data.get("text") or "")
        return ""

    def _find_limit(self, work: Task | Run, facts: dict[str, Any]) -> int | None:
        """Return the maximum number of iterations, steps or cycles of a run, if it is known."""
        if not isinstance(work, Run):
            return None
        for name, total in _CURRENT_NUMBERS:
            if facts.get(name) is None:
                continue
            default = _find_defaults(work.pattern).get(total)
            limit = facts.get(total) or work.spec.get(total) or default
            if isinstance(limit, int) and limit > 0:
                return limit
            return None
        return None

    def _update_count(self, work: Task | Run, facts: dict[str, Any]) -> None:
        """Update number and total from the progress of a run, if it alone is awaited."""
        if len(self._works) != 1:
            return
        for name, total_name in _COUNTS_OF_ENDED:
            count = facts.get(name)
            total = facts.get(total_name)
            if isinstance(total, list):
                total = len(total)
            if isinstance(count, int) and isinstance(total, int) and total > 0:
                self._units = float(count)
                self._total = float(total)
                return
        for name, _ in _CURRENT_NUMBERS:
            number = facts.get(name)
            if isinstance(number, int):
                is_over = facts.get("verdict") or facts.get("phase") in {"done", "not done"}
                if not is_over:
                    # The current iteration does not count until it has ended.
                    number = max(number - 1, 0)
                self._units = float(number)
                self._total = self._find_limit(work, facts)
                return

    async def _send_about(self, work: Task | Run, text: str) -> None:
        if len(self._works) > 1:
            text = f"{make_title(work.title, 60)}: {text}"
        self._message = make_title(text, _MAX_MESSAGE)
        await self._send(self._message)

    async def _send(self, message: str) -> None:
        step = 1.0
        # The total of a run may be known only later, so its number must begin small.
        if self._total or any(isinstance(work, Run) for work in self._works.values()):
            step = _MIN_STEP
        self._value = round(max(self._units, self._value + step), 3)
        await self._context.session.report_progress(self._value, self._total, message)


def _add_reason(verb: str, data: dict[str, Any]) -> str:
    text = verb
    if data.get("verified") is False:
        text = f"{text}, not verified"
    if data.get("reason"):
        text = f"{text}: {data['reason']}"
    return text


def _describe_place(facts: dict[str, Any], limit: int | None) -> str:
    """Return the current iteration, step or cycle of a run, with the number of all."""
    for name, _ in _CURRENT_NUMBERS:
        if facts.get(name) is None:
            continue
        if limit:
            return f"{name} {facts[name]}/{limit}"
        return f"{name} {facts[name]}"
    return ""


def _describe_facts(facts: dict[str, Any], limit: int | None) -> str:
    """Return the progress of a run, such as `iteration 2/4: 3/3 subgoals ok, checks pass`."""
    texts = [*_describe_results(facts), *_describe_values(facts)]
    place = _describe_place(facts, limit)
    text = ", ".join(texts)
    if place and text:
        return f"{place}: {text}"
    return place or text


def _describe_results(facts: dict[str, Any]) -> Iterator[str]:
    """Yield texts about subgoals, checks, the verdict, the phase and items."""
    if facts.get("planned") is not None:
        yield f"{facts.get('merged', 0)}/{facts['planned']} subgoals ok"
    checks = facts.get("checks")
    if isinstance(checks, dict) and checks.get("of"):
        if checks.get("passed") == checks["of"]:
            yield "checks pass"
        else:
            yield f"{checks.get('passed')}/{checks['of']} checks pass"
    if facts.get("verdict") is not None:
        verdict = str(facts["verdict"])
        yield _VERDICTS.get(verdict, verdict)
    if facts.get("phase") is not None:
        phase = str(facts["phase"])
        yield _PHASES.get(phase, phase)
    if facts.get("ended") is not None and facts.get("items") is not None:
        yield f"{facts['ended']}/{facts['items']} items ended"
        if facts.get("failed"):
            yield f"{facts['failed']} failed"
    subgoals = facts.get("subgoals")
    if isinstance(subgoals, list):
        yield f"{len(subgoals)} subgoals"


def _describe_values(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the facts that are shown as they are."""
    for name in ("doing", "score", "best", "problem", "lack", "reason"):
        value = facts.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, float | int) and not isinstance(value, bool):
            yield f"{name} {value:.12g}"
    for name in ("candidates", "eligible", "winner", "round", "loop", "milestones"):
        if isinstance(facts.get(name), int):
            yield f"{name} {facts[name]}"


def _find_defaults(pattern_name: str) -> dict[str, Any]:
    """Return the default of every field of a built-in pattern's specification."""
    for pattern in load_built_in():
        if pattern.name == pattern_name:
            fields = pattern.spec_schema["properties"]
            return {name: schema.get("default") for name, schema in fields.items()}
    return {}
