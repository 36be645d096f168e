"""Kapelle conducts coding agents: background tasks that survive crashes and tell the truth."""

__version__ = "0.1.0"

# Importing `kapelle` loads nothing else; each name is looked up where it lives when it is used.
_HOMES = {
    "kapelle.client.async_client": ("AsyncClient", "connect_async"),
    "kapelle.client.client": ("Client", "connect"),
    "kapelle.domain.errors": (
        "AgentMisconfigured", "AgentNotFound", "Conflict", "Forbidden", "GitError", "InvalidInput",
        "KapelleError", "LimitReached", "MergeConflict", "NotFound", "Unauthorized", "Unavailable",
        "WorkspaceError",
    ),
    "kapelle.domain.run": ("Run", "Step"),
    "kapelle.domain.schedule": ("Firing", "Schedule", "ScheduleSpec", "ScheduleStatus"),
    "kapelle.domain.specs": ("CheckSpec", "McpServer", "RetrySpec", "TaskSpec"),
    "kapelle.domain.states": ("RunStatus", "TaskStatus"),
    "kapelle.domain.task": ("Event", "Task"),
    "kapelle.library.agent": ("Agent", "Request", "Response"),
    "kapelle.library.budget": ("Budget",),
    "kapelle.library.cli_agent": ("CliAgent",),
    "kapelle.library.interaction": ("Auto", "Console", "Interaction", "Suspend"),
    "kapelle.library.mock": ("MockAgent",),
    "kapelle.library.orchestrator": ("Orchestrator",),
    "kapelle.library.outcome": ("TeamOutcome",),
    "kapelle.patterns.best_of": ("BestOfSpec", "CandidateSpec"),
    "kapelle.patterns.loop": ("LoopSpec",),
    "kapelle.patterns.pipeline": ("PipelineSpec", "StepSpec"),
    "kapelle.patterns.spec": ("PatternSpec",),
    "kapelle.patterns.team": ("TeamSpec",),
    "kapelle.workspaces.sync": ("Worktree", "worktree"),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from kapelle.client.async_client import AsyncClient as AsyncClient
    from kapelle.client.async_client import connect_async as connect_async
    from kapelle.client.client import Client as Client
    from kapelle.client.client import connect as connect
    from kapelle.domain.errors import AgentMisconfigured as AgentMisconfigured
    from kapelle.domain.errors import AgentNotFound as AgentNotFound
    from kapelle.domain.errors import Conflict as Conflict
    from kapelle.domain.errors import Forbidden as Forbidden
    from kapelle.domain.errors import GitError as GitError
    from kapelle.domain.errors import InvalidInput as InvalidInput
    from kapelle.domain.errors import KapelleError as KapelleError
    from kapelle.domain.errors import LimitReached as LimitReached
    from kapelle.domain.errors import MergeConflict as MergeConflict
    from kapelle.domain.errors import NotFound as NotFound
    from kapelle.domain.errors import Unauthorized as Unauthorized
    from kapelle.domain.errors import Unavailable as Unavailable
    from kapelle.domain.errors import WorkspaceError as WorkspaceError
    from kapelle.domain.run import Run as Run
    from kapelle.domain.run import Step as Step
    from kapelle.domain.schedule import Firing as Firing
    from kapelle.domain.schedule import Schedule as Schedule
    from kapelle.domain.schedule import ScheduleSpec as ScheduleSpec
    from kapelle.domain.schedule import ScheduleStatus as ScheduleStatus
    from kapelle.domain.specs import CheckSpec as CheckSpec
    from kapelle.domain.specs import McpServer as McpServer
    from kapelle.domain.specs import RetrySpec as RetrySpec
    from kapelle.domain.specs import TaskSpec as TaskSpec
    from kapelle.domain.states import RunStatus as RunStatus
    from kapelle.domain.states import TaskStatus as TaskStatus
    from kapelle.domain.task import Event as Event
    from kapelle.domain.task import Task as Task
    from kapelle.library.agent import Agent as Agent
    from kapelle.library.agent import Request as Request
    from kapelle.library.agent import Response as Response
    from kapelle.library.budget import Budget as Budget
    from kapelle.library.cli_agent import CliAgent as CliAgent
    from kapelle.library.interaction import Auto as Auto
    from kapelle.library.interaction import Console as Console
    from kapelle.library.interaction import Interaction as Interaction
    from kapelle.library.interaction import Suspend as Suspend
    from kapelle.library.mock import MockAgent as MockAgent
    from kapelle.library.orchestrator import Orchestrator as Orchestrator
    from kapelle.library.outcome import TeamOutcome as TeamOutcome
    from kapelle.patterns.best_of import BestOfSpec as BestOfSpec
    from kapelle.patterns.best_of import CandidateSpec as CandidateSpec
    from kapelle.patterns.loop import LoopSpec as LoopSpec
    from kapelle.patterns.pipeline import PipelineSpec as PipelineSpec
    from kapelle.patterns.pipeline import StepSpec as StepSpec
    from kapelle.patterns.spec import PatternSpec as PatternSpec
    from kapelle.patterns.team import TeamSpec as TeamSpec
    from kapelle.workspaces.sync import Worktree as Worktree
    from kapelle.workspaces.sync import worktree as worktree
else:
    __all__ = sorted(_HOME_OF)

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOME_OF})
