"""Calls of agents, each in a thread of its own and within the budget, and processes, which the
daemon's own runner executes."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from kapelle.domain.errors import AgentMisconfigured, AgentNotFound, KapelleError
from kapelle.library.agent import Agent, Request, Response, Stop
from kapelle.library.budget import Account
from kapelle.runner.process_dir import Launch, ProcessEnd
from kapelle.runner.runner import Runner

T = TypeVar("T")

_log = logging.getLogger("kapelle.library")
_LOOK_S = 0.1


async def respond(agent: Agent, request: Request, account: Account) -> Response:
    """What came of a request: whatever goes wrong with one agent is a failed result.

    Raises LimitReached when the budget is used up before it, or ended it; and what is wrong with
    the agent itself, for which no other request would help.
    """
    stop = request.stop
    limit_s = account.within(request.timeout_s)
    report = partial(account.report, stop)
    with account.call(stop):
        left_usd = account.left.usd
        given = replace(request, timeout_s=limit_s, budget_usd=left_usd, spent=report)
        response = await _in_thread(agent, given)
        cost_usd = cost_of(response)
        if cost_usd is not None:
            report(cost_usd)
    if not response.ok:
        # Work that was done counts, even when the last of the budget went into it.
        account.require()
    return response


def cost_of(response: Response) -> float | None:
    """What the work cost, as far as the agent says so."""
    if response.cost_usd is not None:
        return response.cost_usd
    if response.usage:
        return response.usage.cost_usd
    return None


def _response(agent: Agent, request: Request) -> Response:
    try:
        response: object = agent.run(request)
    except (AgentMisconfigured, AgentNotFound):
        raise
    except KapelleError as error:
        return Response(ok=False, reason=error.with_hint)
    except Exception as error:
        _log.debug("%s failed", agent.name, exc_info=True)
        return Response(ok=False, reason=f"it raised {type(error).__name__}: {error}")
    if not isinstance(response, Response):
        kind = type(response).__name__
        return Response(ok=False, reason=f"{agent.name} returned a {kind} and not a Response")
    if response.hopeless:
        raise AgentMisconfigured(response.reason)
    return response


async def _in_thread(agent: Agent, request: Request) -> Response:
    """What an agent answers, or raises; after its limit, and when this is cancelled, it is told to
    stop. If it does not end then, its thread goes on, and what comes of it is not used."""
    stop = request.stop
    limit_s = request.timeout_s
    future: Future[Response] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(_response, agent, request))
        except BaseException as error:
            # This is the edge of a thread, which SystemExit must not cross.
            future.set_exception(
                error if isinstance(error, Exception) else RuntimeError(repr(error))
            )

    # A daemon: what cannot be ended must not keep the whole program from ending.
    threading.Thread(target=work, name="kapelle-agent", daemon=True).start()
    done = asyncio.wrap_future(future)
    try:
        await asyncio.wait({done}, timeout=limit_s)
        if not done.done():
            stop.request(f"{limit_s:g} s have passed")
    except asyncio.CancelledError:
        stop.request("the run was interrupted")
        raise
    finally:
        if stop.wanted:
            await asyncio.wait({done}, timeout=agent.ends_within_s)
        if not done.done():
            done.cancel()
    if done.cancelled():
        reason = f"It did not end when it had to, as {stop.reason}; it is left behind."
        return Response(ok=False, reason=reason)
    return done.result()


@contextmanager
def process_directory() -> Iterator[Path]:
    """Where one process is executed, with the runner's own files beside it; removed in the end."""
    with TemporaryDirectory(prefix="kapelle-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve() / "process"


async def execute(launch: Launch, stop: Stop) -> ProcessEnd:
    """Execute a command in such a directory to its end, or until it is to stop.

    Whatever it started ends with it, also when this is cancelled.
    """
    # Without a cgroup, which nobody would remove after this program was killed.
    runner = Runner(launch.process_dir.parent, use_cgroup=False)
    await runner.start()
    try:
        work = asyncio.ensure_future(runner.execute(launch))
        try:
            while not stop.wanted and not work.done():
                await asyncio.wait({work}, timeout=_LOOK_S)
        except asyncio.CancelledError:
            stop.request("it was interrupted")
            raise
        finally:
            if stop.wanted:
                runner.stop(launch.process_dir, stop.reason)
            await asyncio.wait({work})
        return work.result()
    finally:
        await runner.close()


def block_on(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns, for callers outside of an event loop and inside of one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
