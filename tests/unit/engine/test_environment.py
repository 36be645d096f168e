"""Agents see what they are meant to see, and secrets are recognised by name."""

from pathlib import Path

import pytest

from kapelle.client.environment import with_shell
from kapelle.domain.environment import read_shell
from kapelle.domain.specs import Shell
from kapelle.engine.processes.environment import (
    Origin,
    leads_into,
    map_into_worktree,
    select_variables,
)
from kapelle.engine.processes.prompt import Earlier, compose_prompt
from kapelle.home import Home
from kapelle.secrets.detection import find_secrets


def test_only_listed_variables_are_passed_on() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "AWS_SECRET": "x",
        "MY_A": "1",
        "MY_B": "2",
        "YOU": "3",
    }
    assert select_variables(environ, []) == {"PATH": "/bin", "LC_ALL": "C"}
    assert select_variables(environ, ["MY_*"]) == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "MY_A": "1",
        "MY_B": "2",
    }


def test_of_a_shell_the_daemon_adds_only_what_is_needed_or_wanted() -> None:
    daemon = {"PATH": "/daemon", "HOME": "/home", "JAVA_HOME": "/daemon", "API_KEY": "k", "CI": "1"}
    shell = Shell(variables={"PATH": "/mine", "GOPATH": "/go", "EVIL": "x"})
    assert select_variables(daemon, ["API_KEY"], shell) == {
        "PATH": "/mine",
        "HOME": "/home",
        "GOPATH": "/go",
        "API_KEY": "k",
    }


def test_a_client_tells_secrets_by_their_names_only(tmp_path: Path) -> None:
    environ = {"PATH": "/bin", "GITHUB_TOKEN": "t", "CONDA_TOKEN": "u", "_": "x", "BAD-NAME": "y"}
    assert read_shell(environ) == {
        "variables": {"PATH": "/bin"},
        "dropped": ["CONDA_TOKEN", "GITHUB_TOKEN"],
    }
    assert read_shell(environ, ["GITHUB_TOKEN"])["variables"] == {
        "PATH": "/bin",
        "GITHUB_TOKEN": "t",
    }


def test_a_repository_does_not_get_secrets_by_a_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "t")
    monkeypatch.setenv("GITHUB_REF", "main")
    config = tmp_path / "repository" / ".kapelle" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[environment]\npass = ["GITHUB_*", "GITHUB_TOKEN"]\n')
    home = Home(tmp_path / "home")
    spec = {"prompt": "x", "directory": str(config.parent.parent)}
    sent = with_shell(home, "/tasks", spec)["shell"]
    assert sent["variables"]["GITHUB_REF"] == "main"
    assert "GITHUB_TOKEN" in sent["dropped"]
    home.root.mkdir()
    home.config.write_text('[environment]\npass = ["GITHUB_TOKEN"]\n')
    body = with_shell(home, "/runs", {"pattern": "loop", "spec": spec})
    assert body["spec"]["shell"]["variables"]["GITHUB_TOKEN"] == "t"
    assert with_shell(home, "/tasks/x/retry", spec) is spec


def test_paths_of_the_checkout_are_the_worktrees_or_left_out(tmp_path: Path) -> None:
    checkout, worktree = tmp_path / "checkout", tmp_path / "checkout" / "home" / "worktree"
    for place in (checkout / "bin", checkout / "lib", worktree / "bin", tmp_path / "out"):
        place.mkdir(parents=True)
    (tmp_path / "way").symlink_to(checkout / "lib")
    origin = Origin(None, (checkout,), worktree)
    env = {
        "PATH": f"{checkout}/bin:{checkout}/lib:/bin:{worktree}/x:{tmp_path}/way:{tmp_path}/out",
        "NODE_PATH": f"{checkout}/lib",
        "GOPATH": str(tmp_path / "checkout-other"),
        "OTHER": f"{checkout}/lib",
    }
    found = map_into_worktree(env, origin)
    assert found.values == {
        "PATH": f"{worktree}/bin:/bin:{worktree}/x:{tmp_path}/out",
        "GOPATH": env["GOPATH"],
        "OTHER": env["OTHER"],
    }
    assert found.mapped == [f"PATH {checkout}/bin is {worktree}/bin"]
    assert [entry.split()[0] for entry in found.omitted] == ["PATH", "PATH", "NODE_PATH"]
    assert map_into_worktree(env, Origin(None)).values == env


def test_linked_packages_of_a_workspace_lead_back(tmp_path: Path) -> None:
    modules = tmp_path / "node_modules"
    (modules / "@mine").mkdir(parents=True)
    (modules / "real").mkdir()
    (modules / "also").symlink_to("real")
    (tmp_path / "packages" / "part").mkdir(parents=True)
    assert not leads_into(modules, [tmp_path])
    (modules / "@mine" / "part").symlink_to("../../packages/part")
    assert leads_into(modules, [tmp_path])


def test_values_are_secret_by_the_names_of_their_variables() -> None:
    environ = {
        "API_KEY": "0123456789",
        "AWS_SECRET": "/abcdefghij+",
        "GITHUB_PAT": "ghp_0123456789",
        "SSH_KEY_FILE": "/etc/passwd",
        "TOKEN": "short",
        "PATTERN": "not-a-secret",
        "HTTPS_PROXY": "http://me:pass%40word@proxy:3128",
    }
    assert find_secrets(environ) == ["0123456789", "/abcdefghij+", "ghp_0123456789", "pass@word"]


def test_a_prompt_without_context_stays_as_it_is() -> None:
    assert compose_prompt("do it\n", {}, [], None) == "do it\n"


def test_context_comes_after_the_prompt_in_sections() -> None:
    earlier = Earlier(
        "Before", "failed", "it broke", "half", "last words", [("t", "red")], "b", "1 file"
    )
    text = compose_prompt("do it", {"lang": "de"}, [earlier], "go on")
    assert text.startswith("do it\n\n## Context\n- lang: de\n\n## Before\nStatus: failed\n")
    for piece in ("Reason: it broke", "Branch: b", "half", "1 file", "last words", "red"):
        assert piece in text
    assert text.endswith("## Message\ngo on")
