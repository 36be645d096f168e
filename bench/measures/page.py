"""The page in a real Chromium: how soon a change is seen, how smooth it stays, what it holds."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Page, sync_playwright
from tests.machine import chromium, is_fresh

from bench.daemon import BenchDaemon, Client
from bench.filling import fill
from bench.report import Row, Run, percentile, spread

_MOST_MS, _MOST_TASK_MS, _MOST_MB = 300, 100, 150
_PAST = 10_000
# Each line is the time at which it was printed.
_CLOCK = ["sh", "-c", "while :; do date +%s%3N; sleep 0.9; done"]
_TALK = ["sh", "-c", 'i=0; while :; do i=$((i+1)); echo "Line $i of the work"; sleep 2; done']
_FLAGS = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
# Notes how old each time is at the frame in which it is first painted.
_SEE = """() => {
  window.ages = []; const seen = new Set();
  // Other digits may stand right before and behind a time.
  const times = new RegExp(String(Date.now()).slice(0, 5) + '[0-9]{8}', 'g');
  const look = () => {
    for (const found of document.body.textContent.matchAll(times)) {
      if (seen.has(found[0])) continue;
      seen.add(found[0]); window.ages.push(Date.now() - Number(found[0]));
    }
    requestAnimationFrame(look);
  };
  look(); window.ages.length = 0;
}"""
_LONG = """() => {
  window.long = [];
  const note = (list) => window.long.push(...list.getEntries().map((entry) => entry.duration));
  new PerformanceObserver(note).observe({ type: 'longtask' });
}"""

# Scrolls on until the last line is seen, and then says so where it can be asked for.
_SCROLL = """(last) => {
  const box = document.querySelector('[role=log]');
  const on = () => {
    if (box.textContent.includes(last)) return void (document.title = 'done');
    box.scrollTop += 200 * box.clientHeight;
    setTimeout(on, 15);
  };
  setTimeout(on, 1000);
}"""


def measure(run: Run) -> list[Row]:
    if chromium() is None or not is_fresh():
        print("NO CHROMIUM OR NO PAGE: `make machine` gets both.", file=sys.stderr)
        return []
    return [*_soon(run), *_smooth(run), *_much(run)]


@contextmanager
def _opened(daemon: BenchDaemon) -> Iterator[Page]:
    """The page of a daemon, logged in."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=_FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900}, bypass_csp=True)
        page.goto(daemon.cli("open", "--print").stdout.strip())
        page.get_by_role("heading", name="Now").wait_for()
        yield page
        browser.close()


def _soon(run: Run) -> list[Row]:
    """From what an agent prints, and from a task that is submitted, to the pixel."""
    samples = run.samples(60)
    daemon = BenchDaemon(run.directory / "soon", {"clock": _CLOCK, "noop": ["true"]}, 4)
    daemon.start()
    try:
        with _opened(daemon) as page:
            task = _post(daemon, "/tasks", daemon.spec("clock"))
            page.locator(".card .last").wait_for()
            page.evaluate(_SEE)
            page.wait_for_function(f"window.ages.length >= {samples}", timeout=600_000)
            printed = page.evaluate("window.ages")
            _post(daemon, f"/tasks/{task['id']}/cancel", {})
            page.locator(".card").wait_for(state="detached")
            page.evaluate("window.ages.length = 0")
            for count in range(1, samples + 1):
                title = f"Task {time.time_ns() // 1_000_000}"
                _post(daemon, "/tasks", {**daemon.spec("noop"), "title": title})
                page.wait_for_function(f"window.ages.length >= {count}")
            changed = page.evaluate("window.ages")
    finally:
        daemon.destroy()
    return [
        _age("a line that an agent prints, to the pixel, p95", printed),
        _age("a task that is submitted, to the pixel, p95", changed),
    ]


def _post(daemon: BenchDaemon, path: str, body: dict[str, Any]) -> Any:
    """A request of its own: a connection that waits for long is closed."""
    with closing(Client(daemon.home.socket)) as client:
        return client.post(path, body)


def _age(figure: str, ages_ms: list[float]) -> Row:
    facts = spread([age / 1000 for age in ages_ms])
    beside = f"p50 {facts['p50_ms']:.0f}, most {facts['max_ms']:.0f} ms"
    return Row(figure, percentile(ages_ms, 95), "ms", _MOST_MS, beside=beside, facts=facts)


