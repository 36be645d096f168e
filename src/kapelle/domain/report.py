"""What became of work, for people: what to type next, and the report of a night in Markdown."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from kapelle.domain.errors import InvalidInput
from kapelle.domain.text import excerpt, format_count, shorten_paths

ReportRow = dict[str, Any]

FINAL = frozenset({"completed", "failed", "cancelled"})
_SECTIONS = {
    "needs": "Needs you",
    "failed": "Failed or cancelled",
    "done": "Done",
    "open": "Under way",
}
_SHOWN = 300
_PARTS = 20

# What may be typed for a task or a run, and what it does.
_COMMANDS = {
    "wait": ("kapelle wait {id}", "wait until it has ended"),
    "call off": ("kapelle cancel {id}", "call it off"),
    "attach": ("kapelle attach {id}", "be in its terminal"),
    "watch": ("kapelle logs -f {id}", "watch it"),
    "stop": ("kapelle cancel {id}", "stop it"),
    "requeue": ("kapelle requeue {id}", "try now instead of waiting"),
    "answer": ('kapelle answer {id} "…"', "answer, and it goes on"),
    "look": ("kapelle logs {id}", "see what happened"),
    "resume": ('kapelle resume {id} "…"', "go on from there, with advice"),
    "retry": ("kapelle retry {id}", "start again"),
    "more cycles": ("kapelle resume {id} --cycles {more}", "go on with more cycles"),
    "logs": ("kapelle logs {id}", "read what was done"),
    "diff": ("kapelle diff {id}", "see the changes"),
    "deliver": ("kapelle pr {id}", "try to open its pull request again"),
    "merge": ("kapelle merge {id}", "merge it into {base}"),
    "mend": ("kapelle resume {id} --merge", "take {base} in and have its agent mend that"),
    "merge anyway": ("kapelle merge {id} --force", "merge it all the same"),
    "archive": ("kapelle archive {id}", "put it away"),
    "run cancel": ("kapelle runs cancel {id}", "call it off"),
    "run pause": ("kapelle runs pause {id}", "pause it"),
    "run result": ("kapelle runs result {id}", "its result as JSON"),
    "run resume": ("kapelle runs resume {id}", "let it go on"),
    "run steps": ("kapelle runs steps {id}", "see what it did"),
    "run tail": ("kapelle runs tail {id}", "watch it"),
}


def next_commands(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What one may type now for a task or a run, and what it does."""
    if "spent" in item:
        names = _for_run(item)
    else:
        names = _for_task(item)
    if item.get("limit_reached") == "cycles" and not item.get("archived_at"):
        names = ["more cycles", *names]
    if _is_undelivered(item) and item["delivery"]["mode"] == "pr":
        names = ["deliver", *(name for name in names if name != "merge")]
    more = 2 * int((item.get("progress") or {}).get("cycles") or 1)
    known = {
        "id": item["id"],
        "more": min(more, 50),
        "base": item.get("workspace", {}).get("base") or "its base",
    }
    chosen = [_COMMANDS[name] for name in names]
    return [(command.format_map(known), does.format_map(known)) for command, does in chosen]


def _for_task(task: Mapping[str, Any]) -> list[str]:
    status = task["status"]
    if task.get("archived_at") or status == "completed":
        workspace = task["workspace"]
        if not workspace["branch"] or not workspace.get("commit"):
            return ["logs"]
        if task.get("archived_at") or (workspace.get("owner") and not task["merged_at"]):
            return ["logs", "diff"]
        if task.get("merge_refused"):
            return ["diff", "mend"]
        return ["diff", "archive" if task["merged_at"] else "merge"]
    if status == "waiting":
        if task["waiting_for"] == "input":
            return ["answer", "call off"]
        return ["requeue"]
    if status == "running":
        return ["attach" if task.get("interactive") else "watch", "stop"]
    if status in {"queued", "blocked"}:
        return ["wait", "call off"]
    return ["look", "resume", "retry"]


