"""What may be asked of a judge, a phase and a file of features, and how mistakes are named."""

from typing import Any

import pytest
from pydantic import ValidationError

from kapelle.patterns.loop import LoopSpec
from kapelle.patterns.results import Failed
from kapelle.patterns.tracks.features import read_features
from kapelle.patterns.workflow.plan import PhaseLimit


def judged(*properties: str, shape: Any = None, **spec: Any) -> LoopSpec:
    """A loop whose judge answers with these properties, each of this shape."""
    schema = {"type": "object", "properties": {name: shape or {} for name in properties}}
    wanted = {"directory": "/", "prompt": "x", "eval_mode": "agent", "eval_schema": schema}
    return LoopSpec.model_validate(wanted | spec)


@pytest.mark.parametrize("properties", [(), ("reasoning",), ("score", "Done")])
def test_a_schema_without_what_decides_is_refused(properties: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match="must have the property done, true or false"):
        judged(*properties)


@pytest.mark.parametrize("properties", [(), ("done", "continue"), ("Score",)])
def test_a_schema_without_a_score_is_refused_where_a_number_decides(
    properties: tuple[str, ...],
) -> None:
    with pytest.raises(ValidationError, match="must have the property score, a number"):
        judged(*properties, direction="minimize")


def test_a_schema_with_what_decides_is_taken() -> None:
    assert judged("done", "style").eval_schema
    assert judged("continue").eval_schema
    assert judged("score", direction="maximize").eval_schema
    far = {"type": ["integer", "null"], "minimum": 1000}
    assert judged("score", shape=far, direction="maximize").eval_schema


def test_a_score_in_words_decides_nothing() -> None:
    text = {"type": "string"}
    with pytest.raises(ValidationError, match="must have the property score, a number"):
        judged("score", shape=text, direction="maximize")
    with pytest.raises(ValidationError, match="must have the property done, true or false"):
        judged("done", shape=text)


@pytest.mark.parametrize("limit", ["implement", "implement:turn=3"])
def test_a_limit_that_is_none_is_named_with_the_allowed_words(limit: str) -> None:
    with pytest.raises(ValidationError, match="is none of turns, usd, minutes"):
        PhaseLimit.model_validate(limit)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"featurs": []}', "it has no 'features'"),
        ('[{"id": 1, "name": "a"}, {"id": 7}]', r"feature 2 \(id 7\): name is missing"),
        ('[{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]', "feature 2 has the id 1"),
    ],
)
def test_what_is_wrong_with_a_file_of_features_says_with_which(text: str, said: str) -> None:
    with pytest.raises(Failed, match=f"{said}.*as it is committed"):
        read_features("features.json", text)
