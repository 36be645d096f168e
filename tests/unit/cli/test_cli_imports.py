import os
import subprocess
import sys

import pytest

FORBIDDEN = ["sqlalchemy", "mcp", "alembic", "uvicorn", "starlette", "psycopg"]
HEAVY = ["rich", "pydantic", "tomlkit", "psutil"]
PROBE = """
import sys
from kapelle.cli.main import main
sys.argv = ["kapelle", *sys.argv[1:]]
try:
    main()
finally:
    sys.stderr.write("\\nLOADED " + " ".join(sys.modules))
"""


def loaded_after(*arguments: str) -> set[str]:
    """Modules imported by a command that finds no daemon at the address it is given."""
    environment = {**os.environ, "KAPELLE_URL": "http://127.0.0.1:1", "KAPELLE_TOKEN": "t"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return {name.split(".")[0] for name in done.stderr.rpartition("LOADED ")[2].split()}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["list"],
        ["status", "x"],
        ["status", "run_x"],
        ["run", "x"],
        ["run", "-f", "x"],
        ["runs"],
        ["runs", "tail", "x"],
        ["loop", "x", "--until", "true", "-f"],
        ["pipeline", "x", "y"],
        ["best-of", "x"],
        ["team", "x"],
        ["start", "x"],
    ],
)
def test_the_daemons_libraries_stay_out(arguments: list[str]) -> None:
    loaded = loaded_after(*arguments)
    assert "click" in loaded
    assert not loaded & {*FORBIDDEN, *HEAVY}


@pytest.mark.parametrize("arguments", [["doctor"], ["config", "show"]])
def test_not_even_settings_bring_them_in(arguments: list[str]) -> None:
    assert not loaded_after(*arguments) & set(FORBIDDEN)
