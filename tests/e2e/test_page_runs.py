"""Runs in a real Chromium: no sign says more than the run does, whatever has become of it."""

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.e2e.support.ensembles import answer, await_running_task, rest, rule, start, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.test_page import browser, log_in, page, url_of

__all__ = ["browser", "page"]

FOR_EVER = {"run": "sleep 600"}
PARTS: list[dict[str, Any]] = [
    {"id": "a", "title": "Names", "task": "PART-a"},
    {"id": "b", "title": "Tokens", "task": "PART-b", "depends_on": ["a"]},
    {"id": "c", "title": "Charts", "task": "PART-c", "depends_on": ["a"]},
    {"id": "d", "title": "Switch", "task": "PART-d", "depends_on": ["b", "c"]},
]
WRITES_A = rule("PART-a", {"write": "a", "content": "a"})
TEAM = (
    rule("You plan the work", answer({"subgoals": PARTS}))
    + rule("You prepare", answer({"success_criteria": ["It is there"]}))
    + WRITES_A + rule("PART-", FOR_EVER)
)  # fmt: skip
PLAN = "## Plan\n- [ ] It is there, check: `test -e there`\n## Contract\n- Keep to it."
WORKFLOW = (
    rule("You prepare work that", {"result": PLAN})
    + rule("You review work", answer({"summary": "It is sound.", "issues": []}))
)  # fmt: skip


def signs(page: Page, state: str) -> Locator:
    """The signs of a state in the view; the sidebar tells of other work too."""
    return page.locator(f"main .g-{state}")


