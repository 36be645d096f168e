"""What the page counts, filters and judges comes from the daemon, however long its lists are."""

import re
from datetime import timedelta
from pathlib import Path

from playwright.sync_api import Page, expect

from kapelle.domain.states import AttemptStatus, TaskStatus
from kapelle.store.database import connect, sqlite_url
from tests.e2e.support.ensembles import rule, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.test_page import browser, is_within, log_in, page, url_of
from tests.integration.store.test_needs import CHANGED, DONE, NOW, Rows

__all__ = ["browser", "page"]


def store(kapelle: Instance, rows: Rows) -> None:
    engine = connect(sqlite_url(kapelle.home.database))
    with engine.begin() as connection:
        rows.store(connection)
    engine.dispose()


def test_any_number_of_ended_tasks_changes_no_total_and_hides_nothing(
    page: Page, kapelle: Instance
) -> None:
    first = Rows()
    first.add(**CHANGED, proved=True, title="Implement the pitch", repository="/src/opera")
    for name in ("one", "two"):
        first.add(**CHANGED, title=f"Unproven {name}", repository=f"/src/{name}")
    store(kapelle, first)
    log_in(page, kapelle)
    for number in (61, 140):
        rows = Rows()
        for at in range(number):
            rows.add(**DONE, title=f"Quick {number}.{at}")
        store(kapelle, rows)
    page.reload()
    expect(page).to_have_title(re.compile(r"^\(2\) Now"))
    expect(page.locator(".pulse .say")).to_contain_text("Two things need you.")
    expect(page.locator(".pulse .say")).to_contain_text("204 done today (1 verified, 203 not)")
    needs = page.locator(".needs > li")
    expect(needs.filter(has_text="Implement the pitch")).to_contain_text("opera")
    unproven = needs.filter(has_text="2 results to review")
    expect(unproven).to_contain_text("2 repositories")
    unproven.get_by_role("button", name="Show 2").click()
    expect(unproven.get_by_role("link", name="Unproven one")).to_be_visible()
    unproven.get_by_role("button", name="Mark all as reviewed").click()
    expect(unproven).to_have_count(0)
    # The oldest of all is found by its words, and by what is known of it.
    for typed, found in (
        ("PITCH implement", "1 item"),
        ("state:verified", "1 item"),
        ("repo:opera state:needs_you", "1 item"),
        ("state:completed since:1d", "204 items"),
        ("state:failed", "No matching work"),
        ("state:verified,failed", "1 item"),
        ("state:nonsense", "state:nonsense is not a state"),
    ):
        page.goto(f"{url_of(kapelle)}/work?q={typed.replace(' ', '+')}")
        expect(page.locator("main")).to_contain_text(found)


def test_the_timeline_colours_only_verified_work_green_and_offers_the_rows_it_leaves_out(
    page: Page, kapelle: Instance
) -> None:
    rows = Rows()
    earliest = NOW - timedelta(hours=5)
    for at in range(95):
        rows.add(**DONE, title=f"Earlier {at}")
    rows.add(**CHANGED, title="Unproven merge", merged_at=NOW)
    rows.add(**CHANGED, title="Unproven too", proved=False, merged_at=NOW)
    rows.add(**CHANGED, title="Verified merge", proved=True, merged_at=NOW)
    rows.add(title="Asked", status=TaskStatus.CANCELLED, started_at=NOW, ended_at=NOW)
    for attempt in rows.attempts:
        attempt |= {"ended_at": NOW, "question": None}
    rows.attempts[0] |= {"started_at": earliest, "ended_at": earliest}
    rows.attempts[-1] |= {"status": AttemptStatus.FAILED, "question": "Which one?"}
    store(kapelle, rows)
    log_in(page, kapelle)
    page.goto(f"{url_of(kapelle)}/work?view=timeline")
    lanes = page.locator(".chart a")
    looks = {
        "Unproven merge": "tl-cx", "Unproven too": "tl-cx", "Verified merge": "tl-ok",
        "Asked": "tl-you",
    }  # fmt: skip
    for title, look in looks.items():
        expect(lanes.filter(has_text=title).locator("rect")).to_have_class(look)
    expect(page.locator(".tbar output").last).to_have_text("60 of 99 rows")
    expect(lanes).to_have_count(60)
    heading = page.get_by_role("heading", name="Attempts since").inner_text()
    page.get_by_role("button", name="Show all 99").click()
    expect(lanes).to_have_count(99)
    # The window begins with the earliest attempt, also while that is not shown.
    expect(page.get_by_role("heading", name="Attempts since")).to_have_text(heading)


