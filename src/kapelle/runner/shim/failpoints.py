"""Named points at which a crash test lets this process kill itself; standard library only."""

import functools
import os
import signal

ALL_FAILPOINTS = (
    "shim_before_claim",
    "shim_after_claim",
    "shim_after_fork",
    "shim_after_run_json",
    "shim_before_exit_json",
    "shim_after_exit_json",
    "runner_after_intent",
    "runner_after_spawn",
    "runner_before_return",
)
VARIABLE = "KAPELLE_FAILPOINT"

_passes: dict[str, int] = {}
# A forked shim continues the count of the shims that were forked before it.
elder_siblings = 0


@functools.cache
def _read_variable() -> tuple[str, str]:
    """Return the failpoint that KAPELLE_FAILPOINT names, and the number of the pass."""
    point, _, number = os.environ.get(VARIABLE, "").partition("@")
    return point, number


def failpoint(name: str) -> None:
    """Kill this process if KAPELLE_FAILPOINT is this name, or is name@N at the N-th pass."""
    point, number = _read_variable()
    if point == name:
        _passes[name] = _passes.get(name, elder_siblings) + 1
        if not number or _passes[name] == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
