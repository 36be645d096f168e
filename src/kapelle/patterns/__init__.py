"""Orchestrations as durable functions: each pattern is straight-line code over a Context.

A pattern of one's own needs only what is named here.
"""

from kapelle.domain.run_specs import PatternSpec
from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Checked, Failed, Merged, RunResult, Scored, TaskResult

__all__ = [
    "Checked",
    "Context",
    "Failed",
    "Merged",
    "PatternSpec",
    "RunResult",
    "Scored",
    "TaskResult",
    "pattern",
]