def test_nobody_is_at_work_in_a_run_that_was_cancelled(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    with_playbook(kapelle, TEAM)
    run = start(kapelle, "team", repository, title="Dark mode", goal="Dark", verify=["true"])
    await_running_task(kapelle, run, 5)
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/runs/{run}")
    node, verdict = page.locator(".dag .node"), page.locator(".verdict")
    expect(node.filter(has_text="at work")).to_have_count(2)
    expect(verdict).to_contain_text("Tokens and Charts are running.")
    expect(page.locator(".inspector")).to_contain_text("1 of 4")
    # To pause takes until its agents have ended; that it may go on all the same is offered.
    page.keyboard.press("p")
    expect(verdict).to_contain_text("Pausing. The run starts no more work and waits for 2 agents")
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    page.keyboard.press("r")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press("x")
    page.get_by_role("button", name="Cancel the run").click()
    for _ in range(2):
        expect(verdict).to_contain_text("Cancelled.")
        expect(node.filter(has_text="stopped")).to_have_count(2)
        expect(node.filter(has_text="not done")).to_have_count(1)
        for state in ("run", "bad"):
            expect(signs(page, state)).to_have_count(0)
        expect(page.locator(".phases")).to_contain_text("1 of 4 merged")
        expect(page.locator(".phases")).not_to_contain_text("at work")
        page.reload()
    page.get_by_role("link", name="Steps").click()
    expect(page.locator(".steps")).to_contain_text("Tokens")
    expect(signs(page, "run")).to_have_count(0)


def test_a_run_that_waits_for_a_person_asks_once_and_does_not_turn(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    with_playbook(kapelle, WORKFLOW + rule("milestone", {"result": "I looked around."}))
    run = start(kapelle, "workflow", repository, title="Export", task="Export it")
    asked = rest(kapelle, run)
    assert asked["status"] == "waiting"
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/runs/{run}")
    expect(page.locator(".verdict")).to_have_text("Needs you. ")
    expect(page.get_by_text("brought no new milestone")).to_have_count(1)
    expect(page.locator(".phases .you")).to_contain_text("Implement")
    expect(page.locator(".steps").first).to_contain_text("needs you")
    expect(signs(page, "run")).to_have_count(0)
    expect(page.locator(".inspector")).to_contain_text(re.compile(r"Cycles\d of 10"))


def test_only_what_is_done_as_a_whole_is_green(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    gate = repository.parent / "gate"
    waits = {"run": f"until test -e {gate}; do sleep 0.05; done"}
    wrong = {**PARTS[1], "checks": ["false"]}
    with_playbook(kapelle, rule("You conduct", answer({"parts": [PARTS[0], wrong, *PARTS[2:]]}))
                  + WRITES_A + rule("PART-b", waits, {"write": "b", "content": "b"})
                  + rule("PART-c", waits, {"write": "c", "content": "c"}))  # fmt: skip
    run = start(kapelle, "orchestrate", repository, title="Release", goal="Out", until=["true"])
    await_running_task(kapelle, run, 4)
    log_in(page, kapelle)
    # A tab that is none leads to the first.
    page.goto(f"{url_of(kapelle)}/runs/{run}/inside")
    verdict, phase = page.locator(".verdict"), page.locator(".phases > li")
    expect(verdict).to_contain_text("Tokens and Charts are running.")
    expect(page.locator(".inspector")).to_contain_text("1 of 20")
    gate.touch()
    expect(verdict).to_contain_text("Completed")
    expect(phase.nth(1)).to_contain_text("2 of 4 parts merged, 1 failed, 1 not done")
    expect(phase.nth(1).get_by_role("img", name="ended incomplete")).to_be_visible()
    expect(phase.nth(1).locator(".g-ok")).to_have_count(0)
    expect(phase.nth(2).locator(".g-ok")).to_have_count(1)
    expect(page.locator(".dag .node", has_text="Switch")).to_contain_text("not done")
    expect(signs(page, "run")).to_have_count(0)


def test_a_card_says_which_work_it_is_and_how_near_its_limit(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    spent = {"usage": {"input": 9, "output": 9, "cached": 0, "turns": 5, "cost": 4.6}}
    with_playbook(kapelle, WORKFLOW + rule("milestone|Spend", spent, FOR_EVER)
                  + rule("Fail", {"fail": "no ideas"}))  # fmt: skip
    kapelle.wait(kapelle.submit("Fail", repository, title="Hard"))
    for title in ("Export the orders", "Import the orders"):
        start(kapelle, "workflow", repository, title=title, task=title)
    kapelle.submit("Spend", repository, title="Partition the invoices", budget_usd=5)
    log_in(page, kapelle)
    for title in ("Export the orders", "Import the orders"):
        expect(page.locator(".card", has_text=title)).to_contain_text("Implement (cycle 1)")
    card = page.locator(".card", has_text="Partition")
    expect(card).to_contain_text("$4.60 of $5")
    warning = card.locator(".warn .cut")
    expect(warning).to_have_text("92 % of its budget")
    assert warning.evaluate("box => box.scrollWidth <= box.clientWidth + 1")
    # What cannot be done while the daemon is away is not offered.
    needs = page.locator(".needs > li", has_text="Hard")
    expect(needs.get_by_role("button", name="Retry")).to_be_enabled()
    kapelle.kill()
    for name in ("Retry", "Archive", "Snooze: Hard"):
        expect(needs.get_by_role("button", name=name)).to_be_disabled()
    expect(needs.get_by_role("button", name="Retry")).to_have_attribute(
        "title", "Daemon unreachable"
    )
    kapelle.start()
    expect(needs.get_by_role("button", name="Retry")).to_be_enabled()


def test_what_a_failed_run_left_is_gone_on_with_or_merged(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    with_playbook(kapelle, rule("Count more", {"result": "Counted."})
                  + rule("Count", {"run": "echo x >> count"}))  # fmt: skip
    counting = {"prompt": "Count", "eval": "cat count | wc -l", "direction": "maximize"}
    run = start(kapelle, "loop", repository, title="Count", target=9, max_iterations=1, **counting)
    assert rest(kapelle, run)["status"] == "failed"
    log_in(page, kapelle)
    page.get_by_role("link", name="Continue with a hint").click()
    expect(page.get_by_label("Continue this run")).to_be_visible()
    page.keyboard.press("r")
    page.keyboard.type("Count more")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("heading", name="Follow-up: Count")).to_be_visible()
    expect(page.locator(".verdict")).not_to_contain_text("Running")
    page.keyboard.press("g")
    page.keyboard.press("n")
    failed = page.locator(".needs > li").filter(
        has=page.get_by_role("link", name="Count", exact=True)
    )
    failed.get_by_role("button", name="Merge anyway").click()
    page.get_by_role("dialog").get_by_role("button", name="Merge", exact=True).click()
    # What is merged needs nobody.
    expect(failed).to_have_count(0)
    assert (repository / "count").exists()


def test_a_second_attempt_counts_from_its_own_beginning(
    page: Page, kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    once = f"if test -e {flag}; then sleep 600; fi; touch {flag}; sleep 3"
    with_playbook(kapelle, rule("Again", {"run": once}, {"fail": "no ideas"}))
    task = kapelle.submit("Again", repository, title="Again")
    kapelle.wait(task)
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/tasks/{task}")
    page.get_by_role("button", name="Retry").click()
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text("Attempt 2.")
    # All of it is told too, of both attempts together.
    told = re.search(r"Running for (\d+):(\d+)", verdict.inner_text())
    used = re.search(r"Time\s+(\d+):(\d+)", page.locator(".inspector").inner_text())
    assert told is not None
    assert used is not None
    seconds, all_of_it = (int(one[1]) * 60 + int(one[2]) for one in (told, used))
    assert all_of_it >= seconds + 2
