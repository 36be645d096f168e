"""A new user installs the wheel and follows the first pages word by word."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.support.page_commands import ROOT, blocks_of, run_blocks
from tests.e2e.support.repositories import make_repository
from tests.e2e.support.stub_agents import install

BIN = Path(sys.executable).parent
# uv and pipx fetch dependencies from PyPI: the only tests that talk to other machines.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, testrun_uid: str, worker_id: str) -> Path:
    """The wheel of this checkout, built once for all workers."""
    if worker_id == "master":
        return _build(tmp_path_factory.mktemp("dist"))
    place = tmp_path_factory.getbasetemp().parent / f"dist-{testrun_uid[:12]}"
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return next(place.glob("*.whl"), None) or _build(place)


def _build(place: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place],
        cwd=ROOT, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    (path,) = place.glob("*.whl")
    return path


def test_the_wheel_carries_the_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        shell = opened.read("kapelle/page/index.html").decode()
    assets = [name for name in names if name.startswith("kapelle/page/assets/")]
    plain = [name for name in assets if not name.endswith(".gz")]
    first = [name.removeprefix("kapelle/page/") for name in plain if "/index-" in name]
    assert {Path(name).suffix for name in plain} == {".js", ".css"}
    assert {f"{name}.gz" for name in plain} == set(assets) - set(plain)
    assert all(name in shell for name in first)
    assert not [name for name in names if "node_modules" in name or name.endswith(".tsx")]


def test_the_description_on_pypi_has_no_relative_links(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        description = opened.read(name).decode().partition("\n\n")[2]
    targets = re.findall(r"\]\(([^)\s]+)\)", description)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


@pytest.fixture
def new_user(tmp_path: Path, wheel: Path) -> Iterator[dict[str, str]]:
    """The environment of somebody with a fresh home, git, uv, pipx and an agent."""
    home, programs = tmp_path / "home", tmp_path / "programs"
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".gitconfig").write_text("[user]\nname = New User\nemail = new@example.com\n")
    install(programs, "codex")
    for name in ("uv", "pipx"):
        (programs / name).symlink_to(BIN / name)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    env = {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PATH": f"{home}/.local/bin:{programs}:/usr/local/bin:/usr/bin:/bin",
        "KAPELLE_LIMITS__MAX_LOAD_PER_CORE": "0",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        "UV_FIND_LINKS": str(wheel.parent),
        "UV_CACHE_DIR": str(caches / "uv"),
        "UV_PYTHON": sys.executable,
        "PIPX_DEFAULT_PYTHON": sys.executable,
        "PIP_FIND_LINKS": str(wheel.parent),
        "PIP_CACHE_DIR": str(caches / "pip"),
    }
    trusted = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "HTTPS_PROXY", "NO_PROXY")
    env |= {name: os.environ[name] for name in trusted if name in os.environ}
    yield env
    kapelle = home / ".local" / "bin" / "kapelle"
    if kapelle.exists():
        subprocess.run([kapelle, "stop", "--agents"], env=env, capture_output=True, check=False)
    assert _processes_below(home) == []


def _processes_below(home: Path) -> list[str]:
    lines = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    return [line for line in lines if f"{home}/" in line]


def _require_index(env: dict[str, str]) -> None:
    """Skip where PyPI cannot be reached, as on a train."""
    command = [str(BIN / "uv"), "pip", "compile", "--no-header", "-"]
    done = subprocess.run(
        command, env=env, input="cronsim", capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"PyPI cannot be reached: {done.stderr.strip()[-200:]}")


def test_the_quickstart_works_word_by_word(new_user: dict[str, str], tmp_path: Path) -> None:
    _require_index(new_user)
    blocks = blocks_of("docs/quickstart.md")
    assert len(blocks) >= 9
    run_blocks(blocks, tmp_path, new_user)
    log = subprocess.run(
        ["git", "log", "--format=%an: %s"], cwd=tmp_path / "calculator", env=new_user,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    # The last merge was undone.
    assert log.stdout == "New User: Add a calculator\n"


def test_pipx_installs_the_wheel(new_user: dict[str, str], tmp_path: Path) -> None:
    _require_index(new_user)
    repository = make_repository(tmp_path / "repository")
    for command in (
        "pipx install kapelle",
        "kapelle --version",
        "kapelle run Hello --agent rehearsal --follow",
        "kapelle stop --agents",
        "pipx uninstall kapelle",
    ):
        done = subprocess.run(
            command.split(), cwd=repository, env=new_user, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert shutil.which("kapelle", path=new_user["PATH"]) is None


def test_the_first_task_of_the_readme_works_word_by_word(
    new_user: dict[str, str], tmp_path: Path
) -> None:
    """Its agent is a stand-in for the real program, which edits a file."""
    _require_index(new_user)
    program = tmp_path / "programs" / "codex"
    script = program.read_text(encoding="utf-8")
    program.write_text(script.replace("cat > /dev/null", "cat > /dev/null; touch fixed"))
    make_repository(tmp_path / "your-repository", {"Makefile": "test:\n\ttest -e fixed\n"})
    blocks = blocks_of("README.md")
    assert "kapelle run" in "".join(block.commands for block in blocks)
    run_blocks(blocks, tmp_path, new_user)
    assert (tmp_path / "your-repository" / "fixed").exists()
