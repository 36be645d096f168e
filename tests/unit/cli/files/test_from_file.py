"""What the daemon says against a pipeline from a file has its line, too."""

from pathlib import Path
from typing import Any

import pytest

from kapelle.cli.files.pipeline import read_pipeline
from kapelle.cli.schedules.create import ordered
from kapelle.cli.starting import begin
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import AgentMisconfigured, AgentNotFound, InvalidInput, KapelleError

TEXT = """\
variables: {who: nobody}
agent: nobody
fallback_agents:
  - claude
  - noone
base: elsewhere
steps:
  - a
  - prompt: b
    agent: ${who}
"""


class Refusing(Client):
    """A daemon that accepts nothing."""

    def __init__(self, error: KapelleError) -> None:
        self._error = error

    def create(self, path: str, body: Any) -> Any:
        raise self._error


def refused(error: KapelleError, **overrides: Any) -> str:
    Path("p.yaml").write_text(TEXT, encoding="utf-8")
    spec = read_pipeline(Path("p.yaml"), {}, overrides)
    with pytest.raises(type(error)) as caught:
        begin(Refusing(error), "/runs", {"pattern": "pipeline", "spec": spec})
    assert (caught.value.code, caught.value.hint) == (error.code, error.hint)
    return caught.value.message


def test_an_unknown_agent_is_named_wherever_it_stands() -> None:
    error = AgentNotFound("There is no agent 'nobody'; known are: claude.", hint="Add it.")
    assert refused(error).split("\n") == [
        "p.yaml:2: there is no agent 'nobody'; known are: claude",
        "p.yaml:10: step 2: there is no agent 'nobody'",
    ]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AgentNotFound("There is no agent 'noone'."), "p.yaml:5: there is no agent 'noone'"),
        (
            AgentMisconfigured("The agent claude cannot be run."),
            "p.yaml:4: the agent claude cannot be run",
        ),
        (
            InvalidInput("'elsewhere' is neither a branch nor a commit."),
            "p.yaml:6: 'elsewhere' is neither a branch nor a commit",
        ),
        (InvalidInput("The disk is full."), "The disk is full."),
    ],
)
def test_other_names_have_their_lines_and_other_errors_stay(error: KapelleError, said: str) -> None:
    assert refused(error) == said


def test_what_was_given_as_an_option_has_no_line() -> None:
    error = AgentNotFound("There is no agent 'else'.")
    assert refused(error, agent="else") == "There is no agent 'else'."


def test_a_schedule_keeps_the_lines_of_what_it_is_to_start() -> None:
    Path("p.yaml").write_text(TEXT, encoding="utf-8")
    body = ordered(["pipeline", "-F", "p.yaml"])
    with pytest.raises(AgentNotFound, match=r"p\.yaml:2: there is no agent 'nobody'"):
        begin(Refusing(AgentNotFound("There is no agent 'nobody'.")), "/schedules", body)
