"""Reading a pipeline from a file that a test writes, and what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from kapelle.cli.files.pipeline import read_pipeline
from kapelle.domain.errors import InvalidInput
from kapelle.patterns.pipeline import PipelineSpec


def read(text: str, name: str = "p.yaml", *, given: Any = None, **overrides: Any) -> dict[str, Any]:
    Path(name).write_text(text, encoding="utf-8")
    body = read_pipeline(Path(name), given or {}, overrides)
    PipelineSpec.model_validate(body)
    return body


def refusal(text: str, name: str = "p.yaml", **options: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        read(text, name, **options)
    assert caught.value.hint
    return caught.value


def problems(text: str, name: str = "p.yaml", **options: Any) -> list[str]:
    """Each mistake as LINE: WORDS; that the file is named before it is checked here."""
    lines = refusal(text, name, **options).message.split("\n")
    assert all(line.startswith(f"{name}:") for line in lines)
    return [line.removeprefix(f"{name}:") for line in lines]
