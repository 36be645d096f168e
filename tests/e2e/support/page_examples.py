"""The Python examples of a page of the documentation: are they well typed, and what do they say?"""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_DOCS = _ROOT / "docs"
_CACHE = _ROOT / ".mypy_cache" / "examples"


def examples_of(page: str) -> list[str]:
    """The examples of a page, in order."""
    text = (_DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def require_well_typed(examples: Sequence[str], directory: Path) -> None:
    """As somebody checks a program of their own: strict, no configuration, and no plugin. What
    was found out about the package is kept for the next time."""
    paths = [directory / f"example_{number}.py" for number in range(len(examples))]
    for path, example in zip(paths, examples, strict=True):
        path.write_text(example, encoding="utf-8")
    options = ["--strict", "--config-file=", f"--cache-dir={_CACHE}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, paths)],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def require_says(
    example: str, path: Path, said: Sequence[str], *, cwd: Path, env: Mapping[str, str]
) -> None:
    """Run an example as the program of this path; it says these words, and complains of nothing."""
    path.write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for words in said:
        assert words in done.stdout, done.stdout
