"""The types of the JSON objects of REST."""

import subprocess
import sys

import pytest
from pydantic import BaseModel

from kapelle.client import records
from kapelle.domain.agent_views import AgentView
from kapelle.domain.question import Question
from kapelle.domain.run import Run, Step
from kapelle.domain.task import Attempt, CheckResult, Event, Task


@pytest.mark.parametrize(
    "model", [Task, Run, Attempt, CheckResult, Step, Event, Question, AgentView]
)
def test_a_record_has_the_fields_that_the_daemon_sends(model: type[BaseModel]) -> None:
    record = getattr(records, model.__name__.removesuffix("View") + "Json")
    sent = {*model.model_fields, *model.model_computed_fields}
    assert set(record.__annotations__) == sent
    assert record.__required_keys__ == sent


def test_a_command_does_not_make_the_types() -> None:
    program = """
import sys
from kapelle.cli import doctor, follow, run_view, tasks, top
sys.exit("kapelle.client.records" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert done.returncode == 0
