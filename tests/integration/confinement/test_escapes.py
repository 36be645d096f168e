"""What a confined process can reach: every attempt of `escapes.py` on every rung, as two users."""

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kapelle.agents.base import AgentFiles
from kapelle.engine.processes.confinement import ConfinedPlace, ConfinementPolicy
from kapelle.runner.shim import request
from kapelle.settings.models import ConfineSettings

HERE = Path(__file__).parent
SHIM = Path(request.__file__).parent
PYTHON = Path("/usr/bin/python3")
# No user of any system has this number, as a rule.
ORDINARY_USER = 61999
# Loopback is open by default: agents talk to the daemon and to servers that they start.
OPEN_NETWORK = {"connect to the loopback device", "send a datagram to the loopback device"}
# Inside these seem to work; whether they did is seen outside, among the effects.
JUDGED_OUTSIDE = {
    "write the shared /tmp",
    "swap a link during a write",
    "replace .git, for the next command of the user",
    "write to the user's terminal",
}
# What still works on each rung; docs/sandbox.md lists the same.
OPEN_ON_RUNG = {
    "namespaces": {"change the memory score of another process"},
    "bubblewrap": {"connect to an abstract socket"},
    "landlock": {
        "write settings of the agent with a hook",
        "write a command of the agent",
        "replace the settings of the agent by a rename",
        "move the directory of commands of the agent",
        "change the mode of .ssh",
        "change the mode of .bashrc",
        "change the time of .bashrc",
        "set an extended attribute",
        "read shared memory of another process",
        "use shared memory of System V",
        "list the home of Kapelle",
        "list the user's temporary files",
    },
}
_PLANTED = "a planted command of git ran"
EFFECTS_ON_RUNG = {
    "namespaces": {"memory score"},
    "bubblewrap": set(),
    "landlock": {
        "mode of .ssh",
        "mode of .bashrc",
        "time of .bashrc",
        "commands of the agent",
        "written: .claude/settings.json",
        "written: .claude/commands-old/x.md",
        "written: the user's terminal",
        _PLANTED,
    },
}
# Landlock cannot tell one path of a socket from another, so the filter refuses all Unix sockets.
NOT_ON_RUNG = {
    "namespaces": [],
    "bubblewrap": [],
    "landlock": ["use a Unix socket of one's own"],
}
CLAUDE = AgentFiles(
    state=(".claude",),
    pinned=(".claude/settings.json", ".claude/commands/"),
)

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="the system has no Python")


@pytest.fixture(params=["root", "ordinary"])
def user(request: pytest.FixtureRequest) -> int:
    """The user who runs everything: root, or one without privileges."""
    if os.getuid() != 0:
        if request.param == "root":
            pytest.skip("only root can test what root does")
        return os.getuid()
    return 0 if request.param == "root" else ORDINARY_USER


@pytest.fixture
def place(user: int) -> Iterator[Path]:
    """A directory of that user; not in /tmp, which a confined process does not see."""
    top = "/opt" if os.getuid() == 0 else pwd.getpwuid(user).pw_dir
    directory = Path(tempfile.mkdtemp(prefix="kapelle-escapes-", dir=top))
    for name in ("escapes.py", "scene.py"):
        shutil.copy(HERE / name, directory)
    shutil.copytree(SHIM, directory / "shim", ignore=shutil.ignore_patterns("__pycache__"))
    if os.getuid() == 0:
        os.chown(directory, user, user)
    yield directory
    shutil.rmtree(directory)


