"""The page in a real Chromium: what the daemon does is seen without reloading."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser import chromium, is_fresh
from tests.e2e.door import Door, open_door
from tests.e2e.instance import Instance

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip
PATIENCE_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = chromium()
    if executable is None:
        pytest.skip("NO CHROMIUM HERE, so the page is not tested: `make browser` installs it")
    assert is_fresh(), "web/dist is older than what it is built of: `make browser` builds it"
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A window in which nothing may go wrong unnoticed."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
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
    log_in(page, kapelle)
    kapelle.kill()
    banner = page.locator(".banner")
    expect(banner).to_contain_text("The daemon does not answer.")
    kapelle.start()
    expect(banner).to_have_count(0)
    kapelle.submit("Hello", repository, title="After the crash")
    expect(page.locator(".results")).to_contain_text("After the crash")


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
