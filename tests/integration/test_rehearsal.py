"""The player as a real process: every documented step, its sources, and its refusals."""

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from kapelle.agents.adapters.rehearsal import RehearsalAgent
from kapelle.agents.base import AgentRequest, AgentVerdict, Summary
from kapelle.agents.bridges.rehearsal import STEPS
from kapelle.agents.failures import classify
from kapelle.agents.summary import summarise
from kapelle.domain.failures import FailureClass
from kapelle.domain.task import Exit, Usage
from kapelle.settings import AgentSettings

PAGE = (Path(__file__).parents[2] / "docs" / "rehearsal.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^### (\w+)\n.*?^```toml\n(.*?)^```\n\n→ (.+?)$", PAGE, re.M | re.S)


class Part:
    """One part, played in a workspace of its own."""

    def __init__(self, workspace: Path, prompt: str, attempt: int = 1, **more: str) -> None:
        settings = AgentSettings(playbook=more.get("playbook"))
        agent = RehearsalAgent("rehearsal", settings)
        request = AgentRequest(
            prompt,
            workspace,
            workspace / "prompt",
            settings,
            attempt_number=attempt,
            session_id=more.get("session_id"),
        )
        self.command = agent.command(request)
        self._agent = agent

    def start(self) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(self.command.argv, stdin=pipe, stdout=pipe, stderr=pipe)
        assert process.stdin
        process.stdin.write(self.command.stdin or b"")
        process.stdin.close()
        process.stdin = None
        return process

    def play(self) -> tuple[AgentVerdict, Summary, bytes]:
        with self.start() as process:
            output, self.stderr = process.communicate(timeout=30)
        self.code = process.returncode
        exit = Exit(kind="exited", code=self.code)
        if self.code < 0:
            exit = Exit(kind="signaled", signal=-self.code)
        summary = summarise(self._agent, output.decode("utf-8", "replace").split("\n"))
        return self._agent.judge(summary, exit, summary.tail), summary, output


def fenced(steps: str) -> str:
    return f"Please do this:\n```rehearsal\n{steps}\n```\nThank you."


def test_every_step_is_documented() -> None:
    assert sorted(step for step, _, _ in EXAMPLES) == sorted(STEPS)


@pytest.mark.parametrize(("step", "example", "outcome"), EXAMPLES, ids=lambda value: value[:10])
def test_every_example_does_what_the_page_says(
    tmp_path: Path, step: str, example: str, outcome: str
) -> None:
    part = Part(tmp_path, fenced(example))
    if outcome == "hangs":
        assert_hangs(part)
        return
    verdict, summary, _ = part.play()
    match outcome.split():
        case ["success"]:
            assert verdict.success
        case ["failure"]:
            assert not verdict.success
            assert verdict.question is None
        case ["waiting", "for", "input"]:
            assert verdict.question
        case ["waiting", "for", "rate_limit"]:
            failure = classify(summary, Exit(kind="exited", code=part.code or 0), "")
            assert failure.kind is FailureClass.RATE_LIMIT
        case ["killed", "by", name]:
            assert part.code == -signal.Signals[name]
        case _:
            pytest.fail(f"the page promises {outcome!r}")


def assert_hangs(part: Part) -> None:
    with part.start() as process:
        status = Path(f"/proc/{process.pid}/status")
        while not _ignored(status) >> signal.SIGTERM - 1 & 1:
            time.sleep(0.02)
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.kill()


def _ignored(status: Path) -> int:
    """The signals that a process ignores or handles, as the bits of a number."""
    found = re.findall(r"^Sig(?:Ign|Cgt):\s*(\w+)", status.read_text(encoding="ascii"), re.M)
    return int(found[0], 16) | int(found[1], 16)


