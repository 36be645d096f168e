"""A command runs, its output, status and usage are recorded, and refusals are explained."""

import json
import os
import signal
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kapelle.domain.task import Exit
from kapelle.runner.runner import Runner
from kapelle.runner.shim import files

from .harness import PYTHON, launch, python, shell


async def test_output_and_exit_code(runner: Runner, tmp_path: Path) -> None:
    before = datetime.now(UTC)
    ended = await runner.execute(shell(tmp_path / "run", "echo out; echo wrong >&2; exit 3"))
    assert ended.exit == Exit(kind="exited", code=3)
    assert (tmp_path / "run/out.log").read_bytes() == b"out\n"
    assert (tmp_path / "run/err.log").read_bytes() == b"wrong\n"
    assert (ended.out_bytes, ended.err_bytes, ended.leftovers) == (4, 6, 0)
    assert ended.ended_by is None
    assert ended.detail is None
    assert ended.started_at is not None
    assert before <= ended.started_at <= ended.ended_at <= datetime.now(UTC)


async def test_the_verdict_stays_and_the_command_is_not_repeated(
    any_runner: Runner, tmp_path: Path
) -> None:
    job = shell(tmp_path / "run", "echo ran >> ran")
    first = await any_runner.execute(job)
    assert await any_runner.execute(job) == first
    assert (tmp_path / "ran").read_text() == "ran\n"


async def test_a_signal_is_not_an_exit_code(runner: Runner, tmp_path: Path) -> None:
    ended = await runner.execute(shell(tmp_path / "run", "kill -9 $$"))
    assert ended.exit == Exit(kind="signaled", signal=signal.SIGKILL)


@pytest.mark.parametrize("size", [0, 5, 3_000_000])
async def test_standard_input(any_runner: Runner, tmp_path: Path, size: int) -> None:
    stdin = os.urandom(size)
    ended = await any_runner.execute(launch(tmp_path / "run", ["cat"], stdin=stdin))
    assert ended.exit.code == 0
    assert (tmp_path / "run/out.log").read_bytes() == stdin


async def test_unread_standard_input_does_not_block(any_runner: Runner, tmp_path: Path) -> None:
    ended = await any_runner.execute(launch(tmp_path / "run", ["true"], stdin=b"x" * 2_000_000))
    assert ended.exit.code == 0


async def test_without_standard_input_there_is_dev_null(any_runner: Runner, tmp_path: Path) -> None:
    await any_runner.execute(shell(tmp_path / "run", "readlink /proc/self/fd/0"))
    assert (tmp_path / "run/out.log").read_bytes() == b"/dev/null\n"


async def test_the_environment_is_exactly_what_was_given(
    any_runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS", "secret")
    env = {"NAME": "välue\udcff", "EMPTY": ""}
    await any_runner.execute(launch(tmp_path / "run", ["/usr/bin/env", "-0"], env=env))
    found = (tmp_path / "run/out.log").read_bytes().split(b"\0")
    marker = b"KAPELLE_RUN_DIR=" + os.fsencode(tmp_path / "run")
    assert sorted(found) == sorted([b"", b"NAME=v\xc3\xa4lue\xff", b"EMPTY=", marker])


async def test_nothing_of_ours_is_inherited(any_runner: Runner, tmp_path: Path) -> None:
    script = """
import os, signal
print(sorted(os.listdir("/proc/self/fd"))[:-1], os.getsid(0) == os.getpid(), os.getcwd())
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["SigBlk"], 16), open("/proc/self/oom_score_adj").read().strip())
ours = signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}  # which Python ignores itself
print(sum(int(status["SigIgn"], 16) >> number - 1 & 1 for number in ours))
"""
    await any_runner.execute(python(tmp_path / "run", script, cwd=tmp_path))
    expected = f"['0', '1', '2'] True {tmp_path}\n0 500\n0\n"
    assert (tmp_path / "run/out.log").read_text() == expected


@pytest.mark.parametrize(
    ("argv", "cwd", "detail"),
    [
        (["no-such-command"], None, "cannot run no-such-command: No such file or directory"),
        (["/etc/passwd"], None, "cannot run /etc/passwd: Permission denied"),
        (["true", "x" * 200_000], None, "cannot run true: Argument list too long"),
        (["true", "a\0b"], None, "cannot run true: Invalid argument"),
        (["true"], "/no/such/place", "cannot enter /no/such/place: No such file or directory"),
        ([], None, "cannot be run: there is no command"),
        (["true", "\ud800"], None, "cannot be run: 'utf-8' codec can't encode"),
    ],
)
async def test_what_cannot_be_started_says_why(
    any_runner: Runner, tmp_path: Path, argv: list[str], cwd: str | None, detail: str
) -> None:
    job = launch(tmp_path / "run", argv, cwd=Path(cwd or tmp_path))
    ended = await any_runner.execute(job)
    assert ended.exit == Exit(kind="not_started")
    assert ended.detail is not None
    assert ended.detail.startswith(detail)
    assert ended.started_at is None


async def test_the_directory_is_private_and_holds_no_values(
    any_runner: Runner, tmp_path: Path
) -> None:
    process_dir = tmp_path / "run"
    env = {"PATH": os.environ["PATH"], "TOKEN": "value-of-token"}
    job = shell(process_dir, "sleep 0.1", env=env, stdin=b"secret-input", redact=(b"in-argv",))
    await any_runner.execute(launch(process_dir, [*job.argv, "in-argv"], **_but(job)))
    assert stat.S_IMODE(process_dir.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in process_dir.iterdir()} == {0o600}
    everything = b"".join(file.read_bytes() for file in process_dir.iterdir())
    for value in (b"value-of-token", b"secret-input", b"in-argv"):
        assert value not in everything
    intent = json.loads((process_dir / files.INTENT).read_bytes())
    assert intent["env"] == ["PATH", "TOKEN"]
    names = {file.name for file in process_dir.iterdir()}
    assert names == {"intent.json", "claim", "run.json", "out.log", "err.log", "exit.json"}


def _but(job: object) -> dict[str, object]:
    return {name: value for name, value in vars(job).items() if name not in {"process_dir", "argv"}}


async def test_usage_counts_the_whole_tree(any_runner: Runner, tmp_path: Path) -> None:
    burn = f"{PYTHON} -c 'x = b\"x\" * (80 << 20); sum(range(5_000_000))'"
    ended = await any_runner.execute(shell(tmp_path / "run", f"({burn}) ; true"))
    assert ended.cpu_s > 0.05
    assert 80 << 20 < ended.max_rss_bytes < 200 << 20


async def test_an_unusable_directory_raises(any_runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        await any_runner.execute(shell(tmp_path / "file" / "run", "true"))
    with pytest.raises(ValueError, match="absolute"):
        await any_runner.execute(shell(Path("run"), "true"))
