"""The report of tasks and runs as Markdown, for people and e-mail."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from kapelle.domain.report import is_undelivered
from kapelle.domain.text import excerpt, format_count, shorten_paths

ReportRow = dict[str, Any]

_SECTIONS = {
    "needs": "Needs you",
    "failed": "Failed or cancelled",
    "done": "Done",
    "open": "Under way",
}
_LONGEST_LINE = 300
_MOST_PARTS = 20


def format_report(report: dict[str, Any]) -> str:
    """Return a report as Markdown; every command in it can be typed as it is."""
    return "\n".join(_format_lines(report)) + "\n"


def _format_lines(report: dict[str, Any]) -> Iterator[str]:
    entries = report["entries"]
    cost = report["cost"]
    yield f"# Report: {_format_time(report['since'])} to {_format_time(report['until'])}"
    yield ""
    if not entries:
        yield "No work was submitted or active."
    else:
        yield _summary(report)
    if cost["attempts"]:
        price = format_price(cost["cost_usd"], cost["unknown_cost"] + cost["unreported"])
        yield f"Cost: {price}; {format_count(cost['attempts'], 'attempt')}, {_format_tokens(cost)}."
    paths = {entry["repository"] for entry in entries if entry["repository"]}
    repositories = shorten_paths(paths)
    for group, heading in _SECTIONS.items():
        members = [entry for entry in entries if entry["group"] == group]
        if members:
            yield from ("", f"## {heading}", "")
        for entry in members:
            yield from _format_entry(entry, repositories.get(entry["repository"]))
    if report["learnings"]:
        yield from (
            "",
            "## Learned",
            "",
            "New learnings of agents, for the prompts of later agents.",
        )
        yield ""
        for learning in report["learnings"]:
            yield f"- {_inline(learning['title'])}"
            yield f"  `kapelle learnings show {learning['id']}` read it"
            yield f"  `kapelle learnings delete {learning['id']}` keep it out of later prompts"
    here = len([entry for entry in entries if entry["group"] == "needs"])
    elsewhere = report["needs_total"] - here
    if elsewhere > 0:
        yield ""
        yield f"{elsewhere} more need you, from other times or inside runs: `kapelle open`"
    if report["left_out"]:
        yield ""
        yield (
            f"{report['left_out']} more started earlier and have ended: "
            "an earlier --until shows them."
        )


def _summary(report: dict[str, Any]) -> str:
    entries = report["entries"]
    completed = [entry for entry in entries if entry["status"] == "completed"]
    verified = len([entry for entry in completed if entry["verified"] is True])
    parts = [
        f"{len(completed)} done ({verified} verified, {len(completed) - verified} not verified)"
    ]
    statuses = Counter(entry["status"] for entry in entries)
    groups = Counter(entry["group"] for entry in entries)
    numbers = {
        "failed": statuses["failed"],
        "cancelled": statuses["cancelled"],
        "need you": groups["needs"],
        "under way": groups["open"],
        "merged": len([entry for entry in entries if entry["merged"]]),
        "with a pull request": len([entry for entry in entries if _url(entry)]),
    }
    parts += [f"{number} {label}" for label, number in numbers.items() if number]
    return f"{len(entries)} submitted: {', '.join(parts)}."


def _format_entry(entry: ReportRow, repository: str | None) -> Iterator[str]:
    yield f"- {', '.join(_list_facts(entry, repository))}"
    if entry["reason"]:
        yield f"  {_inline(entry['reason'])}"
    if is_undelivered(entry):
        state = "Not delivered"
        if entry["delivery"]["status"] == "pending":
            state = "Not delivered yet"
        yield f"  {state}: {_inline(entry['delivery']['reason'] or 'the delivery is under way')}"
    if entry["question"]:
        yield f"  It asks: {_inline(entry['question'])}"
    if entry["status"] == "completed":
        yield f"  {_describe_proof(entry)}"
    open_parts = [part for part in entry["parts"] if part["status"] != "completed"]
    for part in open_parts[:_MOST_PARTS]:
        text = f"{_inline(part['title'])} is {part['status']}"
        if part["reason"]:
            text += f": {_inline(part['reason'])}"
        yield f"  - {text} (`{part['next']}`)"
    for one in entry["next"]:
        yield f"  `{one['command']}` {one['does']}"


def _list_facts(entry: ReportRow, repository: str | None) -> Iterator[str]:
    yield f"**{_inline(entry['title'])}** (`{entry['id']}`)"
    if repository:
        yield f"in {_inline(repository)}"
    if entry["pattern"]:
        yield entry["pattern"]
    if entry["schedule_id"]:
        yield "by schedule"
    if entry["attempts"] > 1:
        yield format_count(entry["attempts"], "attempt")
    if entry["merged"]:
        yield f"merged into {entry['base']}"
    if _url(entry):
        yield _describe_pull_request(entry["delivery"])
    if entry["cost_usd"] is not None:
        yield format_price(entry["cost_usd"], 0)


def _url(entry: ReportRow) -> str | None:
    return (entry["delivery"] or {}).get("url")


def _describe_pull_request(delivery: dict[str, Any]) -> str:
    state = delivery["state"]
    if delivery["ci"] not in {None, "none"}:
        state += f", CI {delivery['ci']}"
    return f"pull request {delivery['url']} ({state})"


def _describe_proof(entry: ReportRow) -> str:
    """Return the sentence that says by which checks completed work was verified, if by any."""
    checks = [check for check in entry["evidence"] if check["passed"]]
    if entry["verified"] is True:
        names = ", ".join(_name_check(check) for check in checks) or "the checks of its parts"
        if entry["changed"] is False:
            return f"Verified by {names}. It changed nothing."
        return f"Verified by {names}."
    if entry["scores"] and not checks:
        commands = ", ".join(f"`{_inline(command)}`" for command in entry["scores"])
        return f"Not verified: judged by a score alone, {commands}; no check was made."
    refutations = [
        f" `{_inline(check['name'])}`: {_inline(check['proof'])}"
        for check in checks
        if check.get("proved") is False and check.get("proof")
    ]
    if refutations:
        return f"Not verified.{''.join(refutations)}"
    if checks:
        return "Not verified. The checks that passed do not look at the work."
    return "Not verified."


def _name_check(check: dict[str, Any]) -> str:
    name = f"`{_inline(check['name'])}`"
    if check["commit"]:
        return f"{name} on {check['commit'][:12]}"
    return name


def _inline(text: str) -> str:
    return excerpt(" ".join(text.split()), _LONGEST_LINE).replace("`", "'")


def format_price(usd: float | None, unknown: int) -> str:
    """Format a sum of costs; ≥ marks a sum that lacks the cost of some attempts."""
    if usd is None:
        return "unknown"
    if not unknown:
        return f"${usd:.2f}"
    return f"≥ ${usd:.2f} ({format_count(unknown, 'attempt')} of unknown price)"


def _format_tokens(usage: dict[str, Any]) -> str:
    """Format the tokens of several attempts; ≥ marks sums that lack those of some attempts."""
    if not usage["unreported"]:
        return f"{usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out"
    if not usage["input_tokens"] and not usage["output_tokens"]:
        return "tokens unknown"
    return f"≥ {usage['input_tokens']:,} tokens in, ≥ {usage['output_tokens']:,} out"


def _format_time(text: str) -> str:
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
