"""Templates, projects, knowledge, comments and notifications in a real Chromium."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.e2e.support.ensembles import rest, rule, start, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.test_page import browser, log_in, page, url_of

__all__ = ["browser", "page"]

BOOK = rule("(?s)Comments on your changes.*line 2.*Say why", {"result": "I say why."}) + rule(
    "Write", {"write": "notes.md", "content": "one\ntwo ``` ticks\nthree\n"}, {"result": "Done."}
)


def test_what_is_known_is_read_and_changed(page: Page, kapelle: Instance, repository: Path) -> None:
    kapelle.post("/notes", {"key": "results/step1", "value": "first", "scope": "global"})
    log_in(page, kapelle)
    page.keyboard.press("g")
    page.keyboard.press("k")
    expect(page.get_by_role("heading", name="Knowledge")).to_be_visible()
    page.get_by_role("button", name="New learning").click()
    page.get_by_label("Title").fill("Redis")
    page.get_by_label("Content").fill("Start it first.")
    page.get_by_label("Project", exact=True).last.fill("shop")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Redis").click()
    page.get_by_label("Content").fill("<b>Start it</b> with make redis.")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("tbody")).to_contain_text("<b>Start it</b> with make redis.")
    # A note that somebody writes meanwhile is not written over.
    page.get_by_role("radio", name="Notes").click()
    page.get_by_role("button", name="step1").click()
    box = page.get_by_label("Text")
    expect(box).to_have_value("first")
    box.fill("mine")
    spec = {"key": "results/step1", "value": "theirs", "scope": "global"}
    kapelle.post("/notes", spec)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Read it again")
    expect(box).to_have_value("mine")
    page.get_by_role("button", name="Reload").click()
    expect(box).to_have_value("theirs")
    box.fill("ours")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".editor")).to_have_count(0)
    assert kapelle.get("/notes/entry?key=results/step1&scope=global")["value"] == "ours"
    page.get_by_role("radio", name="Templates").click()
    page.get_by_role("button", name="New template").click()
    page.get_by_label("Name", exact=True).fill("bug fix")
    page.get_by_label("Guidelines").fill("Test first.")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".err", has_text="Name")).to_contain_text("Letters, digits")
    page.get_by_label("Name", exact=True).fill("bugfix")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("tbody")).to_contain_text("not used yet")
    # It is chosen in New, and what the task says is told there.
    page.goto(f"{url_of(kapelle)}/new")
    page.get_by_placeholder("What should be done?").fill("Hello")
    page.get_by_label("Template--template").select_option("bugfix")
    page.get_by_label("Directory-C").or_(page.get_by_label("Directory--directory")).fill(
        str(repository)
    )
    page.get_by_label("Agent--agent").or_(page.get_by_label("Agent-a")).select_option("rehearsal")
    expect(page.locator("aside .cmd")).to_contain_text("--template bugfix")
    page.get_by_role("button", name="Start the task").click()
    expect(page.get_by_role("heading", name="Hello")).to_be_visible()
    [task] = kapelle.get("/tasks")["tasks"]
    assert (task["template"], task["guidelines"]) == ("bugfix", "Test first.")


def test_projects_are_switched_renamed_and_put_away(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    for project in ("shop", "ledger"):
        done = kapelle.submit("Hello", repository, title=f"Of {project}", project=project)
        kapelle.wait(done)
    log_in(page, kapelle)
    scope = page.get_by_role("combobox", name="Project", exact=True)
    scope.select_option("shop")
    expect(page.locator(".results")).to_contain_text("Of shop")
    expect(page.locator(".results")).not_to_contain_text("Of ledger")
    scope.select_option(label="Projects and archive…")
    row = page.locator("tr", has_text="shop")
    row.get_by_role("button", name="Rename").click()
    page.get_by_label("New name of shop").fill("store")
    page.get_by_role("button", name="Rename", exact=True).last.click()
    expect(scope).to_have_value("store")
    assert [task["title"] for task in kapelle.get("/tasks?project=store")["tasks"]] == ["Of shop"]
    row = page.locator("tr", has_text="store")
    row.get_by_role("button", name="Archive").click()
    expect(row.get_by_role("button", name="Unarchive")).to_be_visible()
    expect(page.get_by_role("link", name="Of shop")).to_be_visible()
    page.reload()
    expect(row.get_by_role("button", name="Unarchive")).to_be_visible()
    page.get_by_role("link", name="Work", exact=True).click()
    expect(page.get_by_text("No work yet")).to_be_visible()


def test_a_comment_on_a_line_becomes_the_next_prompt(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    with_playbook(kapelle, BOOK)
    task: Any = kapelle.submit("Write", repository, title="Notes")
    kapelle.wait(task)
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/tasks/{task}/changes")
    # By keyboard alone: the line's number is a button.
    page.get_by_role("button", name="Comment on line 2").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("Say why.")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".review")).to_contain_text("notes.md:2")
    page.reload()
    expect(page.locator(".review")).to_contain_text("Say why.")
    page.get_by_label("Summary").fill("Look again.")
    page.get_by_role("button", name="Send to the agent").click()
    expect(page.locator(".review")).to_have_count(0)
    found = kapelle.wait(task)
    assert (found["result"], len(found["attempts"])) == ("I say why.", 2)


def test_what_accounts_and_templates_used_and_where_words_stand(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    soon = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    told = {"5-hour": {"used": 0.85, "resets_at": soon}, "weekly <b>": {"resets_at": soon}}
    lines = [json.dumps({"kind": "window", "name": name, "data": told[name]}) for name in told]
    said = "".join(f"[[do]]\nprint = {json.dumps(line + chr(10))}\n" for line in lines)
    kapelle.post("/templates", {"name": "mending", "guidelines": "Mend the cause."})
    task = kapelle.play(f'{said}[[do]]\nsay = "The blue parrot."', repository, template="mending")
    assert kapelle.wait(task)["status"] == "completed"
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/usage")
    accounts = page.get_by_role("row", name=re.compile("rehearsal"))
    expect(accounts.filter(has_text="5-hour")).to_contain_text("85 % used")
    expect(accounts.filter(has_text="weekly <b>")).to_contain_text("share unknown")
    page.get_by_role("radio", name="Template").click()
    expect(page.get_by_role("row", name=re.compile("mending"))).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert '"mending",1,' in download.value.path().read_text(encoding="utf-8")
    page.goto(f"{url_of(kapelle)}/system")
    expect(page.locator("main")).to_contain_text("5-hour: 85 % used, resets")
    # Words are found where they stand, and the output opens there.
    page.keyboard.press("/")
    page.keyboard.type("blue parrot")
    page.get_by_role("option", name="Search everything for blue parrot").click()
    expect(page.locator(".hit mark").first).to_have_text("blue")
    page.get_by_role("button", name=re.compile("^Output")).click()
    page.get_by_role("link", name="Open there").first.click()
    expect(page.locator(".found")).to_contain_text("blue parrot")
    page.goto(f"{url_of(kapelle)}/nowhere")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    expect(page.get_by_role("link", name="Usage")).to_be_visible()


def test_the_browser_tells_who_looks_elsewhere(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    page.context.grant_permissions(["notifications"], origin=url_of(kapelle))
    page.add_init_script(
        "document.hasFocus = () => false;"
        "window.Notification = class { static permission = 'granted';"
        "static requestPermission = async () => 'granted';"
        "constructor(title) { document.body.dataset.told = title; } }"
    )
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/system/settings")
    page.get_by_label(re.compile("^Desktop notifications")).check()
    run = start(kapelle, "pipeline", repository, agent="rehearsal", steps=["a", "b"], title="Two")
    rest(kapelle, run)
    expect(page.locator("body")).to_have_attribute("data-told", "Two finished")
    failed = kapelle.play('[[do]]\nfail = "no"', repository, title="Hopeless")
    kapelle.wait(failed)
    expect(page.locator("body")).to_have_attribute("data-told", "Hopeless failed")
    page.get_by_label(re.compile("^Desktop notifications")).uncheck()


def test_a_long_conversation_opens_at_its_end_and_all_of_it_is_in_reach(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    tools = "".join(
        f'[[do]]\nsay = "Step {n}."\n[[do]]\ntool = "Read{n}"\ninput = {{ path = "{n}" }}\n'
        for n in range(260)
    )
    task = kapelle.play(tools + '[[do]]\nsay = "The last words."', repository)
    kapelle.wait(task)
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/tasks/{task}")
    told = page.locator(".tx")
    expect(told.get_by_text("The last words.").last).to_be_in_viewport()
    expect(told.get_by_text("Step 0.", exact=True)).to_have_count(0)
    page.get_by_role("radio", name="Outline").click()
    page.get_by_role("button", name="Step 0.", exact=True).click()
    expect(told.get_by_text("Step 0.", exact=True)).to_be_in_viewport()
    expect(page.get_by_role("radio", name="Conversation")).to_be_checked()
    page.goto(f"{url_of(kapelle)}/tasks/{task}/output")
    field = page.get_by_label("Find in the output")
    expect(field).to_be_visible()
    page.keyboard.press("f")
    expect(field).to_be_focused()
    page.keyboard.type("step 25")
    page.keyboard.press("Enter")
    at = field.bounding_box()
    expect(page.get_by_text("1 of 11")).to_be_visible()
    assert field.bounding_box() == at
    expect(page.locator(".found")).to_contain_text("Step 25.")
    expect(page.locator(".found mark")).to_have_text("Step 25")
    page.get_by_role("button", name="Previous").click()
    expect(page.locator(".found")).to_contain_text("Step 259.")


def test_a_run_opens_in_the_list_and_whoever_logs_out_is_out(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    with_playbook(kapelle, rule("Part", {"say": "done"}))
    run = start(
        kapelle,
        "pipeline",
        repository,
        steps=[{"prompt": "Part one"}, {"prompt": "Part two"}],
        title="Two parts",
    )
    rest(kapelle, run)
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/work")
    rows = page.get_by_role("table", name="Work").get_by_role("row")
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Parts of Two parts").click()
    expect(rows).to_have_count(4)
    expect(rows.nth(2)).to_contain_text("Part one")
    page.goto(f"{url_of(kapelle)}/system/settings")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_text("kapelle open", exact=True)).to_be_visible()
    page.goto(f"{url_of(kapelle)}/work")
    expect(page).to_have_url(f"{url_of(kapelle)}/login")


def test_a_firing_shows_the_state_of_its_work_and_deleting_a_schedule_is_confirmed(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    spec = {"prompt": "Hello", "directory": str(repository), "agent": "rehearsal"}
    nightly = {"kind": "task", "cron": "0 3 * * *", "title": "Nightly", "spec": spec}
    schedule = kapelle.post("/schedules", nightly)["id"]
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/schedules/{schedule}")
    expect(page.get_by_label("About this schedule")).to_contain_text("Hello")
    page.get_by_role("button", name="Start now").click()
    firing = page.locator(".happenings li")
    expect(firing).to_contain_text("started")
    (task,) = kapelle.get("/tasks")["tasks"]
    kapelle.wait(task["id"])
    page.reload()
    expect(firing.get_by_role("img", name="completed")).to_be_visible()
    expect(firing.locator(".arc")).to_have_count(0)
    page.get_by_role("button", name="Delete schedule").click()
    question = page.get_by_role("dialog", name="Delete this schedule?")
    question.get_by_role("button", name="Cancel").click()
    expect(question).to_have_count(0)
    assert kapelle.get(f"/schedules/{schedule}")["status"] == "active"
    page.get_by_role("button", name="Delete schedule").click()
    question.get_by_role("button", name="Delete").click()
    expect(page.locator(".verdict")).to_contain_text("Cancelled.")
    assert kapelle.get(f"/schedules/{schedule}")["status"] == "cancelled"


def test_the_login_leads_back_and_a_half_typed_message_survives_a_reload(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    task = kapelle.submit("Hello", repository, title="Greeting")
    kapelle.wait(task)
    address = f"{url_of(kapelle)}/tasks/{task}"
    page.goto(address)
    expect(page).to_have_url(f"{url_of(kapelle)}/login")
    page.goto(kapelle.cli("open", "--print").stdout.strip())
    expect(page).to_have_url(address)
    message = page.get_by_label("Continue this conversation")
    message.fill("Also say goodb")
    page.reload()
    expect(message).to_have_value("Also say goodb")
    # Neither an address elsewhere nor an old one is followed.
    for path, age_ms in (("//example.org/work", 0), ("/work", 3_600_000)):
        page.context.clear_cookies()
        page.goto(f"{url_of(kapelle)}/login")
        keep = "([path, age]) => localStorage.setItem('kapelle.return',"
        keep += " JSON.stringify({ path, at: Date.now() - age }))"
        page.evaluate(keep, [path, age_ms])
        log_in(page, kapelle)


def test_the_page_is_opened_at_a_task_and_a_hint_is_typed_at_once(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    task = kapelle.play('[[do]]\nfail = "no ideas"\n', repository, title="Mend the import")
    kapelle.wait(task)
    page.goto(kapelle.cli("open", task[-6:], "--print").stdout.strip())
    expect(page.get_by_role("heading", name="Mend the import")).to_be_visible()
    page.goto(url_of(kapelle))
    page.get_by_role("link", name="Continue with a hint").click()
    expect(page.get_by_label("Continue this conversation")).to_be_focused()


def test_the_project_is_chosen_on_a_phone(page: Page, kapelle: Instance, repository: Path) -> None:
    for project in ("shop", "ledger"):
        kapelle.wait(kapelle.submit("Hello", repository, title=f"Of {project}", project=project))
    page.set_viewport_size({"width": 390, "height": 844})
    log_in(page, kapelle)
    expect(page.locator(".results")).to_contain_text("Of ledger")
    page.get_by_role("button", name="More").click()
    more = page.get_by_role("dialog", name="More")
    more.get_by_role("combobox", name="Project").select_option("shop")
    expect(more).to_have_count(0)
    expect(page.locator(".results")).to_contain_text("Of shop")
    expect(page.locator(".results")).not_to_contain_text("Of ledger")


def test_work_that_only_a_score_decided_about_is_not_proven(
    kapelle: Instance, repository: Path, page: Page
) -> None:
    grow = 'Play.\n```rehearsal\n[[do]]\nrun = "echo x >> n.txt"\n```\n'
    spec = {"prompt": grow, "eval": "cat n.txt 2>/dev/null | wc -l", "direction": "maximize"}
    run_id = start(kapelle, "loop", repository, max_iterations=1, **spec)
    assert rest(kapelle, run_id)["verified"] is False
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/runs/{run_id}")
    expect(page.locator(".verdict")).to_contain_text("Completed, not proven: judged by a score")
    page.goto(f"{url_of(kapelle)}/report")
    expect(page.locator("main")).to_contain_text("Judged by a score, not proven")


def test_small_things_are_where_they_belong(
    kapelle: Instance, repository: Path, page: Page
) -> None:
    """Columns below each other, the zone of a time, code in what was said, a toast aside."""
    for key, value in (("a/k", "x" * 900), ("long-folder/and-a-long-key", "y"), ("plain", "z")):
        kapelle.post("/notes", {"key": key, "value": value})
    spec = {"prompt": "x", "directory": str(repository), "agent": "rehearsal"}
    kapelle.post(
        "/schedules",
        {"kind": "task", "cron": "0 3 * * *", "timezone": "Pacific/Apia", "title": "Far",
         "spec": spec},
    )  # fmt: skip
    said = kapelle.wait(kapelle.play('[[do]]\nresult = "Dropped `?page=`"', repository))
    crashed = '[[do]]\nstderr = "Traceback:\\nValueError: boom 42"\n[[do]]\nexit = 1'
    failed = kapelle.wait(kapelle.play(crashed, repository))
    busy = kapelle.play('[[do]]\nsay = "at work"\n[[do]]\nsleep = 60', repository)
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/knowledge/notes")
    for place in (2, 3, 4):
        heads = page.locator(f"table.notes th:nth-child({place})")
        expect(heads).to_have_count(3)
        boxes = [heads.nth(number).bounding_box() for number in range(3)]
        assert len({round(box["x"] + box["width"]) for box in boxes if box}) == 1
    page.goto(f"{url_of(kapelle)}/knowledge/projects")
    expect(page.get_by_text("Page not found")).to_be_visible()
    page.goto(f"{url_of(kapelle)}/schedules")
    zone = page.evaluate("Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC'")
    expect(page.locator("tr", has_text="Far").get_by_text(zone, exact=True)).to_be_visible()
    page.goto(f"{url_of(kapelle)}/tasks/{said['id']}")
    expect(page.locator(".ladder q code")).to_have_text("?page=")
    page.goto(f"{url_of(kapelle)}/tasks/{failed['id']}")
    expect(page.locator(".verdict")).to_contain_text("ValueError: boom 42")
    page.goto(f"{url_of(kapelle)}/tasks/{busy}")
    for width in (1440, 1000, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.reload()
        page.locator(".composer textarea").fill("Look at the cursor first.")
        page.keyboard.press("Control+Enter")
        expect(page.locator(".toast")).to_be_visible()
        assert not page.evaluate(OVERLAP, [".toast", ".composer"]), width


OVERLAP = """([one, other]) => {
    const [a, b] = [one, other].map((it) => document.querySelector(it).getBoundingClientRect())
    return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom
}"""
