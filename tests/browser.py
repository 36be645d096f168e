"""What the tests of the page need besides pip: a built page and Debian's Chromium.

`python -m tests.browser` gets both, and says so when it cannot.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).parents[1] / "web"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Where a Chromium is, if there is one."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def is_fresh() -> bool:
    """Whether the page is built of what is in the checkout."""
    built = WEB / "dist" / "index.html"
    sources = [*WEB.glob("src/**/*"), *WEB.glob("public/*"), *WEB.glob("*.*")]
    sources += [WEB.parent / "docs" / "openapi.json"]
    made = WEB / "src" / "api" / "schema.ts"
    newest = max(path.stat().st_mtime for path in sources if path.is_file() and path != made)
    return built.exists() and built.stat().st_mtime > newest


def main() -> None:
    if not is_fresh():
        subprocess.run([sys.executable, WEB / "build.py"], check=True)
    if chromium() is None and shutil.which("apt-get") and os.geteuid() == 0:
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=False)
    if chromium() is None:
        print("NO CHROMIUM: install it, or the tests of the page are skipped.", file=sys.stderr)


if __name__ == "__main__":
    main()
