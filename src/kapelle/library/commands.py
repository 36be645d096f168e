"""Checks and scores: commands in a directory, with the end of what they printed."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from kapelle.domain.specs import CheckSpec
from kapelle.domain.task import CheckResult
from kapelle.engine.environment import passed
from kapelle.library.errand import Errand
from kapelle.library.ledger import Ledger
from kapelle.library.process import Ended, Program, execute
from kapelle.library.stop import Stop
from kapelle.patterns.results import Scored, read_score
from kapelle.runner.output import tail_text
from kapelle.runner.shim.files import ERR, OUT

_SHOWN = 20_000
_GRACE_S = 5.0
_ENDS_WITHIN_S = 20.0


class Commands:
    """Runs shell commands within what is left of the time."""

    def __init__(self, ledger: Ledger, env: Mapping[str, str]) -> None:
        self._ledger = ledger
        self._env = dict(env)

    async def check(self, spec: CheckSpec, cwd: Path, env: Mapping[str, str]) -> CheckResult:
        began = time.monotonic()
        ended, output, _ = await self._run(spec.command or "", cwd, env, spec.timeout_s)
        good = _succeeded(ended)
        text = output if good else f"{output}\n[{_ending(ended, spec.timeout_s)}]".lstrip()
        seconds = round(time.monotonic() - began, 3)
        return CheckResult(name=spec.label, passed=good, output=text, duration_s=seconds)

    async def score(
        self, command: str, cwd: Path, env: Mapping[str, str], timeout_s: float
    ) -> Scored:
        ended, output, printed = await self._run(command, cwd, env, timeout_s)
        if not _succeeded(ended):
            problem = f"the score command ended with {_ending(ended, timeout_s)}"
            return Scored(value=None, output=output, problem=problem)
        return read_score(printed, output)

    async def _run(
        self, command: str, cwd: Path, env: Mapping[str, str], timeout_s: float
    ) -> tuple[Ended, str, str]:
        """How it ended, all that it printed, and what of that went to stdout, each by its end."""
        left = self._ledger.left_s
        limit_s = timeout_s if left is None else min(timeout_s, left)
        stop = Stop()

        def run() -> tuple[Ended, str, str]:
            with TemporaryDirectory(prefix="kapelle-", ignore_cleanup_errors=True) as name:
                directory = Path(name).resolve()
                program = Program(
                    argv=["/bin/sh", "-c", command],
                    cwd=cwd,
                    env={**passed(os.environ, ()), **self._env, **env},
                    directory=directory,
                    timeout_s=limit_s,
                    grace_s=_GRACE_S,
                )
                ended = execute(program, stop)
                texts = [tail_text(directory / log, _SHOWN) for log in (OUT, ERR)]
                both = "\n".join(text.rstrip("\n") for text in texts if text.strip())
                return ended, both, texts[0]

        found = await Errand(run, stop, _ENDS_WITHIN_S).run(limit_s + _ENDS_WITHIN_S)
        if found[0].ended_by is not None:
            # What was cut short because the run's time is over says nothing about the work.
            self._ledger.require()
        return found


def _succeeded(ended: Ended) -> bool:
    return ended.exit.kind == "exited" and ended.exit.code == 0 and ended.ended_by is None


def _ending(ended: Ended, timeout_s: float) -> str:
    if ended.ended_by == "timeout":
        return f"a time-out after {timeout_s:g} s"
    if ended.exit.kind == "signaled":
        return f"signal {ended.exit.signal}"
    if ended.exit.code is not None:
        return f"exit code {ended.exit.code}"
    return ended.problem or "no end of its own"