def _smooth(run: Run) -> list[Row]:
    """Scrolling through everything while many agents talk."""
    running = 40 if run.quick else 200
    daemon = BenchDaemon(run.directory / "smooth", {"talk": _TALK}, running)
    fill(daemon.home, _PAST)
    daemon.start()
    rows = []
    try:
        with closing(Client(daemon.home.socket)) as client:
            for _ in range(running):
                client.post("/tasks", daemon.spec("talk"))
            daemon.until("running", running, limit_s=600)
        with _opened(daemon) as page:
            page.locator(".card .last", has_text="Line").first.wait_for()
            for name, path in (("Now", "/"), ("Work", "/work")):
                page.goto(page.url.split("/", 3)[0] + "//" + page.url.split("/", 3)[2] + path)
                page.get_by_role("heading", name=name).first.wait_for()
                page.wait_for_timeout(3000)  # what it loads at first is not what is measured
                page.evaluate(_LONG)
                page.mouse.move(700, 500)
                for step in range(run.samples(120)):
                    page.mouse.wheel(0, 600 if step % 40 < 30 else -600)
                    page.wait_for_timeout(80)
                long = page.evaluate("window.long")
                over = [round(ms) for ms in long if ms > _MOST_TASK_MS]
                figure = f"{running} at work, {_PAST:,} past, scrolling {name}: over 100 ms"
                beside = f"longest {max(long, default=0):.0f} ms, {len(long)} over 50 ms"
                rows.append(Row(figure, len(over), "tasks", 0, beside=beside, facts={"over": over}))
    finally:
        daemon.destroy()
    return rows


def _much(run: Run) -> list[Row]:
    """Much output, from one end to the other."""
    lines = 3_000_000 if run.quick else 12_500_000
    daemon = BenchDaemon(run.directory / "much", {"much": ["seq", "1", str(lines)]}, 1)
    daemon.start()
    try:
        with closing(Client(daemon.home.socket)) as client:
            task = client.post("/tasks", daemon.spec("much"))["id"]
            ended = client.get(f"/tasks/{task}/wait?timeout_s=55")
        login = daemon.cli("open", "--print").stdout.strip()
        before, most, seconds = _scrolled(run.directory / "profile", login, task, lines)
    finally:
        daemon.destroy()
    size = ended["attempts"][0]["output_bytes"]
    figure = f"{size / 1e6:.0f} MB of output scrolled to the end: the tab, all of its process"
    beside = f"{before / 1e6:.0f} MB before; {seconds:.0f} s"
    return [Row(figure, most / 1e6, "MB", _MOST_MB, beside=beside)]


def _scrolled(profile: Path, login: str, task: str, lines: int) -> tuple[int, int, float]:
    """What the tab holds before it is scrolled and at most, and how long that takes.

    Nobody is connected with the browser meanwhile: for a debugger a tab keeps all that it reads.
    """
    flags = [*_FLAGS, "--headless=new", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    command = [str(chromium()), *flags, "--window-size=1440,900", "about:blank"]
    browser = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not (told := profile / "DevToolsActivePort").exists():
            time.sleep(0.1)
        address = f"http://127.0.0.1:{told.read_text().splitlines()[0]}"
        with sync_playwright() as playwright:
            page = playwright.chromium.connect_over_cdp(address).contexts[0].pages[0]
            page.goto(login)
            page.get_by_role("heading", name="Now").wait_for()
            page.goto(page.url.rstrip("/") + f"/tasks/{task}/output")
            page.get_by_role("log", name="Output").wait_for()
            page.evaluate(_SCROLL, str(lines))
        tab, begun = _renderer(), time.monotonic()
        before = most = tab.memory_full_info().uss
        while not any(one["title"] == "done" for one in _pages(address)):
            time.sleep(0.2)
            most = max(most, tab.memory_full_info().uss)
        return before, most, time.monotonic() - begun
    finally:
        browser.terminate()
        browser.wait()


def _pages(address: str) -> Any:
    with urllib.request.urlopen(f"{address}/json/list") as answer:
        return json.load(answer)


def _renderer() -> psutil.Process:
    """The process of the tab: of Chromium's renderers below this one, the one that is largest."""
    found = [
        process
        for process in psutil.Process().children(recursive=True)
        if "--type=renderer" in process.cmdline()
    ]
    return max(found, key=lambda process: process.memory_info().rss)
