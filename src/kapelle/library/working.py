"""Has an agent do one piece of work within what is left of the budget."""

import logging
from collections.abc import Callable
from dataclasses import replace

from kapelle.domain.errors import AgentMisconfigured, AgentNotFound, KapelleError
from kapelle.library.agent import Agent, Request, Response
from kapelle.library.errand import Errand, LeftBehind
from kapelle.library.ledger import Ledger, told_by

_log = logging.getLogger("kapelle.library")


async def work(agent: Agent, request: Request, ledger: Ledger) -> Response:
    """What came of it: whatever goes wrong with one agent is a failed result.

    Raises LimitReached when the budget is used up before it, or ended it; and what is wrong with
    the agent itself, for which no other request would help.
    """
    limits = [limit for limit in (request.timeout_s, ledger.left_s) if limit is not None]
    limit_s = min(limits, default=None)
    with ledger.call(request.stop) as call:
        told = replace(request, timeout_s=limit_s, budget_usd=ledger.left_usd, spent=call.tell)
        errand = Errand(_asked(agent, told), request.stop, agent.ends_within_s)
        try:
            response = await errand.run(limit_s)
        except LeftBehind as error:
            response = Response(
                ok=False, reason=f"It did not end when it had to, as {error}; it is left behind."
            )
        cost_usd = told_by(response)
        if cost_usd is not None:
            call.tell(cost_usd)
    if not response.ok:
        # Work that was done counts, even when the last of the budget went into it.
        ledger.require()
    return response


def _asked(agent: Agent, request: Request) -> Callable[[], Response]:
    def ask() -> Response:
        try:
            response: object = agent.run(request)
        except (AgentMisconfigured, AgentNotFound):
            raise
        except KapelleError as error:
            return Response(ok=False, reason=f"{error.message} {error.hint or ''}".strip())
        except Exception as error:
            _log.debug("%s failed", agent.name, exc_info=True)
            return Response(ok=False, reason=f"it raised {type(error).__name__}: {error}")
        if not isinstance(response, Response):
            kind = type(response).__name__
            return Response(ok=False, reason=f"{agent.name} returned a {kind} and not a Response")
        if response.hopeless:
            raise AgentMisconfigured(response.reason)
        return response

    return ask
