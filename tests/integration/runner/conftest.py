import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kapelle.runner import process_tree
from kapelle.runner.runner import Runner

from .harness import processes_of


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    limit = time.monotonic() + 3
    while (left := processes_of(tmp_path)) and time.monotonic() < limit:
        time.sleep(0.02)
    descriptions = [repr(process) for process in left]
    for process in left:
        process.kill()
    root = process_tree.find_root(tmp_path / "home")
    leaves = [] if root is None else [leaf.name for leaf in root.glob("process-*")]
    if root is not None:
        process_tree.sweep(root)
        with contextlib.suppress(FileNotFoundError):
            root.rmdir()
    assert descriptions == []
    assert leaves == []


@pytest.fixture(params=["cgroup", "no_cgroup"])
async def runner(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Runner]:
    """A runner that was started, with and without a cgroup."""
    use_cgroup = request.param == "cgroup"
    if use_cgroup and process_tree.find_root(tmp_path / "home") is None:
        pytest.skip("there is no writable cgroup v2")
    runner = Runner(tmp_path / "home", use_cgroup=use_cgroup)
    await runner.start()
    yield runner
    await runner.close()


@pytest.fixture
async def any_runner(tmp_path: Path) -> AsyncIterator[Runner]:
    """A runner with what the system offers, for tests in which that makes no difference."""
    runner = Runner(tmp_path / "home")
    await runner.start()
    yield runner
    await runner.close()
