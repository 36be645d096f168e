"""What pip installs from a checkout has the page in it."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_wheel_carries_the_page(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT, check=True, capture_output=True, timeout=110,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        shell = opened.read("kapelle/page/index.html").decode()
    assets = [name for name in names if name.startswith("kapelle/page/assets/")]
    plain = [name for name in assets if not name.endswith(".gz")]
    assert {Path(name).suffix for name in plain} == {".js", ".css"}
    assert {f"{name}.gz" for name in plain} == set(assets) - set(plain)
    assert all(f"/{name.removeprefix('kapelle/page/')}" in shell
               for name in plain if "/index-" in name)  # fmt: skip
    assert not [name for name in names if "node_modules" in name or name.endswith(".tsx")]
