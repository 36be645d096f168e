"""The state of a task or a run: in words, as an exit code, and whether it is final."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kapelle.cli.figures import (
    attempts_s,
    format_elapsed,
    format_seconds,
    format_time_left,
    local_time,
    now,
    parse_time,
)
from kapelle.cli.progress import describe_progress
from kapelle.cli.text import one_line, reason_lines
from kapelle.domain.report import FINAL, has_no_changes
from kapelle.domain.states import is_delivering, is_resting

if TYPE_CHECKING:
    from kapelle.client.records import DeliveryJson, WorkJson

DONE = 0
WORK_FAILED = 1
ERROR = 2
INPUT_NEEDED = 3
INTERRUPTED = 130

_WAITING_FOR = {
    "input": "waiting for your answer",
    "rate_limit": "waiting for a rate limit to pass",
    "trust": "waiting until its repository is trusted",
}
_DELIVERY_TARGETS = {"merge": "merge", "push": "merge and push"}
_LONGEST_DELIVERY = 2_000


def is_settled(item: "WorkJson") -> bool:
    """Tell whether a task or a run stays as it is unless a person does something."""
    return is_resting(item["status"], item["waiting_for"])


def is_finished(item: "WorkJson") -> bool:
    """Tell whether a task or a run is settled, and no delivery of its work is pending."""
    commit = (item.get("workspace") or {}).get("commit")
    is_pending = is_delivering(item["status"], commit, item.get("delivery"))
    return is_settled(item) and not is_pending


def exit_code(item: "WorkJson") -> int:
    """Return the exit code of a command that waited for a task or a run.

    0 done; 1 the work failed or is not delivered; 3 a person has to answer or resume it.
    """
    if item["status"] == "completed":
        delivery = item.get("delivery")
        if delivery and delivery["status"] in {"failed", "pending"}:
            return WORK_FAILED
        return DONE
    if item["status"] in {"waiting", "paused"} or item["waiting_for"] == "input":
        return INPUT_NEEDED
    return WORK_FAILED


def exit_code_of_all(items: Iterable["WorkJson"]) -> int:
    """Return the worst exit code: failed work comes before input that is needed."""
    codes = {exit_code(item) for item in items}
    for code in (WORK_FAILED, INPUT_NEEDED):
        if code in codes:
            return code
    return DONE


def describe_status(item: "WorkJson") -> str:
    """Return the status, and whether the work is unverified or changed nothing."""
    status = item["status"]
    if item.get("verified") is False:
        if is_judged_by_score(item):
            return f"{status}, not verified (judged by score)"
        return f"{status}, not verified"
    if has_no_changes(item):
        return f"{status}, changed nothing"
    return status


def is_judged_by_score(item: "WorkJson") -> bool:
    """Tell whether an unverified run was judged by the number of an evaluation alone."""
    if "pattern" not in item or item.get("verified") is not False:
        return False
    spec = item["spec"]
    return bool(spec.get("eval")) and not spec.get("checks")


def describe_marks(item: "WorkJson") -> list[str]:
    """Return the marks of a person: flagged, and until when the work is snoozed."""
    marks = []
    if item.get("flagged_at"):
        marks.append("flagged")
    snoozed_until = parse_time(item.get("snoozed_until"))
    if snoozed_until and snoozed_until > now():
        marks.append(f"snoozed until {local_time(item['snoozed_until'])}")
    return marks


def describe_activity(item: "WorkJson") -> str:
    """Return what a task or a run does now, or what it waits for."""
    if item["status"] == "waiting" or item.get("waiting_for") == "input":
        return waiting_reason(item)
    parts = []
    if "pattern" in item and item["status"] == "running" and item["progress"]:
        parts.append(describe_progress(item["progress"], item["spec"].get("max_iterations")))
    check = item.get("checking")
    if check:
        parts.append(f"checking: {check['name']}, {format_elapsed(check['started_at'], None)}")
    elif item["reason"]:
        parts.append(item["reason"])
    return ", ".join(filter(None, parts))


def waiting_reason(item: "WorkJson") -> str:
    """Return why a task or a run waits, and when it goes on by itself."""
    reason = item["reason"] or _WAITING_FOR.get(item["waiting_for"] or "", "waiting")
    not_before = None
    if "pattern" not in item:
        not_before = item.get("not_before")
    if not_before:
        return f"{reason}; goes on {format_time_left(not_before)}, at {local_time(not_before)}"
    return reason


def describe_delivery(
    delivery: "DeliveryJson", work_status: str = "completed", *, with_reason: bool = True
) -> str:
    """Return where work is delivered to, and how far its delivery is.

    work_status is the status of the task or the run: failed work is not delivered.
    """
    target = _DELIVERY_TARGETS.get(delivery["mode"])
    if target is None:
        target = f"pull request {delivery['url'] or ''}".strip()
    reason = None
    if with_reason:
        reason = delivery["reason"]
    state: list[str | None]
    if delivery["status"] == "delivered" and delivery["mode"] != "pr":
        state = ["done"]
    elif delivery["status"] == "pending" and work_status in {"failed", "cancelled"}:
        state = ["not delivered"]
    elif delivery["status"] == "delivered":
        # The reason of a delivered pull request is a remark, such as that its state may be old.
        state = [delivery["state"], _describe_ci(delivery), reason]
    elif delivery["status"] == "failed":
        state = ["not delivered", reason]
    else:
        state = [delivery["status"], reason]
    return one_line(", ".join(filter(None, [target, *state])), _LONGEST_DELIVERY)


def _describe_ci(delivery: "DeliveryJson") -> str | None:
    if delivery["ci"] in {None, "none"}:
        return None
    return f"CI {delivery['ci']}"


def describe_end(item: "WorkJson") -> str:
    """Return a sentence with the status of a task or a run, its duration and its reason."""
    sentence = f"{item['id']} {describe_status(item)}"
    if "pattern" not in item:
        seconds = attempts_s(item)
    elif item["status"] in FINAL:
        # Without the time for which the run was paused.
        seconds = item["spent"]["seconds"]
    else:
        seconds = 0.0
    if seconds:
        sentence += f" after {format_seconds(seconds)}"
    if item["reason"]:
        sentence += ": " + "\n    ".join(reason_lines(item["reason"]))
    return sentence