def test_the_documented_playbook_mends_its_work(tmp_path: Path) -> None:
    book = re.search(r"^```toml\n(\[\[rule\]\].*?)^```", PAGE, re.M | re.S)
    assert book
    (tmp_path / ".kapelle").mkdir()
    (tmp_path / ".kapelle" / "playbook.toml").write_text(book[1], encoding="utf-8")
    first, _, _ = Part(tmp_path, "Write a Greeting").play()
    assert first.reason == "I forgot how to greet."
    second, _, _ = Part(tmp_path, "Write a Greeting", attempt=2).play()
    assert second.result == "Wrote greeting.txt."
    assert (tmp_path / "greeting.txt").read_text(encoding="utf-8") == "hello\n"
    assert Part(tmp_path, "Sing").play()[0].result == "Nothing to do."


def test_without_a_playbook_nothing_is_changed(tmp_path: Path) -> None:
    verdict, summary, _ = Part(tmp_path, "\n Fix the tests\nnow").play()
    assert verdict.success
    assert "Fix the tests" in summary.tail
    assert list(tmp_path.iterdir()) == []


def test_the_prompt_counts_more_than_the_setting_than_the_workspace(tmp_path: Path) -> None:
    (tmp_path / ".kapelle").mkdir()
    for name in (".kapelle/playbook.toml", "set.toml"):
        (tmp_path / name).write_text(f'[[rule]]\ndo = [{{result = "{name}"}}]', encoding="utf-8")
    assert Part(tmp_path, "x").play()[0].result == ".kapelle/playbook.toml"
    assert Part(tmp_path, "x", playbook="set.toml").play()[0].result == "set.toml"
    prompt = fenced('[[do]]\nresult = "prompt"')
    assert Part(tmp_path, prompt, playbook=str(tmp_path / "set.toml")).play()[0].result == "prompt"


