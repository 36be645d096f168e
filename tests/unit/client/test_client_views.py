"""What the client reads is what the daemon tells."""

import pytest
from pydantic import BaseModel

from kapelle.api.routes import patterns
from kapelle.domain import views
from kapelle.service import agent_views, changes, instance, usage

PAIRS: list[tuple[type[BaseModel], type[BaseModel]]] = [
    (views.DiffView, changes.DiffView),
    (views.MergeView, changes.MergeView),
    (views.UsageReport, usage.UsageReport),
    (views.AgentView, agent_views.AgentView),
    (views.DaemonView, instance.DaemonView),
    (views.PatternView, patterns.PatternView),
]


@pytest.mark.parametrize(("read", "told"), PAIRS, ids=[read.__name__ for read, _ in PAIRS])
def test_both_sides_have_one_schema(read: type[BaseModel], told: type[BaseModel]) -> None:
    assert read.model_json_schema() == told.model_json_schema()
