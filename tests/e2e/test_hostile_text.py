"""Hostile text that an agent says, asks or reports steers no terminal, whatever the command."""

from pathlib import Path

from tests.e2e.support.ensembles import rule, with_playbook
from tests.e2e.support.instance import Instance
from tests.e2e.support.terminal import Terminal

# Clipboard, cleared screen, title, link, carriage return, C1 controls, right-to-left override.
_HOSTILE = (
    "h\x1b]52;c;ZXZpbA==\x07o\x1b[2J\x1b[Hs\x1b]0;t\x07t\x1b]8;;x\x07i\x9b31ml\re \u202egnp.exe"
)
_FORBIDDEN = ("\x1b", "\x07", "\x9b", "\r", "\u202e", "\x9d")

_PLAY = (
    rule("Ask", {"say": _HOSTILE}, {"ask": _HOSTILE})
    + rule("Fail", {"print": _HOSTILE}, {"stderr": _HOSTILE}, {"fail": _HOSTILE})
    + rule("Work", {"write": "a.txt", "content": _HOSTILE}, {"result": _HOSTILE})
)


def test_no_command_prints_control_codes_of_an_agent(kapelle: Instance, repository: Path) -> None:
    with_playbook(kapelle, _PLAY)
    asks = kapelle.submit("Ask", repository, agent="rehearsal")
    fails = kapelle.submit("Fail", repository, agent="rehearsal")
    works = kapelle.submit("Work", repository, agent="rehearsal")
    kapelle.wait_for_status(asks, "waiting")
    kapelle.wait(fails)
    kapelle.wait(works)
    commands = [
        ("list", "--all"),
        ("questions",),
        ("report",),
        ("usage",),
        ("events",),
        ("search", "exe"),
        ("agents",),
        ("learnings", "export"),
        ("merge", works, "--preview"),
        ("diff", works),
    ]
    for task in (asks, fails, works):
        commands += [("status", task), ("logs", task), ("wait", task, "--timeout", "1")]
    for command in commands:
        done = kapelle.cli(*command, cwd=repository)
        printed = done.stdout + done.stderr
        assert not [mark for mark in _FORBIDDEN if mark in printed], (command, printed)
    assert "gnp.exe" in kapelle.cli("report", cwd=repository).stdout


def test_raw_output_steers_no_terminal(kapelle: Instance, repository: Path) -> None:
    with_playbook(kapelle, _PLAY)
    task = kapelle.submit("Fail", repository, agent="rehearsal")
    kapelle.wait(task)
    whole = kapelle.cli("logs", task, "--raw", "--stream", "err", cwd=repository).stdout
    assert "\x1b" in whole
    terminal = Terminal(kapelle, "logs", task, "--raw", "--stream", "err")
    try:
        assert terminal.finish() == 0
        assert "gnp.exe" in terminal.shown
        # The terminal itself turns each newline into \r\n.
        shown = terminal.shown.replace("\r\n", "\n")
        assert not [mark for mark in _FORBIDDEN if mark in shown], shown
    finally:
        terminal.close()
