"""What tests need of the machine besides pip: a built page, Debian's Chromium, and an engine for
containers that needs no service.

`python -m tests.machine` gets them, and says so when it cannot.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).parents[1] / "web"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_CONTAINERS = {
    "podman": "podman",
    "runc": "runc",
    "busybox": "busybox-static",
    "podman-compose": "podman-compose",
}


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
    if _wanting() and shutil.which("apt-get") and os.geteuid() == 0:
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *_wanting()]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=False)
    for package in _wanting():
        print(f"NO {package}: install it, or tests that need it are skipped.", file=sys.stderr)


def _wanting() -> list[str]:
    """The packages of what is not there."""
    missing = [package for program, package in _CONTAINERS.items() if not shutil.which(program)]
    return missing if chromium() else ["chromium", *missing]


if __name__ == "__main__":
    main()