def test_rules_in_a_prompt_do_not_match_themselves(tmp_path: Path) -> None:
    rules = '[[rule]]\nmatch = "violin"\ndo = [{result = "no"}]\n[[rule]]\ndo = [{result = "yes"}]'
    assert Part(tmp_path, fenced(rules)).play()[0].result == "yes"
    assert Part(tmp_path, "violin\n" + fenced(rules)).play()[0].result == "no"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[do]]\nwrte = "a"', ["step 1", "did you mean 'write'"]),
        ('[[do]]\nsay = "a"\n[[do]]\nsay = 3', ["step 2", "wrong type"]),
        ('[[do]]\nsay = "a"\nloud = true', ["no option 'loud'"]),
        ("[[do]]\n", ["step 1"]),
        ("do = 3", ["not a list"]),
        ("[[do]\n", ["not valid TOML", "line 1"]),
        ("", ["[[rule]]"]),
        ('[[rule]]\nwhen = "a"', ["not when"]),
        ('[[rule]]\nmatch = "("', ["regular expression"]),
        ('[[rule]]\nmatch = "zzz"\n', ["no rule of the prompt matches", "attempt 1"]),
        ('[[rule]]\nattempt = "1"\n', ["attempt is not a number"]),
        ("[[rule]]\nattempt = [2, 3]\n", ["no rule"]),
        ('[[do]]\nwrite = "../out.txt"', ["out of the workspace"]),
        ('[[do]]\nwrite = "/tmp/out.txt"', ["out of the workspace"]),
        ('[[do]]\ndelete = "."', ["out of the workspace"]),
        ('[[do]]\ndelete = "absent"', ["absent"]),
        ('[[do]]\ncrash = "LOUDLY"', ["no signal"]),
        ("[[do]]\nusage = {inputs = 3}", ["not inputs"]),
        ("[[do]]\nsleep = -1", ["cannot continue"]),
        ('[[do]]\nrun = "exit 7"', ["exit 7", "code 7"]),
    ],
)
def test_what_cannot_be_played_fails_and_says_why(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    part = Part(workspace, fenced(text))
    verdict, _, _ = part.play()
    assert (part.code, verdict.success, verdict.claimed) == (1, False, "failure")
    for word in words:
        assert word in (verdict.reason or "")
    assert part.stderr == b""


def test_a_mistake_anywhere_stops_the_part_before_it_starts(tmp_path: Path) -> None:
    Part(tmp_path, fenced('[[do]]\nwrite = "a"\n[[do]]\nwrte = "b"')).play()
    assert list(tmp_path.iterdir()) == []


def test_a_link_does_not_lead_out_of_the_workspace(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "link").symlink_to(tmp_path)
    verdict, _, _ = Part(workspace, fenced('[[do]]\nwrite = "link/out.txt"')).play()
    assert not verdict.success
    assert not (tmp_path / "out.txt").exists()


def test_a_missing_playbook_is_named(tmp_path: Path) -> None:
    verdict, _, _ = Part(tmp_path, "x", playbook="absent.toml").play()
    assert "absent.toml" in (verdict.reason or "")


def test_events_survive_raw_output_without_a_newline(tmp_path: Path) -> None:
    steps = '[[do]]\nprint = "50%"\n[[do]]\nrun = "printf raw"\n[[do]]\nresult = "done"'
    verdict, summary, _ = Part(tmp_path, fenced(steps)).play()
    assert verdict.result == "done"
    assert summary.tail == "50%raw"


@pytest.mark.parametrize(
    ("size", "line"), [(0, 80), (1, 80), (5_000_000, 80), (3_000_001, 2_500_000)]
)
def test_a_flood_is_exact(tmp_path: Path, size: int, line: int) -> None:
    steps = f"[[do]]\nflood = {size}\nline = {line}\n[[do]]\nexit = 5"
    part = Part(tmp_path, fenced(steps))
    _, _, output = part.play()
    assert (len(output), part.code) == (size, 5)
    lines = output.splitlines(keepends=True)
    assert all(len(text) == line for text in lines[:-1])


def test_what_is_reported_is_counted(tmp_path: Path) -> None:
    steps = """
    do = [
      { session = "s1" },
      { usage = { input = 10, output = 2, cost = 0.5 } },
      { usage = { input = 1, cached = 4, turns = 1 } },
      { tool = "Read", input = { path = "a", text = "b" }, result = "text" },
      { stderr = "careful" },
    ]"""
    part = Part(tmp_path, fenced(steps))
    _, summary, output = part.play()
    assert summary.session_id == "s1"
    assert summary.usage == Usage(
        input_tokens=11, output_tokens=2, cached_tokens=4, turns=1, cost_usd=0.5
    )
    assert b'{"kind": "tool_call", "name": "Read", "data": {"path": "a", "text": "b"}}' in output
    assert part.stderr == b"careful\n"


def test_a_resumed_part_keeps_its_session(tmp_path: Path) -> None:
    _, summary, _ = Part(tmp_path, "Go on", attempt=2, session_id="s1").play()
    assert summary.session_id == "s1"


def test_a_rate_limit_says_when_it_ends(tmp_path: Path) -> None:
    _, summary, _ = Part(tmp_path, fenced("[[do]]\nrate_limit = {reset_in_s = 30}")).play()
    failure = classify(summary, Exit(kind="exited", code=1), "")
    assert failure.retry_at
    assert 25 < failure.retry_at.timestamp() - time.time() < 31


def test_a_detached_child_outlives_the_part(tmp_path: Path) -> None:
    child = "sleep 0.5; echo still here > late.txt"
    steps = f'[[do]]\nspawn = "{child}"\ndetached = true'
    assert Part(tmp_path, fenced(steps)).play()[0].success
    assert not (tmp_path / "late.txt").exists()
    deadline = time.monotonic() + 10
    while not (tmp_path / "late.txt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "late.txt").exists()


def test_a_child_may_hold_the_output_open(tmp_path: Path) -> None:
    steps = '[[do]]\nspawn = "sleep 0.5; echo late"\noutput = true'
    verdict, summary, _ = Part(tmp_path, fenced(steps)).play()
    assert verdict.success
    assert summary.tail == "late"


def test_an_output_that_nobody_reads_ends_the_part(tmp_path: Path) -> None:
    process = Part(tmp_path, fenced("[[do]]\nflood = 10000000")).start()
    assert process.stdout
    process.stdout.close()
    assert process.wait(10) == 1
    assert process.stderr
    assert process.stderr.read() == b""
    process.stderr.close()
