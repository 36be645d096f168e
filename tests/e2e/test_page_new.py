"""What is begun from the page, and the keys and windows around it, in a real Chromium."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.e2e.support.ensembles import rest, rule, start, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.test_page import browser, log_in, page, url_of

__all__ = ["browser", "page"]


def typed(kapelle: Instance, command: str, where: Path) -> "subprocess.CompletedProcess[str]":
    """What somebody gets who types a command that the page shows."""
    program, *words = shlex.split(command)
    assert program == "kapelle"
    return kapelle.cli(*words, cwd=where)


def test_escape_closes_every_window(page: Page, kapelle: Instance, repository: Path) -> None:
    work = "[[do]]\nwrite = 'new.txt'\ncontent = 'new'\n"
    done = kapelle.play(work, repository, title="Done", checks=["test -f new.txt"])
    kapelle.wait(done)
    slow = kapelle.play('[[do]]\nrun = "sleep 600"\n', repository, title="Slow")
    log_in(page, kapelle)
    window = page.get_by_role("dialog")
    page.get_by_role("button", name="Merge").click()
    expect(window).to_contain_text("It merges cleanly.")
    page.keyboard.press("Escape")
    expect(window).to_have_count(0)
    for key in ("/", "?"):
        page.keyboard.press(key)
        expect(window).to_be_visible()
        page.keyboard.press("Escape")
        expect(window).to_have_count(0)
    for task, key in ((done, "m"), (slow, "x")):
        page.goto(f"{url_of(kapelle)}/tasks/{task}")
        expect(page.locator(".subject h1")).to_be_visible()
        page.keyboard.press(key)
        expect(window).to_be_visible()
        page.keyboard.press("Escape")
        expect(window).to_have_count(0)
    assert kapelle.task(done)["merged_at"] is None
    assert kapelle.task(slow)["status"] == "running"
    # The palette does what has no place, and single keys can be switched off.
    page.keyboard.press("/")
    page.keyboard.type("cancel this")
    page.keyboard.press("Enter")
    expect(window).to_contain_text("Cancel")
    page.keyboard.press("Escape")
    page.goto(f"{url_of(kapelle)}/system/settings")
    page.get_by_label(re.compile("^Keyboard shortcuts")).uncheck()
    page.locator("h1").click()
    page.keyboard.press("?")
    page.keyboard.press("c")
    page.keyboard.press("Control+k")
    expect(window).to_contain_text("Search or jump to")
    expect(page).to_have_url(f"{url_of(kapelle)}/system/settings")


def test_what_the_first_visit_says_can_be_typed(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    log_in(page, kapelle)
    printed = typed(kapelle, page.locator(".empty .cmd").inner_text(), repository)
    assert printed.returncode == 0, printed.stderr
    assert kapelle.wait(printed.stdout.strip())["status"] == "completed"
    # Nobody is set up to do it, and that is said where it is to be mended.
    page.goto(f"{url_of(kapelle)}/new")
    agent = page.get_by_label(re.compile("^Agent"))
    expect(agent.locator("option").first).to_have_text("choose an agent")
    expect(page.locator("aside")).to_contain_text("The agent that you choose works in it.")
    page.get_by_label("Prompt", exact=True).fill("Say hello")
    page.get_by_role("button", name="Start the task").click()
    expect(page.locator(".err", has_text="Agent")).to_contain_text("no default is set")
    expect(agent).to_be_focused()


def test_what_is_sent_stands_in_the_form_and_the_command_does_the_same(
    page: Page, kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    with_playbook(kapelle, rule("", {"write": "hello.txt", "content": "hi"}, {"result": "Done."}))
    kapelle.wait(kapelle.submit("Before", repository))
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/new")
    prompt = page.get_by_label("Prompt", exact=True)
    place, budget = (page.get_by_label(re.compile(f"^{name}")) for name in ("Directory", "Budget"))
    start = page.get_by_role("button", name="Start the task")
    expect(place).to_have_value(str(repository))
    place.fill("")
    budget.fill("lots")
    start.click()
    of_budget = page.locator(".err", has_text="Budget")
    expect(page.locator(".err", has_text="Prompt")).to_contain_text("Enter a prompt.")
    expect(page.locator(".err", has_text="Directory")).to_contain_text("Enter an absolute path")
    expect(of_budget).to_contain_text("An amount in USD, such as 5.")
    expect(prompt).to_be_focused()
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "--quiet", repository, other], check=True)
    place.fill(str(other))
    prompt.fill("Say 'hello'")
    page.get_by_label(re.compile("^Agent")).select_option("rehearsal")
    budget.fill("0")
    start.click()
    # What the daemon refuses is told in the words of the form, too.
    expect(of_budget).to_contain_text("“Budget” must be more than 0")
    budget.fill("$5")
    page.get_by_label(re.compile("^Checks")).fill("test -f hello.txt\ndiff_not_empty")
    page.locator("details.more > summary").click()
    page.get_by_label(re.compile("^Workspace")).select_option("worktree")
    page.get_by_label(re.compile("^Retry")).select_option("same")
    page.get_by_label(re.compile("^Max attempts")).fill("2")
    page.get_by_label(re.compile("^Context")).fill("COLOUR=blue")
    servers = page.get_by_label(re.compile("^MCP servers"))
    servers.fill("docs=https://docs.example/mcp")
    expect(page.locator("aside .cmd")).to_contain_text("--mcp docs=https://docs.example/mcp")
    servers.fill("")  # the rehearsal takes none
    same = page.locator("aside .cmd").inner_text()
    start.click()
    expect(page.locator(".verdict")).to_contain_text("Completed")
    printed = typed(kapelle, same, tmp_path)
    assert printed.returncode == 0, printed.stderr
    kapelle.wait(printed.stdout.strip())
    theirs, ours = (told(task) for task in kapelle.get("/tasks")["tasks"][:2])
    assert ours == theirs
    assert (ours["directory"], ours["made"]) == (
        str(other),
        ["test -f hello.txt", "diff_not_empty"],
    )
    assert ours["place"] == "worktree"


def told(task: dict[str, Any]) -> dict[str, Any]:
    names = ("prompt", "directory", "agent", "budget_usd", "project", "template", "status")
    made = [check["name"] for check in task["checks"]]
    place = task["workspace"]["kind"]
    return {**{name: task[name] for name in names}, "made": made, "place": place}


def test_a_batch_is_begun_with_what_is_seen(
    page: Page, kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    with_playbook(kapelle, rule("", {"result": "Done."}))
    text = {"text": "- one\n- two\n", "format": "markdown", "expected_version": 0}
    kapelle.request("PUT", "/batches/night", text)
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/new?pattern=batch")
    items = page.get_by_label("Items", exact=True)
    expect(items).to_be_visible()
    page.get_by_label(re.compile("^Directory")).fill(str(repository))
    page.get_by_label(re.compile("^Agent")).select_option("rehearsal")
    start = page.get_by_role("button", name="Start the batch")
    start.click()
    expect(page.locator(".err", has_text="Items")).to_contain_text("or choose a saved list")
    expect(items).to_be_focused()
    page.get_by_label(re.compile("^Saved list")).select_option("night")
    same = page.locator("aside .cmd").inner_text()
    start.click()
    expect(page).to_have_url(re.compile("/runs/run_"))
    assert typed(kapelle, same, tmp_path).returncode == 0
    ours, theirs = kapelle.get("/runs")["runs"]
    for run in (ours, theirs):
        rest(kapelle, run["id"])
    assert [item["prompt"] for item in ours["spec"]["items"]] == ["one", "two"]
    assert ours["spec"] == theirs["spec"]


def test_a_loop_is_begun_by_what_ends_it_and_a_template_is_used(
    page: Page, kapelle: Instance, repository: Path, tmp_path: Path
) -> None:
    kapelle.post("/templates", {"name": "bugfix", "guidelines": "x", "agent": "rehearsal"})
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/knowledge/templates")
    page.get_by_role("link", name="Use it").click()
    expect(page.get_by_label("Template--template")).to_have_value("bugfix")
    expect(page.locator("aside")).to_contain_text("rehearsal works in it.")
    page.goto(f"{url_of(kapelle)}/new?pattern=loop&template=bugfix")
    page.get_by_label("Prompt", exact=True).fill("Say hello")
    page.get_by_label(re.compile("^Directory")).fill(str(repository))
    page.get_by_label(re.compile("^Commands")).fill("false")
    page.get_by_role("radio", name="Score improves").click()
    start = page.get_by_role("button", name="Start the loop")
    start.click()
    expect(page.locator(".err", has_text="Command")).to_contain_text("prints the score")
    page.get_by_label(re.compile("^Score command--")).fill("echo 3")
    page.get_by_label(re.compile("^Direction")).select_option("minimize")
    page.get_by_label(re.compile("^Iterations")).fill("1")
    same = page.locator("aside .cmd").inner_text()
    assert "--minimize" in same
    start.click()
    expect(page).to_have_url(re.compile("/runs/run_"))
    assert typed(kapelle, same, tmp_path).returncode == 0
    ours, theirs = kapelle.get("/runs")["runs"]
    for run in (ours, theirs):
        rest(kapelle, run["id"])
    assert ours["spec"] == theirs["spec"]
    assert "until" not in ours["spec"]
    assert ours["spec"]["template"] == "bugfix"


def test_locks_notes_and_notifications_say_what_can_be_done(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    page.add_init_script(
        "window.Notification = class { static permission = 'denied';"
        "static requestPermission = async () => 'denied'; }"
    )
    run = start(
        kapelle, "pipeline", repository, agent="rehearsal", steps=["a", "b"], title="Export"
    )
    rest(kapelle, run)
    note = {"key": f"workflow/{run}/plan", "value": "Paint the **turbine** first", "scope": run}
    kapelle.post("/notes", note)
    lock = {"paths": ["orders.py"], "directory": str(repository), "reason": "mine"}
    assert kapelle.post("/locks", lock)["held"]
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/system/locks")
    expect(page.get_by_role("img", name="held by you")).to_be_visible()
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_role("heading", name="No locks")).to_be_visible()
    assert kapelle.get("/locks") == []
    page.goto(f"{url_of(kapelle)}/system/settings")
    page.get_by_label(re.compile("^Desktop notifications")).click()
    expect(page.get_by_role("alert")).to_contain_text("does not allow")
    # A note is found by the title of its run, and by the words in it.
    page.goto(f"{url_of(kapelle)}/knowledge/notes")
    page.get_by_label("Scope").select_option(run)
    expect(page.locator("tbody")).to_contain_text("plan")
    page.goto(f"{url_of(kapelle)}/search?q=turbine")
    page.get_by_role("link", name="plan of Export").click()
    expect(page.get_by_label("Text")).to_have_value("Paint the **turbine** first")
    # A phone shows what is chosen, and leads to every place.
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{url_of(kapelle)}/new?pattern=workflow")
    expect(page.locator(".kind", has=page.locator(":checked"))).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("dialog").get_by_role("link", name="Usage").click()
    expect(page.get_by_role("heading", name="Usage", level=1)).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_new_takes_what_is_typed_at_once(page: Page, kapelle: Instance) -> None:
    log_in(page, kapelle)
    page.keyboard.press("c")
    prompt = page.get_by_placeholder("What should be done?")
    expect(prompt).to_be_focused()
    page.keyboard.type("Two files")
    expect(prompt).to_have_value("Two files")
    page.goto(f"{url_of(kapelle)}/schedules")
    page.get_by_role("link", name="New schedule").first.click()
    expect(prompt).to_be_focused()
