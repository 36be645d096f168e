"""Ids sort by age, and what people type finds them."""

from hypothesis import given
from hypothesis import strategies as st

from kapelle.domain.ids import SHORT, is_id, is_id_part, new_id, parse_id_part, shorten_ids


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


def test_a_part_may_be_typed_with_or_without_the_kind_in_any_case() -> None:
    made = new_id("task")
    assert parse_id_part("task", made[:12]) == made[5:12]
    assert parse_id_part("task", made[-SHORT:].upper()) == made[-SHORT:]
    assert parse_id_part("task", f" task_{made[-SHORT:]}") == made[-SHORT:]
    assert parse_id_part("task", made.replace("task", "run")) is None


@given(st.text())
def test_any_text_is_a_part_of_ids_or_none(text: str) -> None:
    part = parse_id_part("task", text)
    assert part is None or is_id("task", f"task_{part:0<26}")


def test_a_message_is_not_taken_for_an_id() -> None:
    assert is_id_part("k3m9x")
    assert is_id_part("RUN_k3m9x")
    assert is_id_part(new_id("attempt"))
    assert not any(map(is_id_part, ("Go on", "no!", "task_", "", "-", "Übung")))


def test_ids_in_a_text_are_made_short_but_not_in_paths_branches_and_tokens() -> None:
    task, run = new_id("task"), new_id("run")
    text = f'{task} asks: why? (kapelle answer {task} "…"), then {run}.'
    end = task[-SHORT:]
    assert shorten_ids(text) == f'{end} asks: why? (kapelle answer {end} "…"), then {run[-SHORT:]}.'
    kept = f"kapelle/{task} /home/me/{task}/file {run}:0004.1.0001 refs/kapelle/archive/{run}"
    assert shorten_ids(kept) == kept