def attack(place: Path, user: int, rung: str | None, **settings: Any) -> dict[str, Any]:
    """Build the scene as a user, confine a process in it, and return what it achieved."""
    as_user: dict[str, Any] = {"user": user, "group": user} if os.getuid() == 0 else {}
    if as_user:
        as_user["extra_groups"] = []
    with subprocess.Popen(
        [PYTHON, place / "scene.py", place, rung or "none"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(place / "home"),
            "ONLY": os.environ.get("ONLY", ""),
        },
        **as_user,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        fields = None if rung is None else confinement(facts, user, rung, settings)
        process.stdin.write(json.dumps(fields) + "\n")
        process.stdin.flush()
        result: dict[str, Any] = json.loads(process.stdout.readline())
    assert result["status"] == 0, result["errors"]
    return result


def attack_again(place: Path, user: int, rung: str, **settings: Any) -> dict[str, Any]:
    """Attack again if bubblewrap met a socket that another test removed meanwhile."""
    for _ in range(5):
        try:
            return attack(place, user, rung, **settings)
        except AssertionError as error:
            if "Can't mkdir parents" not in str(error):
                raise
            shutil.rmtree(place / "home")
    return attack(place, user, rung, **settings)


def confinement(
    facts: dict[str, Any], user: int, rung: str, settings: dict[str, Any]
) -> dict[str, Any]:
    home = Path(facts["home"])
    policy = ConfinementPolicy(
        ConfineSettings(**settings),
        person_home=home,
        kapelle_home=Path(facts["kapelle"]),
        kapelle_config=home / ".config/kapelle",
        variables={"PATH": f"{home}/bin:/usr/bin"},
        agent=CLAUDE,
    )
    working = ConfinedPlace(
        workspace=Path(facts["workspace"]),
        path=Path(facts["work"]),
        tmp=Path(facts["kapelle"]) / "tmp/a1",
        objects=((Path(facts["real_objects"]), Path(facts["objects"])),),
        has_own_repository=True,
    )
    fields = vars(policy.confine(rung, working))
    for name in ("settings.json", "commands"):
        if os.getuid() == 0:
            os.chown(home / ".claude" / name, user, user)
    return fields


def judge(result: dict[str, Any], kind: str, worked: bool) -> list[str]:
    return [
        attempt["name"]
        for attempt in result["attempts"]
        if attempt["kind"] == kind
        and attempt["worked"] is worked
        and attempt["name"] not in JUDGED_OUTSIDE
    ]


@pytest.mark.parametrize("rung", ["namespaces", "bubblewrap", "landlock"])
def test_what_gets_out_is_known_and_documented(place: Path, user: int, rung: str) -> None:
    if rung == "bubblewrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    result = attack_again(place, user, rung)
    assert judge(result, "control", worked=False) == NOT_ON_RUNG[rung]
    assert set(judge(result, "escape", worked=True)) == OPEN_NETWORK | OPEN_ON_RUNG[rung]
    assert set(result["effects"]) == EFFECTS_ON_RUNG[rung]


def test_without_network_only_the_memory_score_is_reached(place: Path, user: int) -> None:
    result = attack(place, user, "namespaces", network="off")
    assert judge(result, "control", worked=False) == []
    assert set(judge(result, "escape", worked=True)) == OPEN_ON_RUNG["namespaces"]
    assert set(result["effects"]) == EFFECTS_ON_RUNG["namespaces"]


@pytest.mark.parametrize("user", ["ordinary"], indirect=True)
def test_the_scene_would_show_what_gets_out(place: Path, user: int) -> None:
    """Without any confinement most attempts succeed, so the others prove something.

    Never as root, who would change the machine.
    """
    assert user != 0
    result = attack(place, user, None)
    assert len(judge(result, "escape", worked=True)) > 75
    assert len(result["effects"]) > 30


@pytest.mark.parametrize("rung", ["namespaces", "bubblewrap"])
def test_a_preset_opens_what_it_names_and_nothing_else(place: Path, user: int, rung: str) -> None:
    if rung == "bubblewrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    result = attack_again(place, user, rung, allow=["docker", "gh"])
    opened = {"connect to Docker", "read the token of gh"}
    expected = OPEN_NETWORK | OPEN_ON_RUNG[rung] | opened
    assert set(judge(result, "escape", worked=True)) == expected
