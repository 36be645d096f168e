"""Needs: why work needs a person, and which needs share a cause."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from kapelle.domain.failures import FailureClass
from kapelle.domain.states import RunStatus, TaskStatus


class NeedKind(StrEnum):
    """Why work needs a person, in the order in which needs are listed."""

    QUESTION = "question"  # an agent or a run asks, or a repository must be trusted
    FAILURE = "failure"
    DELIVERY = "delivery"  # a merge or pull request that could not be made, or whose CI failed
    MERGE = "merge"  # verified, and on a branch that nobody has merged
    LOOK = "look"  # completed with changes that no check has proven, and not looked at
    PAUSED = "paused"
    FLAG = "flag"


# Failures of these classes have one cause for all tasks of an agent.
_OF_AGENT = frozenset(
    {
        FailureClass.AUTHENTICATION,
        FailureClass.BILLING,
        FailureClass.CAPABILITY,
        FailureClass.ENVIRONMENT,
        FailureClass.OVERLOADED,
        FailureClass.RATE_LIMIT,
    }
)
# Failures of these classes are alike whoever did the work.
_OF_MACHINE = frozenset({FailureClass.DISK_FULL, FailureClass.LIMIT})


def find_need(
    work: Mapping[Any, Any],
    now: datetime,
    *,
    verified: bool | None,
    delivery: Mapping[Any, Any] | None,
    has_question: bool,
) -> NeedKind | None:
    """Return why a stored task or run needs a person now; None if it does not.

    work is its row, with or without the columns that play no part here.
    """
    snoozed_until = work["snoozed_until"]
    if work["archived_at"] is not None or (snoozed_until is not None and snoozed_until > now):
        return None
    kind = _open_need(work, has_question)
    if kind is None and not is_part(work):
        kind = _ended_need(work, verified, delivery)
    if kind is None and work["flagged_at"] is not None:
        kind = NeedKind.FLAG
    return kind


def is_part(work: Mapping[Any, Any]) -> bool:
    """Return whether work is part of a run or was started by the attempt of another task."""
    if "run_id" in work:
        outer_run = work["run_id"]
    else:
        outer_run = work["parent_id"]
    return outer_run is not None or work["parent_task_id"] is not None


def has_changes(work: Mapping[Any, Any]) -> bool:
    """Return whether work left commits on a branch of its own."""
    commit = work["workspace_commit"]
    if commit is None or not work["workspace_branch"] or work["workspace_owner"] is not None:
        return False
    return bool(commit != work["workspace_base_commit"])


def is_undelivered(status: str, delivery: Mapping[Any, Any] | None) -> bool:
    """Return whether a requested merge or pull request needs a person."""
    if delivery is None:
        return False
    if delivery["status"] == "failed":
        return True
    if delivery["state"] in {"draft", "open"} and delivery["ci"] == "failed":
        return True
    is_held = delivery["status"] == "pending" and bool(delivery["reason"])
    return is_held and status == TaskStatus.COMPLETED


def find_cause(kind: NeedKind, failure: str | None, agent: str | None) -> str | None:
    """Return the cause that a need shares with others, so that one action settles all of them.

    None means that the need stands alone.
    """
    if kind is NeedKind.LOOK:
        return kind
    if kind is not NeedKind.FAILURE or failure is None:
        return None
    if failure in _OF_AGENT:
        return f"{failure}:{agent}"
    if failure in _OF_MACHINE:
        return failure
    return None


def _open_need(work: Mapping[Any, Any], has_question: bool) -> NeedKind | None:
    status = work["status"]
    if status == TaskStatus.WAITING and work["waiting_for"] != "rate_limit":
        return NeedKind.QUESTION
    if status == RunStatus.RUNNING and has_question:
        return NeedKind.QUESTION
    if status == RunStatus.PAUSED and not is_part(work):
        return NeedKind.PAUSED
    return None


def _ended_need(
    work: Mapping[Any, Any], verified: bool | None, delivery: Mapping[Any, Any] | None
) -> NeedKind | None:
    status = work["status"]
    is_merged = work["merged_at"] is not None
    if status == TaskStatus.FAILED and not is_merged:
        return NeedKind.FAILURE
    if is_undelivered(status, delivery):
        return NeedKind.DELIVERY
    if status != TaskStatus.COMPLETED or is_merged or delivery is not None:
        return None
    if not has_changes(work):
        return None
    if verified:
        return NeedKind.MERGE
    seen_at = work["seen_at"]
    ended_at = work["ended_at"]
    is_seen = seen_at is not None and ended_at is not None and seen_at >= ended_at
    if is_seen:
        return None
    return NeedKind.LOOK
