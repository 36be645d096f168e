"""A task and the list of work in a real Chromium: what stays in sight, and what can be done."""

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.e2e.support.ensembles import YES, answer, await_running_task, rule, start, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.test_page import browser, log_in, page, url_of, waiting_for

__all__ = ["browser", "page"]


def test_what_one_can_do_stays_in_sight_while_an_agent_talks(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    gate = repository.parent / "gate"
    words = "".join(f'[[do]]\nsay = "Step {n}."\n[[do]]\ntool = "Read{n}"\n' for n in range(80))
    slow = '[[do]]\ntool = "exec"\ninput = { command = "make slow" }\n'
    play = words + '[[do]]\nsay = "The last words."\n' + slow + waiting_for(gate).split("\n", 2)[2]
    task = kapelle.play(play, repository, title="Talk", checks=["true", "test -d ."])
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/tasks/{task}")
    told = page.locator(".tx")
    expect(told.get_by_text("The last words.")).to_be_in_viewport()
    for seen in (
        page.get_by_role("heading", name="Talk"),
        page.get_by_role("button", name="Cancel"),
        page.get_by_role("link", name="Attempts 1"),
        page.get_by_label("About this task").get_by_text("running"),
        page.locator(".ruler"),
    ):
        expect(seen).to_be_in_viewport()
    # What is under way is open and says for how long; what will be checked has its name.
    call = told.locator(".tool[open]", has_text="make slow")
    expect(call.locator(".res")).to_contain_text(re.compile(r"more than 0:0[1-9]"))
    expect(page.locator(".ladder")).to_contain_text("2 checks pending")
    expect(page.locator(".ladder")).to_contain_text("true, test -d .")
    page.get_by_label("Message the agent").fill("Hurry up.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text(re.compile("^(Delivered now|Will be delivered)")).first).to_be_visible()
    expect(page.get_by_label("Message the agent")).to_have_value("")
    expect(page.locator(".you-said", has_text="Hurry up.")).to_contain_text("not delivered yet")
    # Keys and the ruler lead through it.
    page.locator(".ruler svg").click(position={"x": 10, "y": 2})
    expect(told.get_by_text("Step 0.", exact=True)).to_be_in_viewport()
    page.evaluate("window.scrollTo(0, 0)")
    expect(page.get_by_role("button", name="To the end")).to_be_visible()
    page.locator("body").press("n")
    page.locator("body").press("n")
    expect(told.get_by_text("Step 1.", exact=True)).to_be_in_viewport()
    page.goto(f"{url_of(kapelle)}/tasks/{task}/events")
    expect(page.locator(".happenings")).to_contain_text("You wrote")
    page.goto(f"{url_of(kapelle)}/tasks/{task}")
    expect(told.get_by_text("The last words.")).to_be_in_viewport()
    page.evaluate("window.scrollTo(0, 0)")
    expect(page.get_by_role("button", name="To the end")).to_be_visible()
    gate.touch()
    page.get_by_role("button", name=re.compile("new below")).click()
    expect(page.get_by_role("button", name=re.compile("new below"))).to_have_count(0)
    kapelle.wait(task)


def test_both_attempts_are_read_and_marks_are_seen_and_taken_back(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    task = kapelle.play(
        '[[do]]\nsay = "I try."\n[[do]]\nfail = "no ideas"\n', repository, title="H"
    )
    kapelle.wait(task)
    kapelle.post(f"/tasks/{task}/resume", {"message": "Try it with less."})
    kapelle.wait(task)
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/tasks/{task}")
    expect(page.locator(".divider")).to_contain_text(["Attempt 1", "Attempt 2"])
    expect(page.locator(".you-said", has_text="Try it with less.")).to_contain_text("read")
    expect(page.get_by_text("Earlier lines are not loaded.")).to_have_count(0)
    marked, more = page.locator(".marked"), page.get_by_role("button", name="More")
    more.click()
    page.get_by_role("menuitem", name="Flag for attention").click()
    expect(marked).to_contain_text("Flagged")
    more.click()
    page.get_by_role("menuitem", name="Tomorrow morning").click()
    expect(marked).to_contain_text("Snoozed until")
    marked.get_by_role("button", name="End snooze").click()
    expect(marked).not_to_contain_text("Snoozed")
    marked.get_by_role("button", name="Remove flag").click()
    expect(marked).to_have_count(0)
    # What cannot be taken back asks first.
    more.click()
    page.get_by_role("menuitem", name="Archive").click()
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    assert kapelle.task(task)["archived_at"] is None
    more.click()
    page.get_by_role("menuitem", name="Archive").click()
    page.get_by_role("dialog").get_by_role("button", name="Archive").click()
    expect(marked).to_contain_text("Archived")
    expect(page.get_by_role("button", name="Retry")).to_have_count(0)
    more.click()
    expect(page.get_by_role("menuitem", name="Copy ID")).to_be_visible()
    expect(page.get_by_role("menuitem", name="Archive")).to_have_count(0)
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Events").click()
    told = page.locator(".happenings")
    expect(told).to_contain_text("Attempt 2 failed")
    expect(told).not_to_contain_text(re.compile(r"attempt\.failed|task\.\w+"))


def test_comments_are_counted_and_sent_from_anywhere_and_files_are_reviewed(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    long = "".join(f"line {n}\n" for n in range(200))
    write = "".join(
        f"[[do]]\nwrite = {json.dumps(name)}\ncontent = {json.dumps(long)}\n" for name in ("a", "b")
    )
    task = kapelle.play(write, repository, title="Two files")
    kapelle.wait(task)
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/tasks/{task}/changes")
    tab = page.get_by_role("navigation", name="Parts").get_by_role("link", name="Changes")
    expect(tab).to_contain_text("Changes2")
    page.get_by_role("button", name="Comment on line 2", exact=True).first.click()
    page.keyboard.type("Say why.")
    page.keyboard.press("Control+Enter")
    expect(tab).to_contain_text("1 comment")
    expect(page.get_by_role("button", name="Send to the agent")).to_be_in_viewport()
    first, second = page.locator(".diff").all()
    first.get_by_label("Reviewed").check()
    expect(first.locator(".lines")).to_have_count(0)
    expect(page.get_by_text("1 of 2 reviewed")).to_be_visible()
    page.get_by_role("radio", name="Split").click()
    expect(second.locator(".beside").first).to_contain_text("line 0")
    page.reload()
    expect(page.get_by_text("1 of 2 reviewed")).to_be_visible()
    expect(second.locator(".beside")).to_have_count(200)
    page.get_by_role("link", name="Conversation").click()
    page.locator(".composer").get_by_role("link", name="1 comment not sent").click()
    page.get_by_role("button", name="Discard comments").click()
    expect(tab).not_to_contain_text("comment")


def test_a_plan_has_lines_and_a_run_its_parts_in_the_list_of_work(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    parts = [{"id": "a", "title": "Part a", "task": "PART-a"},
             {"id": "b", "title": "Part b", "task": "PART-b", "depends_on": ["a"]}]  # fmt: skip
    gate = repository.parent / "gate"
    wait: Any = {"run": f"until test -e {gate}; do sleep 0.05; done"}
    with_playbook(kapelle, rule("You plan the work", answer({"subgoals": parts}))
                  + rule("You review", answer(YES))
                  + rule("You prepare", answer({"success_criteria": ["It is there"]}))
                  + rule("PART-a", {"write": "a", "content": "a"})
                  + rule("PART-b", wait, {"write": "b", "content": "b"}))  # fmt: skip
    log_in(page, kapelle)
    run = start(kapelle, "team", repository, title="Two parts", goal="Two parts", verify=["true"])
    await_running_task(kapelle, run, 4)
    page.goto(f"{url_of(kapelle)}/work?q=kind:team")
    expect(page.locator(".token")).to_have_text("kind team")
    field = page.get_by_label("Filter")
    expect(field).to_have_value("")
    roll = page.locator(".worklist .roll")
    expect(roll.locator("i.go")).to_have_count(1)
    field.fill("state:failed")
    expect(page.get_by_text("No matching work")).to_be_visible()
    field.press("Enter")
    expect(page.locator(".token")).to_have_count(2)
    expect(field).to_have_value("")
    page.goto(f"{url_of(kapelle)}/work?view=graph")
    expect(page.locator(".dag .node", has_text="Part b")).to_be_visible()
    expect(page.locator(".dag .edges path")).to_have_count(1)
    page.goto(f"{url_of(kapelle)}/work?view=timeline")
    ticks = page.locator(".chart text:not(.lane):not(.strongt)")
    expect(ticks.first).to_have_text(re.compile(r"^\d\d:\d\d(:[0-5][05])?$"))
    gate.touch()
    page.goto(f"{url_of(kapelle)}/work")
    expect(page.locator(".worklist")).to_contain_text("verified")
