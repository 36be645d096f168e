"""The page in a real Chromium: what the daemon does is seen without reloading."""

import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.support.door import Door, open_door
from tests.e2e.support.ensembles import YES, answer, rest, rule, start, with_playbook
from tests.e2e.support.forge_server import ForgeServer
from tests.e2e.support.hostile import HOSTILE
from tests.e2e.support.instance import Instance
from tests.e2e.support.page_stage import stage
from tests.e2e.support.repositories import git
from tests.e2e.test_forge import configure
from tests.e2e.test_forge import forge as forge
from tests.e2e.test_questions import asking, heard
from tests.machine import WEB, chromium, is_fresh

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = chromium()
    if executable is None:
        pytest.skip("NO CHROMIUM HERE, so the page is not tested: `make machine` installs it")
    assert is_fresh(), "web/dist is older than what it is built of: `make machine` builds it"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A window in which nothing may go wrong unnoticed."""
    # What turns for ever is painted for ever, without a graphics card by the processor.
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text) if is_problem(said.text) else None)
    yield opened
    context.close()
    assert problems == []


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with open_door(tmp_path_factory.mktemp("door")) as opened:
        yield opened


def is_problem(text: str) -> bool:
    return "Content Security Policy" in text or "React" in text


def url_of(kapelle: Instance) -> str:
    return str(json.loads(kapelle.home.info.read_bytes())["url"])


def log_in(page: Page, kapelle: Instance) -> None:
    printed = kapelle.cli("open", "--print")
    assert printed.returncode == 0, printed.stderr
    page.goto(printed.stdout.strip())
    expect(page.get_by_role("heading", name="Now")).to_be_visible()


def test_without_a_login_it_says_what_to_type(page: Page, kapelle: Instance) -> None:
    page.goto(f"{url_of(kapelle)}/work")
    expect(page.get_by_text("kapelle open", exact=True)).to_be_visible()
    expect(page).to_have_url(f"{url_of(kapelle)}/login")
    page.goto(f"{url_of(kapelle)}/login#wrong")
    expect(page.get_by_role("alert")).to_contain_text("not valid")
    assert "wrong" not in page.url


def test_what_happens_is_seen_as_it_happens(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    log_in(page, kapelle)
    expect(page.get_by_text("Give the first agent some work")).to_be_visible()
    page.evaluate("window.stayed = true")
    gate = repository.parent / "gate"
    kapelle.play(waiting_for(gate), repository, title="Slow")
    card = page.locator(".card", has_text="Slow")
    expect(card).to_contain_text("I wait for the gate.")
    expect(page.locator(".pulse .say")).to_contain_text("One agent is at work.")
    gate.touch()
    expect(card).to_have_count(0)
    expect(page.locator(".results")).to_contain_text("Slow")
    assert page.evaluate("window.stayed") is True


def waiting_for(gate: Path) -> str:
    wait = f"until test -e {gate}; do sleep 0.05; done"
    return f'[[do]]\nsay = "I wait for the gate."\n[[do]]\nrun = "{wait}"\n'


def test_it_finds_a_daemon_that_was_killed(page: Page, kapelle: Instance, repository: Path) -> None:
    # It is loaded when nothing else is to be done, after all the places.
    with page.expect_response(re.compile("/assets/terminal-")):
        log_in(page, kapelle)
    kapelle.kill()
    banner = page.locator(".banner")
    expect(banner).to_contain_text("Daemon unreachable.")
    # Places that were not visited yet are there too.
    places = page.get_by_role("navigation", name="Views").first
    for place in ("Usage", "Schedules", "System", "Now"):
        places.get_by_role("link", name=place, exact=True).click()
        expect(page.get_by_role("heading", name=place, level=1)).to_be_visible()
        expect(banner).to_be_visible()
    kapelle.start()
    expect(banner).to_have_count(0)
    kapelle.submit("Hello", repository, title="After the crash")
    expect(page.locator(".results")).to_contain_text("After the crash")


def test_a_terminal_is_typed_into_over_a_death_of_the_daemon(
    page: Page, kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/new")
    page.get_by_label(re.compile("^Agent")).select_option("rehearsal")
    page.get_by_label(re.compile("^Directory")).fill(str(repository))
    page.get_by_label(re.compile("^Interactive")).select_option("true")
    page.get_by_role("button", name="Start the task").click()
    rows, status = page.locator(".xterm-rows"), page.locator(".tbar[role=status]")
    expect(rows).to_contain_text("rehearsal>")
    expect(page.get_by_role("navigation", name="Parts")).to_contain_text("Terminal")
    page.keyboard.type("printf '\\033[38;2;200;80;80mred\\033[m and %s\\n' be''fore; stty size\n")
    expect(rows).to_contain_text("red and before")
    kapelle.kill()
    expect(status).to_contain_text("The daemon is unreachable")
    # What is typed meanwhile waits.
    page.keyboard.type("echo me''an''while\n")
    expect(status).to_contain_text("your input is sent")
    kapelle.start()
    expect(status).to_contain_text("Ctrl-] leaves")
    expect(rows).to_contain_text("meanwhile")
    page.keyboard.type("echo af''ter\n")
    expect(rows).to_contain_text("after")
    expect(rows).to_contain_text("red and before")
    page.screenshot(path=tmp_path / "terminal.png")
    # Whoever reloads has the scrollback again, and the keyboard alone leads out of it.
    page.reload()
    expect(rows).to_contain_text("after")
    page.keyboard.press("Control+]")
    expect(status).to_be_focused()
    page.locator(".xterm-helper-textarea").focus()
    page.keyboard.type("exit\n")
    expect(status).to_contain_text("The terminal is closed.")
    expect(status).not_to_contain_text("kapelle attach")


def test_a_question_is_answered_where_it_is_asked(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    book = rule("Indigo", {"result": "Painted indigo."}) + rule("Paint", {"ask": "Which colour?"})
    with_playbook(kapelle, book)
    log_in(page, kapelle)
    kapelle.submit("Paint it", repository, title="The door")
    kapelle.submit("Paint that", repository, title="The wall")
    need = page.locator(".needs .open")
    expect(need).to_contain_text("Which colour?")
    expect(page).to_have_title(re.compile(r"^\(2\) Now"))
    # The focus moves with the keys, and after an answer to what needs one next.
    page.locator("body").press("j")
    expect(page.locator(".needs > li").nth(1)).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator(".needs > li").nth(0)).to_be_focused()
    need.get_by_label("Answer").fill("Indigo")
    need.get_by_label("Answer").press("Enter")
    expect(page.locator(".needs > li")).to_have_count(1)
    expect(page.locator(".needs > li")).to_be_focused()
    need.get_by_label("Answer").fill("Indigo")
    need.get_by_label("Answer").press("Enter")
    expect(page.locator(".needs")).to_have_count(0)
    expect(page.locator(".results")).to_contain_text("The door")


def test_an_agent_at_work_hears_the_choice_that_was_clicked(
    page: Page, kapelle: Instance, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    log_in(page, kapelle)
    spec = '{"text": "Which colour?", "choices": ["red", "blue"]}'
    task = kapelle.play(asking(place, spec), place)
    page.locator(".needs .open").get_by_role("button", name="blue").click()
    expect(page.locator(".needs")).to_have_count(0)
    kapelle.wait(task)
    assert heard(place) == "answered: blue\n"


def test_a_check_that_failed_is_red_and_nothing_is_not_merged(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    loop: dict[str, Any] = {"prompt": "Rest", "max_iterations": 1}
    flood = "echo the cellar is flooded; exit 3"
    failed = start(kapelle, "loop", repository, title="Flood", until=[flood], **loop)
    idle = start(kapelle, "loop", repository, title="Idle", until=["true"], **loop)
    for run in (failed, idle):
        rest(kapelle, run)
    assert kapelle.get(f"/runs/{idle}")["verified"]
    log_in(page, kapelle)
    expect(page.locator(".results")).to_contain_text("Idle")
    expect(page.get_by_text("ready to merge")).to_have_count(0)
    page.goto(f"{url_of(kapelle)}/runs/{failed}/steps")
    check = page.locator(".steps > li", has_text="Check").first
    expect(check.get_by_role("img", name="failed").first).to_be_visible()
    expect(check).to_contain_text("the cellar is flooded")
    # An address of a run that is one of a task, and the other way round, leads there.
    page.goto(f"{url_of(kapelle)}/tasks/{idle}")
    expect(page).to_have_url(f"{url_of(kapelle)}/runs/{idle}")
    expect(page.get_by_role("button", name="Merge into main")).to_have_count(0)


def test_verified_work_is_merged_after_one_question(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    log_in(page, kapelle)
    work = "[[do]]\nwrite = 'new.txt'\ncontent = 'new'\n"
    task = kapelle.play(work, repository, title="Add a file", checks=["test -f new.txt"])
    page.get_by_role("link", name="Review").click()
    expect(page.locator(".diff")).to_contain_text("new.txt")
    page.get_by_role("button", name="Merge into main").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It merges cleanly.")
    assert not kapelle.task(task)["merged_at"]
    dialog.get_by_role("button", name="Merge", exact=True).click()
    expect(page.locator(".verdict")).to_contain_text("Merged.")
    assert git(repository, "show", "main:new.txt") == "new"
    expect(dialog).to_have_count(0)
    # What is merged needs nobody.
    page.keyboard.press("g")
    page.keyboard.press("n")
    expect(page.get_by_role("heading", name="Nothing needs you")).to_be_visible()
    # A merge is undone after one question as well, and can be made again.
    page.goto(f"{url_of(kapelle)}/tasks/{task}")
    page.get_by_role("button", name="Undo merge").click()
    assert git(repository, "show", "main:new.txt") == "new"
    dialog.get_by_role("button", name="Undo merge").click()
    expect(page.get_by_role("button", name="Merge into main")).to_be_visible()
    assert git(repository, "ls-tree", "--name-only", "main", "new.txt") == ""
    assert kapelle.task(task)["merged_at"] is None


def test_work_that_conflicts_is_not_called_ready_to_merge(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    for name in ("one", "two"):
        work = f"[[do]]\nwrite = 'same.txt'\ncontent = '{name}'\n"
        spec: dict[str, Any] = {"title": f"Write {name}", "checks": ["test -f same.txt"]}
        kapelle.wait(kapelle.play(work, repository, **spec))
    log_in(page, kapelle)
    needs = page.locator(".needs > li")
    first, second = (needs.filter(has_text=f"Write {name}") for name in ("one", "two"))
    for item in (first, second):
        expect(item).to_contain_text("is verified and ready to merge")
    # What is merged meanwhile is told.
    first.get_by_role("button", name="Merge").click()
    page.get_by_role("dialog").get_by_role("button", name="Merge", exact=True).click()
    expect(first).to_have_count(0)
    expect(second).to_contain_text("conflicts in 1 file")
    expect(second).not_to_contain_text("ready to merge")
    expect(second.get_by_role("button", name="Merge")).to_have_count(0)


def test_a_pull_request_is_where_it_is_needed_and_where_its_work_is(
    page: Page, kapelle: Instance, repository: Path, forge: ForgeServer
) -> None:
    log_in(page, kapelle)
    work = "[[do]]\nwrite = 'new.txt'\ncontent = 'new'\n"
    task = kapelle.play(
        work, repository, title="Add a file", checks=["test -f new.txt"], deliver="pr"
    )
    expect(page.get_by_text("could not be made a pull request")).to_be_visible()
    expect(page.locator(".evi")).to_contain_text("is not a known forge")
    configure(kapelle, forge)
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("heading", name="Nothing needs you")).to_be_visible()
    forge.jobs[""] = [("build", "failure", "boom")]
    expect(page.get_by_text("has a pull request whose CI failed")).to_be_visible()
    page.get_by_role("link", name="Open", exact=True).click()
    link = page.locator(".ladder").get_by_role("link", name="Pull request 1")
    expect(link).to_have_attribute("href", forge.pulls[0]["html_url"])
    # What people say to it is read, and told to its agent.
    forge.comment("Why <b>so</b>?")
    page.get_by_role("button", name="Show comments").click()
    expect(page.locator(".comments")).to_contain_text("Why <b>so</b>?")
    page.get_by_role("button", name="Send the new comments to the agent").click()
    expect(page.get_by_text("The comments went to the agent.", exact=True)).to_be_visible()
    attempt = kapelle.wait(task)["attempts"][1]["id"]
    prompts = (kapelle.home.attempts / attempt).glob("prompt*")
    assert "Why <b>so</b>?" in "".join(file.read_text(encoding="utf-8") for file in prompts)
    page.get_by_role("button", name="Send the new comments to the agent").click()
    expect(page.locator(".deal")).to_contain_text("There is no new comment")
    page.goto(f"{url_of(kapelle)}/work?q=pr:open")
    expect(page.locator("main")).to_contain_text("Add a file")


def test_what_is_put_off_comes_back_and_what_was_seen_is_dim(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    task = kapelle.play('[[do]]\nfail = "no ideas"\n', repository, title="Hard", checks=["true"])
    kapelle.wait(task)
    log_in(page, kapelle)
    page.get_by_role("button", name="Snooze: Hard").click()
    page.get_by_role("menuitem", name="Tomorrow morning").click()
    expect(page.get_by_role("heading", name="Nothing needs you")).to_be_visible()
    expect(page.locator(".results .seen")).to_have_count(0)
    kapelle.post(f"/work/{task}/mark", {"snoozed_until": None})
    expect(page.locator(".needs")).to_contain_text("no ideas")
    page.get_by_role("link", name="Hard").first.click()
    page.get_by_role("button", name="More").click()
    page.get_by_role("menuitem", name="Flag for attention").click()
    page.get_by_role("link", name="Checks").click()
    page.get_by_role("button", name="Re-run checks").click()
    expect(page.get_by_role("heading", name=re.compile("Re-run,"))).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("n")
    expect(page.locator(".results .seen")).to_contain_text("Hard")
    kapelle.cli("archive", task)
    expect(page.locator(".needs")).to_have_count(0)


def test_a_form_says_what_is_wrong_at_the_field(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    log_in(page, kapelle)
    page.keyboard.press("c")
    page.get_by_label("Prompt", exact=True).fill("Say hello")
    page.get_by_label(re.compile("^Directory")).fill(str(repository))
    page.get_by_label(re.compile("^Agent")).select_option("rehearsal")
    page.get_by_label(re.compile("^Budget")).fill("lots")
    page.get_by_role("button", name="Start the task").click()
    expect(page.locator(".err", has_text="Budget")).to_contain_text("An amount in USD")
    page.get_by_label(re.compile("^Budget")).fill("")
    page.get_by_role("button", name="Start the task").click()
    expect(page.locator(".claim")).to_be_visible()
    expect(page.locator(".verdict")).to_contain_text("Completed")


def test_what_is_to_begin_later_becomes_a_schedule(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/new?pattern=loop")
    page.get_by_label("Prompt", exact=True).fill("Tidy up")
    page.get_by_label(re.compile("^Commands")).fill("true")
    page.get_by_label(re.compile("^Directory")).fill(str(repository))
    page.get_by_label(re.compile("^Agent ?-a")).select_option("rehearsal")
    page.get_by_role("radio", name="Recurring").click()
    page.get_by_label(re.compile("^Minute, hour")).fill("61 * * * *")
    page.get_by_role("button", name="Schedule the loop").click()
    wrong = page.locator(".err", has_text="Minute, hour")
    expect(wrong).to_contain_text("a minute is 0 to 59")
    expect(wrong.locator("input")).to_be_focused()
    page.get_by_role("button", name="on Mondays").click()
    expect(page.get_by_text("Next Mon ").first).to_contain_text("09:00")
    page.get_by_role("button", name="Schedule the loop").click()
    expect(page.get_by_role("heading", name="Tidy up").last).to_be_visible()
    (made,) = kapelle.get("/schedules")["schedules"]
    assert (made["kind"], made["cron"]) == ("loop", "0 9 * * 1")


def tab_to(page: Page, what: str) -> None:
    """Press Tab until the focus is on the element that a selector names."""
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate("what => document.activeElement.matches(what)", what):
            return
    raise AssertionError(f"Tab never came to {what}")


def test_everything_is_done_by_keys_alone(page: Page, kapelle: Instance, repository: Path) -> None:
    with_playbook(kapelle, rule("Blue", {"result": "Blue."})
                  + rule("Paint", {"ask": "Which colour?"})
                  + rule("Add", {"write": "new.txt", "content": "new\n"}))  # fmt: skip
    log_in(page, kapelle)
    type_ = page.keyboard.type
    press = page.keyboard.press
    press("c")
    expect(page.get_by_label("Prompt", exact=True)).to_be_visible()
    tab_to(page, "textarea.prompt")
    type_("Add a file")
    tab_to(page, "input[list]")
    type_(str(repository))
    tab_to(page, "select:has(option[value=rehearsal])")
    type_("rehearsal")
    press("Control+Enter")
    expect(page.locator(".verdict")).to_contain_text("Completed")
    tab_to(page, ".tabs a[href$=changes]")
    press("Enter")
    expect(page.locator(".diff")).to_contain_text("new.txt")
    press("m")
    expect(page.get_by_role("dialog")).to_contain_text("It merges cleanly.")
    tab_to(page, "dialog .btn.primary, [role=dialog] .btn.primary")
    press("Enter")
    expect(page.locator(".verdict")).to_contain_text("Merged.")
    expect(page.get_by_role("dialog")).to_be_hidden()
    kapelle.submit("Paint it", repository, title="The door")
    press("g")
    press("n")
    expect(page.locator(".needs .open")).to_contain_text("Which colour?")
    tab_to(page, ".needs .open .field")
    type_("Blue")
    press("Enter")
    expect(page.locator(".needs")).to_have_count(0)
    page.evaluate("document.activeElement.blur()")
    press("/")
    type_("Add a file")
    # Until the work is known, all that is offered is to search for it.
    expect(page.locator("#goals [role=option]").first).to_contain_text("task ")
    press("Enter")
    expect(page.get_by_role("heading", name="Add a file")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_list_is_kept_worked_off_and_told_of_in_the_report(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    good = rule("GOOD", {"write": "good.txt", "content": "good"})
    with_playbook(kapelle, good + rule("BAD", {"fail": "no idea"}))
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/knowledge/lists")
    page.get_by_role("button", name="New list").click()
    page.get_by_label("Name").fill("night")
    page.get_by_label("Items").fill("- GOOD\n  - title: Something good\n- BAD\nnothing")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("line 4: 'nothing' belongs to no item")
    page.get_by_label("Items").fill("- GOOD\n  - title: Something good\n- BAD\n")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="night").click()
    page.get_by_label("Directory").fill(str(repository))
    page.get_by_label("Agent").select_option("rehearsal")
    page.get_by_role("button", name="Work off 2 items").click()
    expect(page.get_by_text("2 of 2 items have ended")).to_be_visible(timeout=60_000)
    first, second = page.locator("tbody tr").all()
    expect(first).to_contain_text("Something good")
    expect(first).to_contain_text("merged")
    expect(second).to_contain_text("no idea")
    page.goto(f"{url_of(kapelle)}/")
    page.get_by_role("link", name="Report").click()
    needs = page.get_by_label("Needs you", exact=True)
    expect(needs).to_contain_text("1 of 2 items failed: 2 (BAD)")
    expect(needs).to_contain_text("kapelle runs steps run_")
    expect(page.get_by_role("link", name="Markdown")).to_be_visible()


def test_a_loop_and_a_team_are_watched_to_their_end(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    parts = [{"id": "a", "title": "Part a", "task": "PART-a"},
             {"id": "b", "title": "Part b", "task": "PART-b", "depends_on": ["a"]}]  # fmt: skip
    with_playbook(kapelle, rule("You plan the work", answer({"subgoals": parts}))
                  + rule("You review", answer(YES))
                  + rule("You prepare", answer({"success_criteria": ["It is there"]}))
                  + rule("PART-a", {"write": "a", "content": "a"})
                  + rule("PART-b", {"write": "b", "content": "b"})
                  + rule("Count", {"run": "echo x >> count"}))  # fmt: skip
    log_in(page, kapelle)
    page.evaluate("window.stayed = true")
    counting = {"prompt": "Count", "eval": "cat count | wc -l", "direction": "maximize"}
    start(kapelle, "loop", repository, title="Count to three", target=3, **counting)
    page.locator(".side .under, .results").get_by_text("Count to three").first.click()
    expect(page.locator(".verdict")).to_contain_text("Completed")
    expect(page.locator(".table tbody tr")).to_have_count(4)
    expect(page.locator(".table")).to_contain_text("kept")
    start(kapelle, "team", repository, title="Two parts", goal="Two parts", verify=["test -e b"])
    page.keyboard.press("g")
    page.keyboard.press("n")
    page.locator(".side .under, .results").get_by_text("Two parts").first.click()
    expect(page.locator(".verdict")).to_contain_text("Completed")
    expect(page.locator(".dag .node", has_text="merged")).to_have_count(2)
    expect(page.locator(".dag .edges path")).to_have_count(2)
    assert page.evaluate("window.stayed") is True


def test_two_hundred_hostile_texts_are_only_text(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    asked: list[str] = []
    page.on("dialog", lambda dialog: asked.append(dialog.message))
    base = "b/<img/src=x/onerror=alert(1)>"
    git(repository, "branch", base)
    steps = [f"[[do]]\nsay = {json.dumps(text)}\n" for text in HOSTILE]
    results = [text for text in HOSTILE if "\0" not in text]
    steps += [f"[[do]]\ntool = {json.dumps(text[:80])}\ninput = {{ path = {json.dumps(text)} }}\n"
              f"result = {json.dumps(text)}\n" for text in results[:40]]  # fmt: skip
    for text in HOSTILE[:40]:
        name = text.replace("/", "_").replace("\0", "")[:60]
        steps.append(f"[[do]]\nwrite = {json.dumps(name)}\ncontent = {json.dumps(text)}\n")
    question = json.dumps(" ".join(results[:40]))
    steps.append(f"[[do]]\nask = {question}\n")
    task = kapelle.play("".join(steps), repository, title="Hostile", base=base)
    kapelle.wait(task)
    titles = {titled for text in HOSTILE if (titled := "".join(filter(shown, text))[:200]).strip()}
    for title in titles:
        kapelle.submit("Later", repository, title=title, depends_on=[task], project=title[:60])
    for text in results[:40]:
        key = "".join(filter(shown, text))[:200] or "nothing"
        kapelle.post("/notes", {"key": key, "value": text, "scope": "global"})
    log_in(page, kapelle)
    views = ["/", "/work", "/work?view=graph", "/work?view=timeline", "/knowledge/notes"]
    for path in [*views, *(f"/tasks/{task}{part}" for part in ("", *TABS))]:
        page.goto(url_of(kapelle) + path)
        expect(page.locator("main")).not_to_be_empty()
        expect(page.locator(".loading")).to_have_count(0)
        made = "main script, main img, main iframe, main a[href^=javascript]"
        assert page.locator(made).count() == 0
        for width in (1440, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert is_within(page), (path, width)
    assert asked == []


def shown(character: str) -> bool:
    """Whether a title may hold it."""
    return ord(character) > 31 and ord(character) != 127


TABS = ("/changes", "/checks", "/attempts", "/output", "/events")


def is_within(page: Page) -> bool:
    width = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    return bool(page.evaluate(width))


@pytest.mark.timeout(300)
def test_every_view_in_both_themes_and_on_a_phone(
    browser: Browser, tmp_path: Path, exhaustive: bool, sampling: random.Random
) -> None:
    """Nothing is wider than its window, also at 200 %, and nothing keeps anybody out of some views,
    a few of them in the dark. Exhaustive, of all in both, with pictures to be looked at."""
    kapelle = Instance(tmp_path / "home", KAPELLE_LIMITS__MAX_ATTEMPTS="12")
    kapelle.start()
    axe = (WEB / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    try:
        views = views_of(stage(kapelle, tmp_path))
        examined = [*views] if exhaustive else sampling.sample([*views], 16)
        in_the_dark = examined if exhaustive else examined[:5]
        context = browser.new_context(reduced_motion="reduce")
        page = context.new_page()
        log_in(page, kapelle)
        for name, path in views.items():
            page.goto(url_of(kapelle) + path)
            expect(page.locator("main")).not_to_be_empty()
            expect(page.locator(".loading")).to_have_count(0)
            if name in examined:
                page.evaluate(axe)
            for theme, width in LOOKS:
                if theme == "dark" and name not in in_the_dark:
                    continue
                page.emulate_media(color_scheme=theme)
                page.set_viewport_size({"width": width, "height": 900})
                if exhaustive:
                    page.screenshot(path=tmp_path / "pictures" / f"{name}-{width}-{theme}.png")
                assert is_within(page), (name, width)
                if name in READABLE:
                    selector, least = READABLE[name]
                    assert page.evaluate(NARROWEST, selector) >= least, (name, width)
                asked = width == 1440 and name in examined
                if asked and (wrong := page.evaluate(SERIOUS)):
                    found[f"{name} {theme}"] = wrong
            assert page.evaluate("document.getAnimations().length") == 0
        context.close()
    finally:
        kapelle.destroy()
    assert found == {}


# 720 is a window of 1440 at 200 %; from 721 on a window is no phone.
LOOKS: tuple[tuple[Literal["light", "dark"], int], ...] = (
    ("light", 1440), ("light", 1024), ("light", 768), ("light", 721), ("light", 720),
    ("light", 390), ("dark", 1440), ("dark", 390),
)  # fmt: skip
# The narrowest of what must be readable in a view, and how many pixels it needs.
READABLE = {"work": (".worklist .rowbox .t", 200), "changes": (".diff", 350)}
NARROWEST = """(selector) => Math.min(
    ...[...document.querySelectorAll(selector)].map((element) => element.clientWidth))"""
SERIOUS = """axe.run(document, {
    runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'],
    resultTypes: ['violations'],
}).then(({ violations }) => violations
    .filter(({ impact }) => impact !== 'minor')
    .map(({ id, nodes }) => [id, ...nodes.slice(0, 4).map((node) => node.html.slice(0, 160))]))"""


def views_of(ids: dict[str, str]) -> dict[str, str]:
    task, team = f"/tasks/{ids['orders']}", f"/runs/{ids['team']}"
    return {
        "now": "/", "work": "/work", "graph": "/work?view=graph", "timeline": "/work?view=timeline",
        "task": task,
        **{part: f"{task}/{part}" for part in ("changes", "checks", "attempts", "output")},
        "events": f"{task}/events", "live": f"/tasks/{ids['partition']}",
        "failed": f"/tasks/{ids['cache']}", "question": f"/tasks/{ids['question']}",
        "loop": f"/runs/{ids['loop']}", "team": team, "best-of": f"/runs/{ids['best']}",
        "pipeline": f"/runs/{ids['pipeline']}", "orchestrate": f"/runs/{ids['release']}",
        "workflow": f"/runs/{ids['workflow']}", "debate": f"/runs/{ids['debate']}",
        "tracks": f"/runs/{ids['tracks']}", "batch": f"/runs/{ids['batch']}",
        "steps": f"{team}/steps", "new": "/new",
        "new-team": "/new?pattern=team", "schedules": "/schedules", "usage": "/usage",
        "report": "/report", "lists": "/knowledge/lists", "search": "/search?q=orders",
        "system": "/system", "locks": "/system/locks", "daemon": "/system/daemon",
        "learnings": "/knowledge", "templates": "/knowledge/templates", "projects": "/projects",
    }  # fmt: skip


def test_the_page_is_for_everybody_and_what_it_shows_is_not(door: Door) -> None:
    shell = door.ask("GET", "/tasks/task_x/changes")
    assert (shell.status, shell.headers["Cache-Control"]) == (200, "no-cache")
    assert "'self'" in shell.headers["Content-Security-Policy"]
    for script in re.findall(r"<script[^>]*>(.*?)</script>", shell.body.decode(), re.DOTALL):
        assert script == ""
    for name in re.findall(r'"/(assets/[^"]+)"', shell.body.decode()):
        asset = door.ask("GET", f"/{name}")
        assert (asset.status, "immutable" in asset.headers["Cache-Control"]) == (200, True)
        kept = [("If-None-Match", asset.headers["ETag"])]
        assert door.ask("GET", f"/{name}", kept).status == 304
    for path in (
        "/assets/../../pyproject.toml",
        "/assets/%2e%2e/%2e%2e/pyproject.toml",
        "/assets/",
    ):
        assert door.ask("GET", path).status == 404
    assert door.ask("POST", "/work").status == 401
    assert door.ask("GET", "/api/v1/work").status == 401


def test_the_files_of_the_page_are_sent_compressed_to_whoever_takes_that(door: Door) -> None:
    shell = door.ask("GET", "/")
    names = re.findall(r'"/(assets/[^"]+)"', shell.body.decode())
    assert len(names) >= 2
    for path in ("/", *(f"/{name}" for name in names)):
        plain = door.ask("GET", path, [("Accept-Encoding", "br, gzip;q=0")])
        packed = door.ask("GET", path, [("Accept-Encoding", "gzip, deflate, br")])
        assert (plain.headers["Content-Encoding"], plain.headers["Vary"]) == (
            None,
            "Accept-Encoding",
        )
        assert (packed.headers["Content-Encoding"], packed.headers["Vary"]) == (
            "gzip",
            "Accept-Encoding",
        )
        assert gzip.decompress(packed.body) == plain.body
        for name in ("Content-Type", "Cache-Control"):
            assert packed.headers[name] == plain.headers[name]
        # The two have tags of their own, so that no cache takes one for the other.
        assert packed.headers["ETag"] != plain.headers["ETag"]
        kept = [("Accept-Encoding", "gzip"), ("If-None-Match", packed.headers["ETag"])]
        assert door.ask("GET", path, kept).status == 304
