"""Call agents, each in a thread of its own and within the budget, and execute processes.

Processes are executed by the daemon's runner.
"""

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
    """Hand a request to an agent and return its response; an agent's error is a failed response.

    Raises LimitReached if the budget is used up before the call or during it. Raises
    AgentMisconfigured or AgentNotFound if every other request to the agent would fail, too.
    """
    stop = request.stop
    limit_s = account.within(request.timeout_s)
    report = partial(account.report, stop)
    with account.call(stop):
        left_usd = account.left.usd
        limited = replace(request, timeout_s=limit_s, budget_usd=left_usd, spent=report)
        response = await _run_in_thread(agent, limited)
        cost_usd = cost_of(response)
        if cost_usd is not None:
            report(cost_usd)
    if not response.ok:
        # A response that is ok counts, even if it used up the budget.
        account.require()
    return response


def cost_of(response: Response) -> float | None:
    """Return the cost that an agent reports, or None."""
    if response.cost_usd is not None:
        return response.cost_usd
    if response.usage:
        return response.usage.cost_usd
    return None


def _call(agent: Agent, request: Request) -> Response:
    """Call an agent, and return what goes wrong as a failed response."""
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


async def _run_in_thread(agent: Agent, request: Request) -> Response:
    """Call an agent in a thread, and tell it to stop after its time limit or at a cancellation.

    If the agent does not stop, its thread is abandoned, and its response is not used.
    """
    stop = request.stop
    limit_s = request.timeout_s
    future: Future[Response] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(_call, agent, request))
        except BaseException as error:
            # SystemExit must not leave the thread.
            future.set_exception(
                error if isinstance(error, Exception) else RuntimeError(repr(error))
            )

    # A daemon thread, because an abandoned one must not keep the program from ending.
    threading.Thread(target=work, name="kapelle-agent", daemon=True).start()
    answer = asyncio.wrap_future(future)
    try:
        await asyncio.wait({answer}, timeout=limit_s)
        if not answer.done():
            stop.request(f"{limit_s:g} s have passed")
    except asyncio.CancelledError:
        stop.request("the run was interrupted")
        raise
    finally:
        if stop.wanted:
            await asyncio.wait({answer}, timeout=agent.ends_within_s)
        if not answer.done():
            answer.cancel()
    if answer.cancelled():
        reason = f"The agent did not stop in time ({stop.reason}); its thread is left behind."
        return Response(ok=False, reason=reason)
    return answer.result()


@contextmanager
def process_directory() -> Iterator[Path]:
    """Create the directory of one process, beside the runner's own files; remove it at the end."""
    with TemporaryDirectory(prefix="kapelle-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve() / "process"


async def execute(launch: Launch, stop: Stop) -> ProcessEnd:
    """Execute a command in a process directory until it ends or is stopped.

    All processes that it started end with it, also at a cancellation.
    """
    # Without a cgroup, which would stay behind if this program were killed.
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
    """Run a coroutine and return its result, outside of an event loop and inside of one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