def _for_run(run: Mapping[str, Any]) -> list[str]:
    status = run["status"]
    workspace = run["workspace"]
    if status == "waiting":
        # Where there are several questions, each stands beside its command.
        if len(run["questions"]) == 1:
            return ["answer", "run cancel"]
        return ["run cancel"]
    if status == "paused":
        return ["run resume", "run cancel"]
    if status not in FINAL:
        return ["run tail", "run pause", "run cancel"]
    if workspace.get("owner"):
        return ["run steps"]
    if not workspace["branch"] or workspace.get("commit") in (None, workspace["base_commit"]):
        return ["run steps", "run result"]
    if run.get("archived_at"):
        return ["run steps", "diff"]
    if run["merged_at"]:
        return ["diff", "archive"]
    if status == "completed":
        return ["diff", "merge"]
    return ["run steps", "diff", "merge anyway"]


def has_no_changes(item: Mapping[str, Any]) -> bool:
    """Whether done work left its branch as it was, though it was not only to report."""
    place = item.get("workspace") or {}
    if item["status"] != "completed" or item.get("read_only") or not place.get("base_commit"):
        return False
    return place["commit"] in {None, place["base_commit"]}


def find_group(item: Mapping[str, Any]) -> str:
    """Where work stands in a report: needs, failed, done or open."""
    if item["need"]:
        return "needs"
    status = item["status"]
    if _is_undelivered(item) and item["delivery"]["status"] == "pending":
        return "open"
    return {"completed": "done", "failed": "failed", "cancelled": "failed"}.get(status, "open")


