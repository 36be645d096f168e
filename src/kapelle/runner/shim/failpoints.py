"""Named points at which a crash test makes this process kill itself; standard library only."""

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
_passes_before_fork = 0


def count_on_from(passes: int) -> None:
    """Let a forked process count its passes after those of its elder siblings."""
    global _passes_before_fork
    _passes_before_fork = passes


def failpoint(name: str) -> None:
    """Die here if KAPELLE_FAILPOINT is this name, or name@N and this is the N-th pass."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    point, _, number = wanted.partition("@")
    if point != name:
        return
    _passes[name] = _passes.get(name, _passes_before_fork) + 1
    if not number or _passes[name] == int(number):
        os.kill(os.getpid(), signal.SIGKILL)
