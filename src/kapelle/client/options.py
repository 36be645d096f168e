"""The keywords of the methods that start work: the fields of the specs, as programs write them.

A test holds them equal to the fields of domain/specs.py and of patterns/, which say what
each may be. What is left out has the daemon's default.
"""

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypedDict

from kapelle.domain.schedule import MissedPolicy
from kapelle.domain.specs import (
    CheckSpec,
    DepsPolicy,
    McpServer,
    Priority,
    RetrySpec,
    WorkspaceKind,
)
from kapelle.patterns.best_of import CandidateSpec
from kapelle.patterns.pipeline import StepSpec

Directory: TypeAlias = str | os.PathLike[str]
Check: TypeAlias = str | CheckSpec
Direction: TypeAlias = Literal["minimize", "maximize"]


class _Start(TypedDict, total=False):
    """What everything that is started takes."""

    idempotency_key: str | None
    """Who sends the same key again gets what it made the first time."""


class _Work(_Start, total=False):
    """What tasks and patterns have in common."""

    directory: Directory | None
    title: str | None
    project: str | None
    agent: str | None
    model: str | None
    fallback_agents: Sequence[str]
    priority: Priority | Literal["P0", "P1", "P2"]
    system_prompt: str | None
    env: Mapping[str, str]
    workspace: WorkspaceKind | Literal["worktree", "in_place"] | None
    base: str | None
    budget_usd: float | None


class TaskOptions(_Work, total=False):
    """The fields of TaskSpec besides the prompt."""

    depends_on: Sequence[str]
    deps_policy: DepsPolicy | Literal["cancel", "run"]
    continue_from: str | None
    fork_session: bool
    max_turns: int | None
    timeout_s: float | None
    checks: Sequence[Check]
    retry: RetrySpec
    mcp: Mapping[str, McpServer]
    tags: Sequence[str]
    context: Mapping[str, str]


class PatternOptions(_Work, total=False):
    """The fields of PatternSpec, which every pattern takes."""

    task_timeout_s: float | None
    max_seconds: float | None
    max_agent_calls: int | None


class PipelineOptions(PatternOptions, total=False):
    """The fields of PipelineSpec besides the steps."""

    workspaces: Literal["shared", "each"]


class LoopOptions(PatternOptions, total=False):
    """The fields of LoopSpec besides the prompt."""

    steps: Sequence[str | StepSpec]
    until: Sequence[Check]
    eval: str | None
    direction: Direction | None
    eval_mode: Literal["shell", "agent"]
    eval_prompt: str | None
    eval_schema: Mapping[str, Any] | None
    eval_timeout_s: float
    judge: str | None
    judge_model: str | None
    target: float | None
    max_iterations: int
    max_failures: int
    cooldown_s: float
    checkpoint: bool
    convergence: int


class TeamOptions(PatternOptions, total=False):
    """The fields of TeamSpec besides the goal."""

    success_criteria: Sequence[str]
    verify: Sequence[Check]
    planner: str | None
    worker: str | None
    reviewer: str | None
    planner_model: str | None
    worker_model: str | None
    reviewer_model: str | None
    max_iterations: int
    max_workers: int
    max_subgoals: int
    max_task_retries: int
    ask: bool


class BestOfOptions(PatternOptions, total=False):
    """The fields of BestOfSpec besides the prompt."""

    candidates: Sequence[str | CandidateSpec]
    count: int | None
    checks: Sequence[Check]
    eval: str | None
    direction: Direction | None
    eval_timeout_s: float
    judge: str | None
    judge_model: str | None


class ScheduleOptions(_Start, total=False):
    """The fields of ScheduleSpec besides what is started."""

    title: str | None
    cron: str | None
    at: datetime | None
    every_s: float | None
    after: str | None
    timezone: str
    missed: MissedPolicy | Literal["skip", "catchup", "fail"]
    overlap: bool
    max_runs: int | None
    expires_at: datetime | None
