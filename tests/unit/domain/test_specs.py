"""What may be asked for, and what is refused with a reason."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kapelle.domain.specs import CheckKind, CheckSpec, TaskSpec


def spec(**values: Any) -> TaskSpec:
    return TaskSpec(**({"prompt": "do it", "directory": "/"} | values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": "   "}, "the prompt is empty"),
        ({"prompt": "ü" * 600_000}, "larger than 1 MB"),
        ({"prompt": "a\0b"}, "pattern"),
        ({"directory": "relative"}, "absolute path"),
        ({"priority": "P9"}, "P0"),
        ({"timeout_s": -1}, "greater than 0"),
        ({"timeout_s": float("inf")}, "finite"),
        ({"env": {"BAD NAME": "x"}}, "pattern"),
        ({"unknown": 1}, "not permitted"),
        ({"checks": [{"kind": "diff_not_empty", "command": "x"}]}, "a built-in check takes none"),
        ({"checks": [{"command": "  "}]}, "needs a command"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused_with_the_reason(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**values)


def test_a_check_may_be_written_as_a_plain_string() -> None:
    checks = spec(checks=["make test", "diff_not_empty"]).checks
    assert checks[0] == CheckSpec(command="make test")
    assert checks[1].kind is CheckKind.DIFF_NOT_EMPTY
    assert [check.label for check in checks] == ["make test", "diff_not_empty"]


@given(st.text(min_size=1).filter(lambda text: text.strip() and "\0" not in text))
def test_every_prompt_gives_a_title_of_one_printable_line(prompt: str) -> None:
    title = spec(prompt=prompt).display_title
    assert len(title) <= 80
    assert title.isprintable()
