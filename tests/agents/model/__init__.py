"""A model server on loopback that plays a script to whichever coding agent calls it.

Point an agent's base URL at `http://127.0.0.1:PORT/s/LANE[/v1]`; every lane has its own script. A
marker `[[lane:NAME]]` anywhere in the conversation overrides the lane of the address.

Each request that offers tools, comes from aider, or is on a lane whose name begins with `plain`
takes the next step. Other requests (titles, classifiers) get "ok", or the least JSON that fits the
schema they ask for. When a script is spent the answer is the text "done". The steps:

    {"write": {"path": P, "content": C}}  a file, with whichever tool the agent declared
    {"bash": "command"}                   a shell command, likewise
    {"tool": "suffix", "args": {…}}       the declared tool whose name is or ends so (MCP)
    {"text": "…"}                         a final answer
    {"error": 429}                        an HTTP error, with message, retry_after (s), headers,
                                          reset_in (s: the provider's own headers)
    {"overflow": true}                    the prompt is too long, as the provider says it
    {"billing": true}                     the money is spent, as the provider says it
    {"hang": 30}                          nothing for 30 s, then the connection drops
    {"drop": true}                        the stream starts, then the connection drops

Any step may carry delay (seconds), times (-1: for ever), say (text before a tool call),
usage ([input, output] tokens), cached (how many of the input tokens were cached) and find
({name: pattern}: $name in args is what the pattern's group first matched in the conversation).
"""

from tests.agents.model.scripts import SABOTAGE, Request, Scripts, Step
from tests.agents.model.server import ModelServer, serve

__all__ = ["SABOTAGE", "ModelServer", "Request", "Scripts", "Step", "serve"]