def test_a_narrow_list_names_repositories_and_unreported_tokens_are_unknown(
    page: Page, kapelle: Instance
) -> None:
    rows = Rows()
    rows.add(**CHANGED, title="Verified", proved=True, repository="/src/opera")
    rows.add(**CHANGED, title="Unproven", proved=False, repository="/src/opera")
    long = "kapelle/" + "unbroken" * 12
    failed = DONE | {"status": TaskStatus.FAILED, "reason": f"{long} is checked out"}
    rows.add(**failed, title=long, repository="/src/opera")
    for attempt in rows.attempts:
        attempt |= {"ended_at": NOW, "claimed": "success", "agent": "silent"}
        attempt |= {"input_tokens": None, "output_tokens": None}
    store(kapelle, rows)
    log_in(page, kapelle)
    expect(page.locator(".pulse .say")).to_contain_text(
        "2 done today (1 verified, 1 not), 1 failed"
    )
    page.goto(f"{url_of(kapelle)}/work")
    evidence = page.locator(".worklist .row", has_text="Verified").locator(".proofs")
    for width in (1000, 768, 390):
        page.set_viewport_size({"width": width, "height": 900})
        expect(
            page.locator(".worklist").get_by_text("opera").locator("visible=true")
        ).to_have_count(3)
        assert is_within(page), width
        if width > 390:
            expect(evidence).to_contain_text("not merged")
            assert evidence.evaluate(UNCUT), width
    page.goto(f"{url_of(kapelle)}/report")
    expect(page.get_by_text("3 items, 2 done (1 verified, 1 not), 1 failed;")).to_be_visible()
    assert is_within(page)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url_of(kapelle)}/usage")
    figure = page.locator(".figs > div", has_text="Tokens in")
    expect(figure.locator(".v")).to_have_text("unknown")
    expect(figure).not_to_contain_text("cached")
    more = Rows()
    more.add(**DONE)
    more.attempts[0] |= {"ended_at": NOW, "input_tokens": 2000, "output_tokens": 10}
    more.attempts[0] |= {"cached_tokens": 500, "turns": 1}
    store(kapelle, more)
    page.reload()
    expect(figure.locator(".v")).to_have_text("≥ 2 k")
    expect(figure).to_contain_text("25 % cached")
    row = page.locator(".sums tbody tr", has_text="silent")
    expect(row).to_contain_text("unknown")


# No part of the evidence is cut, neither at its right nor below.
UNCUT = """(proofs) => proofs.scrollHeight <= proofs.clientHeight
    && [...proofs.querySelectorAll('bdi')].every((part) => part.scrollWidth <= part.clientWidth)"""


def test_the_verdict_of_work_whose_checks_prove_nothing_is_one(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    work = "[[do]]\nwrite = 'new.txt'\ncontent = 'new'\n"
    checks = ["diff_not_empty", "true"]
    spec = {"title": "Blind", "checks": checks, "prove": "once"}
    task = kapelle.wait(kapelle.play(work, repository, **spec))
    assert (task["verified"], task["need"]) == (False, "look")
    log_in(page, kapelle)
    need = page.locator(".needs > li", has_text="Blind")
    expect(need).to_contain_text("completed, not proven")
    page.goto(f"{url_of(kapelle)}/tasks/{task['id']}")
    blind = "2 of 2 checks do not exercise the change"
    expect(page.locator(".verdict")).to_have_text(f"Completed, not proven: {blind}.")
    expect(page.locator(".checked header")).to_contain_text(f"2 of 2 passed; {blind}")
    expect(page.locator(".checked.ok")).to_have_count(0)
    expect(page.locator(".ladder")).to_contain_text(blind)


def test_a_test_of_an_agent_lifts_its_pause_and_those_who_wait_for_it_are_one(
    page: Page, kapelle: Instance, repository: Path
) -> None:
    with_playbook(
        kapelle,
        '[[rule]]\nmatch = "Limited"\nattempt = 1\ndo = [{ rate_limit = { reset_in_s = 7200 } }]\n'
        + rule("Limited", {"result": "done"})
        + rule("single word ok", {"result": "ok"}),
    )
    ids = [kapelle.submit(f"Limited {name}", repository) for name in ("one", "two")]
    for id_ in ids:
        kapelle.wait_for_status(id_, "waiting")
    log_in(page, kapelle)
    account = page.locator(".waits > li")
    expect(account).to_have_count(1)
    expect(account).to_contain_text("2 tasks")
    expect(account).to_contain_text("rehearsal is rate-limited until")
    account.get_by_role("button", name="Test now").click()
    expect(account).to_have_count(0)
    for id_ in ids:
        assert kapelle.wait(id_)["status"] == "completed"
