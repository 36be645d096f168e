"""The library brings only what it needs."""

import subprocess
import sys

NEEDED = "from kapelle import Agent, Budget, CliAgent, MockAgent, Orchestrator, Request, worktree"
OF_THE_DAEMON = ("sqlalchemy", "alembic", "starlette", "uvicorn", "click", "kapelle.store")


def _modules(statement: str) -> set[str]:
    program = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_the_library_loads_nothing_of_the_daemon() -> None:
    loaded = _modules(NEEDED)
    assert "kapelle.library.orchestrator" in loaded
    assert loaded.isdisjoint(OF_THE_DAEMON)


def test_importing_kapelle_alone_loads_nothing_else() -> None:
    assert {name for name in _modules("import kapelle") if name.startswith("kapelle")} == {
        "kapelle"
    }
