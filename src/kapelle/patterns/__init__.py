"""Patterns: durable functions, each of them straight-line code over a Context.

A pattern of your own needs only the names exported here.
"""

from kapelle.patterns.context import Context
from kapelle.patterns.registry import pattern
from kapelle.patterns.results import Checked, Failed, Merged, RunResult, Scored, TaskResult
from kapelle.patterns.spec import PatternSpec

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