def format_report(report: dict[str, Any]) -> str:
    """A report for people and for mail; every command in it can be typed as it is."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    entries = report["entries"]
    cost = report["cost"]
    yield f"# Report: {_moment(report['since'])} to {_moment(report['until'])}"
    yield ""
    if not entries:
        yield "Nothing was asked for, and nothing went on."
    else:
        yield _summary(report)
    if cost["attempts"]:
        price = format_price(cost["cost_usd"], cost["unknown_cost"] + cost["unreported"])
        yield f"Cost: {price}; {format_count(cost['attempts'], 'attempt')}, {_token_words(cost)}."
    paths = {entry["repository"] for entry in entries if entry["repository"]}
    repositories = shorten_paths(paths)
    for group, heading in _SECTIONS.items():
        if found := [entry for entry in entries if entry["group"] == group]:
            yield from ("", f"## {heading}", "")
            for entry in found:
                yield from _entry(entry, repositories.get(entry["repository"]))
    if report["learnings"]:
        yield from ("", "## Learned", "", "New, by an agent; later agents are told.", "")
        for learning in report["learnings"]:
            yield f"- {_inline(learning['title'])}"
            yield f"  `kapelle learnings show {learning['id']}` read it"
            yield f"  `kapelle learnings delete {learning['id']}` have no agent told of it"
    elsewhere = report["needs_total"] - sum(entry["group"] == "needs" for entry in entries)
    if elsewhere > 0:
        yield from (
            "",
            f"{elsewhere} more need you, from other times or inside runs: `kapelle open`",
        )
    if report["left_out"]:
        left = f"{report['left_out']} more began earlier and have ended"
        yield from ("", f"{left}: an earlier --until shows them.")


def _summary(report: dict[str, Any]) -> str:
    entries = report["entries"]
    done = [entry for entry in entries if entry["status"] == "completed"]
    proven = sum(entry["verified"] is True for entry in done)
    parts = [f"{len(done)} done ({proven} verified, {len(done) - proven} not)"]
    statuses = Counter(entry["status"] for entry in entries)
    groups = Counter(entry["group"] for entry in entries)
    parts += [f"{statuses[name]} {name}" for name in ("failed", "cancelled") if statuses[name]]
    words = {"needs": "need you", "open": "under way"}
    parts += [f"{groups[name]} {text}" for name, text in words.items() if groups[name]]
    delivered = {
        "merged": sum(entry["merged"] for entry in entries),
        "with a pull request": sum(bool(_url(entry)) for entry in entries),
    }
    parts += [f"{number} {words}" for words, number in delivered.items() if number]
    return f"{len(entries)} asked for: {', '.join(parts)}."


def _entry(entry: ReportRow, repository: str | None) -> Iterator[str]:
    facts = [f"**{_inline(entry['title'])}** (`{entry['id']}`)"]
    facts += [f"in {_inline(repository)}"] if repository else []
    facts += [entry["pattern"]] if entry["pattern"] else []
    facts += ["by schedule"] if entry["schedule_id"] else []
    facts += [format_count(entry["attempts"], "attempt")] if entry["attempts"] > 1 else []
    facts += [f"merged into {entry['base']}"] if entry["merged"] else []
    facts += [_pull_request(entry["delivery"])] if _url(entry) else []
    if entry["cost_usd"] is not None:
        facts.append(format_price(entry["cost_usd"], 0))
    yield f"- {', '.join(facts)}"
    if entry["reason"]:
        yield f"  {_inline(entry['reason'])}"
    if _is_undelivered(entry):
        yet = " yet" * (entry["delivery"]["status"] == "pending")
        yield f"  Not delivered{yet}: {_inline(entry['delivery']['reason'] or 'it is under way')}"
    if entry["question"]:
        yield f"  It asks: {_inline(entry['question'])}"
    if entry["status"] == "completed":
        yield f"  {_proof(entry)}"
    for part in [part for part in entry["parts"] if part["status"] != "completed"][:_PARTS]:
        if part["reason"]:
            why = f": {_inline(part['reason'])}"
        else:
            why = ""
        yield f"  - {_inline(part['title'])} is {part['status']}{why} (`{part['next']}`)"
    for one in entry["next"]:
        yield f"  `{one['command']}` {one['does']}"


def _is_undelivered(item: Mapping[str, Any]) -> bool:
    """Whether it is completed, and not or not yet where it was to be delivered to."""
    is_open = (item.get("delivery") or {}).get("status") in {"pending", "failed"}
    return item["status"] == "completed" and is_open


def _url(entry: ReportRow) -> str | None:
    return (entry["delivery"] or {}).get("url")


def _pull_request(delivery: dict[str, Any]) -> str:
    if delivery["ci"] not in {None, "none"}:
        ci = f", CI {delivery['ci']}"
    else:
        ci = ""
    return f"pull request {delivery['url']} ({delivery['state']}{ci})"


def _proof(entry: ReportRow) -> str:
    """What was seen of done work; that nothing was seen is said too."""
    seen = [check for check in entry["evidence"] if check["passed"]]
    if entry["verified"] is not True:
        why = [
            f" `{_inline(check['name'])}`: {_inline(check['proof'])}"
            for check in seen
            if check.get("proved") is False and check.get("proof")
        ]
        if entry["scores"] and not seen:
            commands = ", ".join(f"`{_inline(command)}`" for command in entry["scores"])
            return f"Not verified: judged by a score alone, {commands}; no check was made."
        if seen:
            blind = " The checks that passed do not look at the work."
        else:
            blind = ""
        return f"Not verified.{''.join(why) or blind}"
    told = [
        f"`{_inline(check['name'])}`" + (f" on {check['commit'][:12]}" if check["commit"] else "")
        for check in seen
    ]
    if entry["changed"] is False:
        unchanged = " It changed nothing."
    else:
        unchanged = ""
    by = ", ".join(told) or "the checks of its parts"
    return f"Verified by {by}.{unchanged}"


def _inline(text: str) -> str:
    return excerpt(" ".join(text.split()), _SHOWN).replace("`", "'")


def format_price(usd: float | None, unknown: int) -> str:
    """Format a sum of costs; ≥ marks a sum that lacks the cost of some attempts."""
    if usd is None:
        return "unknown"
    if not unknown:
        return f"${usd:.2f}"
    return f"≥ ${usd:.2f} ({format_count(unknown, 'attempt')} of unknown price)"


def _token_words(used: dict[str, Any]) -> str:
    """Format the tokens of several attempts; ≥ marks sums that lack those of some attempts."""
    if not used["unreported"]:
        return f"{used['input_tokens']:,} tokens in, {used['output_tokens']:,} out"
    if not used["input_tokens"] and not used["output_tokens"]:
        return "tokens unknown"
    return f"≥ {used['input_tokens']:,} tokens in, ≥ {used['output_tokens']:,} out"


def _moment(text: str) -> str:
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def parse_moment(text: str, name: str, *, ends: bool = False) -> datetime:
    """An ISO time, or a date, which stands for its beginning or end in UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{name}: {text!r} is neither a date nor a time.",
            hint="Write it like 2026-11-01 or 2026-11-01T12:00:00Z.",
        ) from None
    if at.tzinfo:
        at = at
    else:
        at = at.replace(tzinfo=UTC)
    is_day = not re.search(r"[T: ]", text.upper())
    if ends and is_day and at.date() < date.max:
        return at + timedelta(days=1)
    return at
