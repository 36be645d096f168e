"""Pictures of the page for the documents, made of the demo and, for what it does not show, of the
stage of the tests: `python docs/screenshots.py`."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.e2e.support.instance import Instance  # noqa: E402
from tests.e2e.support.page_stage import stage  # noqa: E402
from tests.machine import chromium  # noqa: E402

PICTURES = ROOT / "docs" / "images"
LARGEST = 150_000
LOOKS = {"now": "light", "team": "dark", "loop": "light", "task": "light", "graph": "dark"}
STAGED = {"workflow": "light", "tracks": "dark", "debate": "light", "batch": "dark"}


def perform(place: str) -> dict[str, Any]:
    """The demo, whose daemon goes on."""
    command = [sys.executable, "-m", "kapelle", "demo", "--keep", "--json", "--dir", place]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def take(page: Page, address: str) -> None:
    origin = re.sub(r"/login.*", "", address)
    page.goto(address)
    page.wait_for_selector(".results")
    listed = page.request.get(f"{origin}/api/v1/work?limit=100").json()["work"]
    runs = {one["pattern"]: f"/runs/{one['id']}" for one in listed if "pattern" in one}
    retried = next(one["id"] for one in listed if len(one.get("attempts", ())) > 1)
    views = {"now": "/", **runs, "task": f"/tasks/{retried}", "graph": "/work?view=graph"}
    for name, theme in LOOKS.items():
        look(page, name, theme, origin + views[name])


def take_staged(page: Page, root: Path) -> None:
    kapelle = Instance(root / "home", KAPELLE_LIMITS__MAX_ATTEMPTS="12")
    kapelle.start()
    try:
        ids = stage(kapelle, root)
        address = kapelle.cli("open", "--print").stdout.strip()
        page.goto(address)
        page.wait_for_selector(".results")
        for name, theme in STAGED.items():
            look(page, name, theme, re.sub(r"/login.*", "", address) + f"/runs/{ids[name]}")
    finally:
        kapelle.destroy()


def look(page: Page, name: str, theme: str, address: str) -> None:
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.goto(address)
    page.wait_for_selector("main .panel, main .results, main .tx")
    page.wait_for_timeout(1_000)
    file = PICTURES / f"{name}.png"
    page.screenshot(path=file)
    assert file.stat().st_size <= LARGEST, f"{file} is larger than {LARGEST:,} bytes"


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kapelle-pictures-") as root, sync_playwright() as play:
        place = f"{root}/demo"
        try:
            address = perform(place)["page"]
            browser = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            page = browser.new_page(reduced_motion="reduce")
            page.set_viewport_size({"width": 1280, "height": 800})
            take(page, address)
            take_staged(page, Path(root))
            browser.close()
        finally:
            stop = [sys.executable, "-m", "kapelle", "stop", "--agents"]
            subprocess.run(stop, env={**os.environ, "KAPELLE_HOME": f"{place}/home"}, check=False)


if __name__ == "__main__":
    main()
