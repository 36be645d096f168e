"""Agents see what they are meant to see, and secrets are recognised by name."""

from kapelle.engine.environment import passed
from kapelle.engine.prompt import Earlier, compose
from kapelle.secrets import secrets_in


def test_only_listed_variables_are_passed_on() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "AWS_SECRET": "x",
        "MY_A": "1",
        "MY_B": "2",
        "YOU": "3",
    }
    assert passed(environ, []) == {"PATH": "/bin", "LC_ALL": "C"}
    assert passed(environ, ["MY_*"]) == {"PATH": "/bin", "LC_ALL": "C", "MY_A": "1", "MY_B": "2"}


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
    assert secrets_in(environ) == ["0123456789", "/abcdefghij+", "ghp_0123456789", "pass@word"]


def test_a_prompt_without_context_stays_as_it_is() -> None:
    assert compose("do it\n", {}, [], None) == "do it\n"


def test_context_comes_after_the_prompt_in_sections() -> None:
    earlier = Earlier(
        "Before", "failed", "it broke", "half", "last words", [("t", "red")], "b", "1 file"
    )
    text = compose("do it", {"lang": "de"}, [earlier], "go on")
    assert text.startswith("do it\n\n## Context\n- lang: de\n\n## Before\nIt ended: failed.")
    for piece in ("Reason: it broke", "Branch: b", "half", "1 file", "last words", "red"):
        assert piece in text
    assert text.endswith("## Message\ngo on")
