"""The named places of the engine where a test may have the daemon kill itself."""

from kapelle.runner.shim.system import failpoint

ENGINE_FAILPOINTS = (
    "conductor_after_begin",
    "conductor_after_start",
    "perform_begin",
    "prepare_after_workspace",
    "perform_after_prepare",
    "run_before_execute",
    "run_after_execute",
    "perform_after_run",
    "verify_before_check",
    "perform_after_verify",
    "perform_end",
)

RUN_FAILPOINTS = (
    "run_after_take_up",
    "run_begin",
    "step_before_begin",
    "step_after_begin",
    "step_before_end",
    "step_after_end",
    "run_before_end",
    "run_after_end",
)

__all__ = ["ENGINE_FAILPOINTS", "RUN_FAILPOINTS", "failpoint"]
