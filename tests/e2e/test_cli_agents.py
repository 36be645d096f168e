"""Choosing and setting up agents from the command line, with every typing error there is."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import make_repository
from tests.e2e.support.stub_agents import REFUSED, calls, environment, failing, install

KEY = "sk-test-0123456789abcdef"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    directory = tmp_path / "programs"
    directory.mkdir()
    return directory


@pytest.fixture
def kapelle(tmp_path: Path, programs: Path) -> Iterator[Instance]:
    """A home without a daemon, in which only the stand-ins are installed."""
    instance = Instance(tmp_path / "home", **environment(programs))
    yield instance
    instance.destroy()


def line_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.split()[:1] == [name])


def error_of(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 2, done
    return json.loads(done.stderr)["error"]


def findings(kapelle: Instance, name: str) -> list[Any]:
    found = json.loads(kapelle.cli("doctor", "--json").stdout)["findings"]
    return [finding for finding in found if finding["name"] == name]


def test_the_list_is_honest_about_logins(kapelle: Instance, programs: Path) -> None:
    kapelle.start()
    install(programs, "codex")
    kapelle.cli("config", "set", "default_agent", "codex", check=True)
    kapelle.cli("agents", "config", "set", "codex", "model", "gpt-9", check=True)
    shown = kapelle.cli("agents", check=True)
    assert "installed, no login found" in line_of(shown.stdout, "codex")
    assert line_of(shown.stdout, "codex").split()[-2:] == ["gpt-9", "default"]
    assert "not installed" in line_of(shown.stdout, "copilot")
    listed = kapelle.cli("agents", "list", check=True)
    assert listed.stdout == shown.stdout
    assert json.loads(kapelle.cli("agents", "--json").stdout) == json.loads(
        kapelle.cli("agents", "list", "--json").stdout
    )


def test_a_check_fails_only_for_what_was_named(kapelle: Instance, programs: Path) -> None:
    kapelle.start()
    program = install(programs, "codex", "0.1.0")
    everything = kapelle.cli("agents", "check")
    assert everything.returncode == 0
    assert "version 0.1.0 (older), tested with" in everything.stdout
    assert "copilot" not in everything.stdout
    named = kapelle.cli("agents", "check", "codex", "copilot")
    assert named.returncode == 1
    assert "npm install -g @github/copilot" in named.stdout
    assert calls(program) == 0
    assert error_of(kapelle.cli("agents", "check", "codx", "--json"))["code"] == "agent_not_found"
    assert kapelle.cli("agents", "check", "").returncode == 2


def test_a_live_check_tells_what_the_provider_says(kapelle: Instance, programs: Path) -> None:
    kapelle.start()
    install(programs, "codex", output=failing(REFUSED), code=1)
    kapelle.cli("agents", "config", "set", "codex", "api_key", input=f"{KEY}\n", check=True)
    refused = kapelle.cli("agents", "check", "codex", "--live")
    assert refused.returncode == 1
    assert "authentication: unexpected status 401" in refused.stdout
    assert KEY not in refused.stdout
    install(programs, "codex")
    done = kapelle.cli("agents", "check", "codex", "--live")
    assert (done.returncode, done.stderr) == (0, "")
    assert "it answered in" in done.stdout
    assert "verified just now" in line_of(kapelle.cli("agents").stdout, "codex")


def test_a_key_is_never_taken_from_the_command_line(kapelle: Instance, programs: Path) -> None:
    install(programs, "codex")
    refused = kapelle.cli("agents", "config", "set", "codex", "api_key", KEY)
    assert refused.returncode == 2
    assert "history of your shell" in refused.stderr
    assert KEY not in refused.stderr
    assert kapelle.cli("agents", "config", "set", "codex", "api_key", input="").returncode == 2
    repo = kapelle.cli("agents", "config", "set", "codex", "api_key", "--repo", input=KEY)
    assert "never stored in a repository" in repo.stderr
    assert not kapelle.home.credentials.exists()


def test_a_key_from_a_pipe_is_stored_and_shown_nowhere(kapelle: Instance, programs: Path) -> None:
    kapelle.start()
    install(programs, "codex")
    command = ("agents", "config", "set", "codex", "api_key")
    outputs = [
        kapelle.cli(*command, input=f"{KEY}\n", check=True),
        kapelle.cli("agents", "config", "show", "codex", check=True),
        kapelle.cli("agents", "config", "show", "codex", "--json", check=True),
        kapelle.cli("agents", "--json", check=True),
    ]
    assert "login: stored key" in outputs[1].stdout
    assert json.loads(outputs[2].stdout)["login"]["source"] == "stored"
    assert not any(KEY in done.stdout + done.stderr for done in outputs)
    assert "removed" in kapelle.cli("agents", "config", "reset", "codex", "api_key").stderr
    assert "No key" in kapelle.cli("agents", "config", "reset", "codex", "api_key").stderr


def test_a_key_typed_in_a_terminal_is_not_echoed(kapelle: Instance, programs: Path) -> None:
    install(programs, "codex")
    kapelle.cli("agents", check=True)
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "kapelle", "agents", "config", "set", "codex", "api_key"]
    process = subprocess.Popen(
        command, env=kapelle.env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    shown = _read_until(master, "(hidden)")
    time.sleep(0.5)  # until the echo is off
    os.write(master, f"{KEY}\n".encode())
    shown += _read_until(master, "was stored")
    assert process.wait(60) == 0
    os.close(master)
    assert KEY not in shown


def _read_until(master: int, text: str) -> str:
    shown, deadline = "", time.monotonic() + 60
    while text not in shown and time.monotonic() < deadline:
        if select.select([master], [], [], 1)[0]:
            shown += os.read(master, 65536).decode("utf-8", "replace")
    assert text in shown
    return shown


def test_settings_are_shown_with_their_origin_and_secrets_masked(kapelle: Instance) -> None:
    kapelle.start()
    settings = {
        "model": "gpt-9",
        "base_url": "http://me:hush-hush@localhost/v1",
        "extra_args": '["-v"]',
        "env.CODEX_API_KEY": KEY,
        "mcp.web": '{url = "http://localhost/mcp", headers = {Authorization = "Bearer abcdef"}}',
    }
    for key, value in settings.items():
        done = kapelle.cli("agents", "config", "set", "codex", key, value, check=True)
        assert ("stores a key more safely" in done.stderr) == key.startswith("env.")
    shown = kapelle.cli("agents", "config", "show", "codex", check=True).stdout
    assert f'model = "gpt-9"   # user config {kapelle.home.config}' in shown
    assert 'extra_args = ["-v"]' in shown
    assert 'permissions = "allow"\n' in shown
    assert "login: CODEX_API_KEY (settings)" in shown
    for text in (shown, kapelle.cli("agents", "config", "show").stdout):
        assert not {"hush-hush", KEY, "abcdef"} & set(text.replace('"', " ").split())
        assert not any(secret in text for secret in ("hush-hush", KEY, "Bearer abcdef"))
    kapelle.cli("agents", "config", "reset", "codex", "model", check=True)
    assert "model = not set\n" in kapelle.cli("agents", "config", "show", "codex").stdout
    kapelle.cli("agents", "config", "reset", "codex", check=True)
    assert kapelle.cli("agents", "config", "show").stderr == "No agent has settings of its own.\n"


def test_settings_may_be_the_repositorys(kapelle: Instance, tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository")
    command = ("agents", "config", "set", "codex", "model", "gpt-9", "--repo")
    kapelle.cli(*command, cwd=repository, check=True)
    assert "gpt-9" in (repository / ".kapelle" / "config.toml").read_text(encoding="utf-8")
    assert "repository config" in kapelle.cli("agents", "config", "show", cwd=repository).stdout
    assert not kapelle.home.config.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["set", "codx", "model", "x"], "agent_not_found", "did you mean codex?"),
        (["reset", "codx"], "agent_not_found", "did you mean codex?"),
        (["show", "codx"], "agent_not_found", "did you mean codex?"),
        (["set", "codex", "modell", "x"], "invalid_input", "did you mean agents.codex.model?"),
        (["reset", "codex", "modell"], "invalid_input", "did you mean agents.codex.model?"),
        (["set", "codex", "model"], "invalid_input", "model needs a value"),
        (["set", "codex", "permissions", "perhaps"], "invalid_input", "permissions"),
        (["set", "codex"], "invalid_input", "KEY"),
        (["sett", "codex"], "invalid_input", "There is no command 'sett'"),
    ],
)
def test_typing_errors_say_what_to_type(
    kapelle: Instance, arguments: list[str], code: str, said: str
) -> None:
    error = error_of(kapelle.cli("agents", "config", *arguments, "--json"))
    assert error["code"] == code
    assert said in error["message"]
    assert not kapelle.home.config.exists()


def test_new_agents_are_made_by_a_command_or_a_type(kapelle: Instance) -> None:
    kapelle.start()
    kapelle.cli("agents", "config", "set", "mine", "command", '["sh", "{prompt}"]', check=True)
    kapelle.cli("agents", "config", "set", "local", "type", "openai", check=True)
    shown = kapelle.cli("agents", check=True)
    assert "installed" in line_of(shown.stdout, "mine")
    assert "not set up" in line_of(shown.stdout, "local")
    assert "kapelle agents config set local model NAME" in shown.stderr
    kapelle.cli("agents", "config", "set", "local", "model", "llama", check=True)
    assert "not set up" not in line_of(kapelle.cli("agents").stdout, "local")


def test_a_key_that_only_the_terminal_has_is_pointed_out(kapelle: Instance, programs: Path) -> None:
    install(programs, "codex")
    kapelle.cli("agents", check=True)
    kapelle.env["CODEX_API_KEY"] = KEY
    assert "the daemon was started without it" in kapelle.cli("agents").stderr
    assert "kapelle stop" in kapelle.cli("agents", "check", "codex").stdout


def test_init_takes_the_only_agent_there_is_and_says_so(kapelle: Instance, programs: Path) -> None:
    install(programs, "codex")
    done = kapelle.cli("init", check=True)
    assert "The default agent is codex (" in done.stderr
    assert kapelle.cli("config", "get", "default_agent").stdout == "codex\n"
    assert "as it was set before" in kapelle.cli("init", check=True).stderr


def test_init_never_chooses_among_several(kapelle: Instance, programs: Path) -> None:
    install(programs, "codex")
    install(programs, "copilot")
    done = kapelle.cli("init")
    assert done.returncode == 3
    assert "`kapelle init --agent codex` or `kapelle init --agent copilot`" in done.stderr
    assert json.loads(kapelle.cli("init", "--json").stdout)["found"] == ["codex", "copilot"]
    assert "is not set" in kapelle.cli("config", "get", "default_agent").stderr
    assert error_of(kapelle.cli("init", "--agent", "codx", "--json"))["code"] == "agent_not_found"
    kapelle.cli("init", "--agent", "copilot", check=True)
    assert kapelle.cli("config", "get", "default_agent").stdout == "copilot\n"


def test_init_takes_one_that_is_still_to_be_installed(kapelle: Instance) -> None:
    none = kapelle.cli("init")
    assert (none.returncode, "kapelle init --agent rehearsal" in none.stderr) == (3, True)
    done = kapelle.cli("init", "--agent", "codex", check=True)
    assert "npm install -g @openai/codex" in done.stderr


def test_a_task_without_an_agent_is_told_how_to_choose_one(
    kapelle: Instance, programs: Path
) -> None:
    kapelle.start()
    install(programs, "codex")
    error = error_of(kapelle.cli("run", "--in-place", "Go", "--json"))
    assert error["code"] == "agent_not_found"
    assert "kapelle init" in error["hint"]
    assert "kapelle config set default_agent codex" in error["hint"]


def test_the_doctor_knows_versions_and_logins(kapelle: Instance, programs: Path) -> None:
    install(programs, "codex", "0.1.0")
    kapelle.cli("list", check=True)
    [finding] = findings(kapelle, "agent codex")
    assert finding["state"] == "warning"
    assert "version 0.1.0 (older), tested with" in finding["text"]
    assert "kapelle agents config set codex api_key" in finding["hint"]
    kapelle.cli("agents", "config", "set", "codex", "api_key", input=KEY, check=True)
    [finding] = findings(kapelle, "agent codex")
    assert "login: stored key, not verified" in finding["text"]
    assert "npm install -g @openai/codex" in finding["hint"]
    kapelle.cli("stop", check=True)
    # What an agent logs in with is the daemon's to say.
    [finding] = findings(kapelle, "agent codex")
    assert "version 0.1.0 (older), tested with" in finding["text"]
    assert "login" not in finding["text"]
    assert not kapelle.home.socket.exists()


def test_the_doctor_wants_the_default_agent_to_work(kapelle: Instance) -> None:
    kapelle.cli("config", "set", "default_agent", "codex", check=True)
    [finding] = findings(kapelle, "default agent")
    assert finding["state"] == "broken"
    assert "npm install -g @openai/codex" in finding["hint"]
    kapelle.cli("config", "set", "default_agent", "rehearsal", check=True)
    assert findings(kapelle, "default agent")[0]["state"] == "ok"
    unknown = kapelle.cli("config", "set", "default_agent", "nosuch")
    assert "There is no agent 'nosuch'" in unknown.stderr
    assert kapelle.cli("config", "get", "default_agent").stdout == "rehearsal\n"
