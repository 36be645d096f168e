"""What came of a run, in the shape of its pattern: iterations, candidates, or plain JSON."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kapelle.cli.runs.outcome import Run
from kapelle.cli.runs.progress import verdict_words
from kapelle.cli.style import columns_of, fit, paint, table
from kapelle.cli.text import clean, one_line, tail

_STYLES = {"pass": "green", "keep": "green", "fail": "red", "discard": "dim"}
_JSON_LINES = 15
_JSON_WIDTH = 300
_DIFFERENCE = 6
_INDENT = 4


def what_came_of_it(run: Run, told: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The part of the view that differs from pattern to pattern."""
    match run["pattern"], run["result"]:
        case "loop", {"iterations": [*iterations], "best": best}:
            yield from _iterations(iterations, best["number"] if best else None)
        case "loop", _:
            yield from _iterations([facts for facts in told if facts.get("verdict")], None)
        case "best-of", {"candidates": [*candidates], "winner": winner}:
            yield from _candidates(candidates, winner)
        case "team", {"iterations": [*iterations], "success_criteria": [*criteria]}:
            yield from _team(iterations, criteria)
        case "pipeline", _:
            return  # its tasks say it all
        case _, None:
            return
        case _, result:
            yield from _plain(run["id"], result)


def _plain(run_id: str, result: Any) -> Iterator[str]:
    """The beginning of a result whose shape only its pattern knows."""
    lines = clean(json.dumps(result, indent=2, ensure_ascii=False)).split("\n")
    yield paint("  result", "dim")
    yield from (f"    {fit(line, _JSON_WIDTH)}" for line in lines[:_JSON_LINES])
    if lines[_JSON_LINES:] or any(columns_of(line) > _JSON_WIDTH for line in lines):
        yield paint(f"    … all of it: kapelle runs result {run_id}", "dim")


def _iterations(found: Sequence[dict[str, Any]], best: int | None) -> Iterator[str]:
    """A table of a loop's iterations, as its result or its history tells them."""
    if not found:
        return
    numbers = [item["score"] for item in found if _is_number(item.get("score"))]
    rows = [
        [
            _number(item) + ("*" if _number(item) == str(best) else ""),
            verdict_words(item["verdict"]),
            f"{item['score']:.12g}" if _is_number(item.get("score")) else "-",
            (item.get("commit") or "")[:10],
            one_line(item.get("problem") or ""),
        ]
        for item in found
    ]
    header = ["#", "VERDICT", "SCORE", "COMMIT", "PROBLEM"]
    # Columns in which nothing stands only take room.
    kept = [0, 1, *([2] if numbers else []), *([3] if any(row[3] for row in rows) else []), 4]
    shown = [[row[index] for index in kept] for row in rows]
    styles = [_STYLES.get(item["verdict"]) for item in found]
    yield paint("  iterations", "dim")
    yield from table([header[index] for index in kept], shown, styles, _INDENT)
    if best is not None:
        where = ", which is what the branch holds" if any(row[3] for row in rows) else ""
        yield paint(f"    * the best{where}", "dim")


def _number(item: dict[str, Any]) -> str:
    return str(item["number"] if "number" in item else item.get("iteration"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _candidates(found: Sequence[dict[str, Any]], winner: int | None) -> Iterator[str]:
    rows = [
        [
            f"{item['number']}*" if item["number"] == winner else str(item["number"]),
            "out" if item.get("problem") else "won" if item["number"] == winner else "passed",
            one_line(item["agent"] + (f":{item['model']}" if item.get("model") else "")),
            f"{item['score']:.12g}" if _is_number(item.get("score")) else "-",
            one_line(item.get("problem") or ""),
        ]
        for item in found
    ]
    styles = {"won": "green", "out": "red"}
    yield paint("  candidates", "dim")
    yield from table(
        ["#", "VERDICT", "AGENT", "SCORE", "PROBLEM"], rows, [styles.get(row[1]) for row in rows],
        _INDENT,
    )  # fmt: skip
    for item in found:
        if (item.get("against_winner") or "").strip():
            yield paint(f"    candidate {item['number']} against the winner:", "dim")
            yield from (f"      {line}" for line in tail(item["against_winner"], _DIFFERENCE))


def _team(iterations: Sequence[dict[str, Any]], criteria: Sequence[str]) -> Iterator[str]:
    if criteria:
        yield paint("  done when", "dim")
        yield from (f"    - {one_line(text, 200)}" for text in criteria)
    yield paint("  iterations", "dim")
    for item in iterations:
        outcomes = item.get("outcomes") or []
        merged = sum(outcome["status"] == "merged" for outcome in outcomes)
        yield f"    {item['number']}  {merged} of {len(outcomes)} merged{_judged(item)}"
        for outcome in outcomes:
            good = outcome["status"] == "merged"
            mark = paint("✓", "green") if good else paint("✗", "red")
            reason = f": {one_line(outcome['reason'], 200)}" if outcome.get("reason") else ""
            state = "" if good else f" ({outcome['status']})"
            yield f"       {mark} {one_line(outcome['title'], 100)}{state}{reason}"
        if item.get("problem"):
            yield paint(f"       {one_line(item['problem'], 300)}", "red")


def _judged(item: dict[str, Any]) -> str:
    """What the checks and the reviewer said of an iteration."""
    checks, review = item.get("checks") or [], item.get("review")
    passed = sum(check["passed"] for check in checks)
    said = f", {passed} of {len(checks)} checks passed" if checks else ""
    if review is None:
        return said
    against = [
        name.replace("_", " ")
        for name in ("quality", "consistency", "goal_aligned", "goal_complete")
        if not review.get(name)
    ]
    if not against:
        return f"{said}, approved"
    feedback = f": {one_line(review['feedback'], 200)}" if review.get("feedback") else ""
    return f"{said}, the reviewer says no to {', '.join(against)}{feedback}"
