"""The bridge that puts each JSON document of a command's output on one line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.agents.bridges.json_lines import joined

BRIDGE = [sys.executable, "-I", "-m", "kapelle.agents.bridges.json_lines"]
values = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def bridged(script: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [*BRIDGE, sys.executable, "-I", "-S", "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, timeout=30, input=b"given")


@given(
    documents=st.lists(st.dictionaries(st.text(), values), max_size=3),
    indent=st.sampled_from([None, 1, 2, "\t"]),
)
def test_any_documents_come_out_one_a_line(
    documents: list[object], indent: int | str | None
) -> None:
    printed = [json.dumps(document, indent=indent).encode() for document in documents]
    lines = b"\n".join(printed).split(b"\n") if printed else []
    assert [json.loads(line) for line in joined(lines)] == documents


@pytest.mark.parametrize("indent", [1, 2, 4, "\t"])
def test_a_document_over_many_lines_is_one(indent: int | str) -> None:
    document = {"a": [{"b": "} ] {"}, {}, []], "text": 'say "{"\\', "n": 12345678901234567890}
    lines = json.dumps([document], indent=indent).encode().split(b"\n")
    assert [json.loads(line) for line in joined(lines)] == [[document]]
    crlf = json.dumps(document, indent=indent).encode().replace(b"\n", b"\r\n").split(b"\n")
    assert [json.loads(line) for line in joined(crlf)] == [document]


def test_everything_else_stays_as_it_is() -> None:
    lines = [b"Loading {", b"[INFO] x {", b'{"a": 1}', b"", b"  { indented", b"{not json}", b"\xff"]
    assert list(joined(lines)) == lines


def test_a_document_that_never_ends_holds_nothing_back() -> None:
    assert list(joined([b"{", b'{"a": 1}', b'{"b": 2}'])) == [b"{", b'{"a": 1}', b'{"b": 2}']
    assert list(joined([b"{", b'  "a": [1'])) == [b"{", b'  "a": [1']
    assert list(joined([b"{", b'  "a": [1,', b"2"], largest=5)) == [b"{", b'  "a": [1,', b"2"]


def test_a_line_comes_as_soon_as_it_is_printed() -> None:
    script = "print('{\"a\": 1}', flush=True); import time; time.sleep(60)"
    process = subprocess.Popen([*BRIDGE, sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b'{"a": 1}\n'
    finally:
        process.terminate()
        process.communicate()


def test_streams_arguments_and_exit_code_pass_through() -> None:
    script = "import sys; print(sys.argv[1:], sys.stdin.read()); sys.stderr.write('e'); sys.exit(7)"
    done = bridged(script, "--help", "-", "")
    assert (done.stdout, done.stderr) == (b"['--help', '-', ''] given\n", b"e")
    assert done.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_signal_that_ended_the_program_ends_the_bridge(number: signal.Signals) -> None:
    done = bridged(f"import os; print('last', flush=True); os.kill(os.getpid(), {number})")
    assert (done.returncode, done.stdout) == (-number, b"last\n")


def test_signals_reach_the_program(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('told'), sys.exit(3)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    process = subprocess.Popen([*BRIDGE, sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert (output, process.returncode) == (b"told\n", 3)


def test_the_end_does_not_wait_for_what_the_program_left_behind() -> None:
    script = (
        "import os, time\n"
        "pid = os.fork()\n"
        "print(pid, flush=True) if pid else (os.close(2), time.sleep(60))\n"
    )
    before = time.monotonic()
    command = [*BRIDGE, sys.executable, "-I", "-S", "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    left = int(process.stdout.readline())
    try:
        assert process.wait(timeout=30) == 0
        assert time.monotonic() - before < 30
    finally:
        os.kill(left, signal.SIGKILL)
        process.stdout.close()


def test_a_program_that_is_not_there_is_said_as_a_shell_would() -> None:
    done = subprocess.run([*BRIDGE, "/no/such/program"], capture_output=True)
    assert (done.returncode, b"No such file" in done.stderr) == (127, True)
