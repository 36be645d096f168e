"""Ids sort by age, and what people type finds them."""

from hypothesis import given
from hypothesis import strategies as st

from kapelle.domain.ids import as_prefix, is_id, new_id


def test_ids_made_in_a_row_are_unique_and_sorted() -> None:
    ids = [new_id("task") for _ in range(10_000)]
    assert ids == sorted(set(ids))
    assert all(is_id("task", made) for made in ids)


def test_an_id_of_another_kind_or_length_is_none() -> None:
    made = new_id("task")
    assert not is_id("attempt", made)
    assert not is_id("task", made[:-1])
    assert not is_id("task", made + "0")
    assert not is_id("task", made.upper())


def test_a_prefix_may_be_typed_with_or_without_the_kind_in_any_case() -> None:
    made = new_id("task")
    assert as_prefix("task", made[:12]) == made[:12]
    assert as_prefix("task", made.removeprefix("task_")[:8].upper()) == made[:13]


@given(st.text())
def test_any_text_is_a_prefix_of_ids_or_none(text: str) -> None:
    prefix = as_prefix("task", text)
    assert prefix is None or prefix.startswith("task_")
