"""The file of features: only the status of a feature changes, and every other byte stays."""

import json

import pytest

from kapelle.patterns.tracks.features import Feature, with_status

_TEXTS = [
    '{"features": [\n  {"id": 1, "name": "a", "status": "open"},\n  {"id": 2, "name": "b"}\n]}\n',
    '[{"id":1,"name":"a","status":"open"},{"id":2,"name":"b\\u00e9 \\"status\\": 1"}]',
    '\n{\n\t"about": {"features": []},\n\t"features" : [ { "id": 1, "name": "a",\r\n "status"\t:'
    '\t"open" }, {\n    "id": 2,\n    "name": "b"\n} ] , "more": 1e5\n}',
]


@pytest.mark.parametrize("text", _TEXTS)
def test_the_status_of_a_feature_is_all_that_changes(text: str) -> None:
    first, second = Feature(id=1, name="a"), Feature(id=2, name="b")
    changed = with_status(text, first, "passed")
    assert changed == text.replace('"open"', '"passed"')
    added = with_status(changed, second, "failed")
    wanted = json.loads(changed)
    rows = wanted["features"] if isinstance(wanted, dict) else wanted
    rows[1]["status"] = "failed"
    assert json.loads(added) == wanted
    assert with_status(added, second, "open") == added.replace('"failed"', '"open"')
