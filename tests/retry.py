"""Run pytest, run failed tests once more, alone, and name those that pass then: they are unsteady.

`python -m tests.retry OPTIONS_OF_THE_FIRST_RUN -- OPTIONS_OF_BOTH` returns pytest's exit code.
"""

import json
import subprocess
import sys
from pathlib import Path

_FAILED = Path(".pytest_cache") / "v" / "cache" / "lastfailed"
# Of pytest: all tests were run, and some failed.
_TESTS_FAILED = 1


def main(arguments: list[str]) -> int:
    """Run the tests; return 0 if each test passed, at the latest in the second run."""
    split = arguments.index("--")
    of_first, of_both = arguments[:split], arguments[split + 1 :]
    code = _run_pytest([*of_first, *of_both])
    if code != _TESTS_FAILED:
        return code
    failed = _read_failed()
    print(f"\nRunning the {len(failed)} failed tests once more, alone.\n", flush=True)
    again = ["--last-failed", "--last-failed-no-failures", "none", "-x", "-n", "0"]
    code = _run_pytest([*again, *of_both])
    # The second run ends at the first failure: without one, every failed test has passed.
    unsteady = failed - _read_failed()
    if unsteady:
        _print_unsteady(sorted(unsteady))
    return code


def _run_pytest(options: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *options], check=False).returncode


def _read_failed() -> set[str]:
    """Return the failed tests of the last run, by the cache of pytest."""
    if not _FAILED.exists():
        return set()
    return set(json.loads(_FAILED.read_text(encoding="utf-8")))


def _print_unsteady(names: list[str]) -> None:
    print(f"\n{len(names)} UNSTEADY: failed among the others, passed alone. Each is a defect:")
    for name in names:
        print(f"UNSTEADY {name}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
