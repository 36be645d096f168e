"""A command in a terminal: typed into, resized, and by nobody who lacks its secret."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.runner.harness import SECRET, shell, until

from kapelle.runner.runner import Runner
from kapelle.runner.terminal import is_open, make_input_messages, make_resize_message, send

_SAYS = """
trap 'stty size' WINCH
test -t 0 && test -t 1 && test -t 2 && echo tty of $(stty size)
while :; do
  read -r line || continue  # a signal may interrupt it
  echo "got $line"
  [ "$line" = end ] && exit 3
done
"""


def _type(process_dir: Path, text: str, secret: bytes = SECRET) -> None:
    for kind, data in make_input_messages(text.encode()):
        assert send(process_dir, secret, kind, data)


async def test_it_is_typed_into_and_resized(runner: Runner, tmp_path: Path) -> None:
    process_dir = tmp_path / "p"
    running = asyncio.create_task(runner.execute(shell(process_dir, _SAYS, terminal=(30, 100))))
    log = process_dir / "out.log"

    def shown(text: str) -> bool:
        return log.exists() and text in log.read_text()

    await until(lambda: shown("tty of 30 100") and is_open(process_dir))
    _type(process_dir, "forged\n", b"another secret")
    send(process_dir, SECRET, *make_resize_message(40, 132))
    _type(process_dir, "typed\n")
    await until(lambda: shown("got typed") and shown("40 132"))
    _type(process_dir, "x" * 3000 + "\nend\n")
    ended = await running
    assert (ended.exit.kind, ended.exit.code) == ("exited", 3)
    text = log.read_text()
    assert "got " + "x" * 3000 in text
    assert "forged" not in text
    assert ended.out_bytes == len(log.read_bytes())
    assert ended.err_bytes == 0
    assert not is_open(process_dir)


async def test_what_is_typed_is_shown_at_once_and_secrets_are_not(
    runner: Runner, tmp_path: Path
) -> None:
    process_dir = tmp_path / "p"
    launch = shell(process_dir, "cat", terminal=(24, 80), redact=(b"sesame-open-now",))
    running = asyncio.create_task(runner.execute(launch))
    await until(lambda: is_open(process_dir))
    _type(process_dir, "ses")
    await until(lambda: (process_dir / "out.log").read_bytes() == b"ses")
    _type(process_dir, "ame-open-now\n")
    await until(lambda: (process_dir / "out.log").read_bytes().count(b"\n") == 2)
    runner.stop(process_dir, "enough")
    ended = await running
    assert ended.ended_by == "stop"
    assert b"open-now" not in (process_dir / "out.log").read_bytes()


@pytest.mark.parametrize("script", ["exit 0", "sleep 60 & exit 0"])
async def test_its_end_is_seen(runner: Runner, tmp_path: Path, script: str) -> None:
    ended = await runner.execute(shell(tmp_path / "p", script, terminal=(24, 80)))
    assert (ended.exit.code, ended.ended_by) == (0, None)
