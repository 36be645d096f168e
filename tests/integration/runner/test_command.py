"""Short commands, of which nothing outlives the process that started them."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
from tests.e2e.support.staging import until

_RUN = """
import sys
from pathlib import Path
from kapelle.runner.command import Command, RunningCommand
argv = ["sh", "-c", "echo $$ > pid; cat pipe"]
RunningCommand(Command(argv, {"PATH": "/usr/bin:/bin"}, Path(sys.argv[1]), 60, 100)).run()
"""


def test_a_command_that_hangs_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    subprocess.run(["mkfifo", tmp_path / "pipe"], check=True)
    starter = subprocess.Popen([sys.executable, "-c", _RUN, str(tmp_path)])
    until(lambda: len(psutil.Process(starter.pid).children()) == 2, "the command and its guard")
    left = psutil.Process(starter.pid).children(recursive=True)
    assert int((tmp_path / "pid").read_text()) in [process.pid for process in left]
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    _, alive = psutil.wait_procs(left, timeout=10)
    assert alive == []
