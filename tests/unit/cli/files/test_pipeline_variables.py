"""Variables in the file of a pipeline."""

import pytest
from tests.unit.cli.files.pipelines import problems, read


def test_variables_are_replaced_in_every_value_and_in_no_key() -> None:
    body = read(
        "variables: {a: one, b: two}\ntitle: ${a}/${b}${a}\nenv: {X: '${a}'}\n"
        "steps:\n  - $${a} $a ${a}\n  - {prompt: x, checks: [{command: 'test ${b}'}]}\n",
        given={"b": "2"},
    )
    assert body["title"] == "one/2one"
    assert body["env"] == {"X": "one"}
    assert body["steps"][0]["prompt"] == "${a} $a one"
    assert body["steps"][1]["checks"] == [{"command": "test 2"}]
    assert "there is no key '${a}'" in problems("variables: {a: x}\n${a}: 1\nsteps: [a, b]")[0]


def test_a_value_is_put_in_as_it_is() -> None:
    given = {"a": "${b} $${c}\n- x: 'y", "b": "never"}
    body = read("variables: {b: x, c: '${a}'}\nsteps: ['${a}', '${c}']", given=given)
    assert [step["prompt"] for step in body["steps"]] == [given["a"], "${a}"]


def test_a_variable_of_the_command_line_need_not_be_declared() -> None:
    assert read("steps: ['${x}', b]", given={"x": "1"})["steps"][0] == {"prompt": "1"}
    declared = read("variables: {x: }\nsteps: [a, b]", given={"x": "1"})
    assert declared["steps"][0] == {"prompt": "a"}


def test_numbers_and_durations_may_be_variables() -> None:
    text = (
        "variables: {n: 3, t: 5m}\nsteps: [a, {prompt: b, max_attempts: '${n}', timeout: '${t}'}]"
    )
    assert read(text)["steps"][1] == {"prompt": "b", "max_attempts": 3, "timeout_s": 300}


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("steps:\n - a\n - b ${x}\n", {}, ["3: the variable x is not defined"]),
        (
            "steps:\n - a\n - |\n  one $${x}\n\n  ${x} ${y}\n",
            {"y": "1"},
            ["6: the variable x is not defined"],
        ),
        ('steps:\n - a\n - "b\n\n   ${x}"\n', {}, ["5: the variable x is not defined"]),
        (
            "variables: {version: 1}\nsteps: [a, '${versoin}']",
            {},
            ["2: the variable versoin is not defined; did you mean version?"],
        ),
        ("variables:\n  a: 1\n  b:\nsteps: [a, b]", {}, ["3: the variable b has no value"]),
        ("variables:\n  b:\nsteps: [a, '${b}']", {}, ["2: the variable b has no value"]),
        ("variables:\n  1b: 2\nsteps: [a, b]", {}, ["2: '1b' cannot be the name of a variable"]),
        (
            "variables:\n  b: [1]\nsteps: [a, b]",
            {},
            ["2: the variable b must be text, not a list"],
        ),
        (
            "variables: x\nsteps: [a, b]",
            {},
            ["1: variables must be a mapping of names to texts, not text"],
        ),
        ("steps:\n- a ${A:-1}\n- b", {}, ["2: ${A:-1} is no variable"]),
        ("steps:\n- a\n- b ${A and\n", {}, ["3: ${ is no variable"]),
        ("steps: [a, b]", {"x": "1"}, ["1: --var x: there is no such variable in the file"]),
        (
            "steps: [a, b]\nvariables: {notes: n}\n",
            {"note": "1"},
            ["2: --var note: there is no such variable in the file; did you mean notes?"],
        ),
        (
            "steps:\n- a\n- {prompt: b, max_attempts: '${n}'}",
            {},
            ["3: the variable n is not defined"],
        ),
    ],
)
def test_mistakes_with_variables(text: str, given: dict[str, str], expected: list[str]) -> None:
    assert problems(text, given=given) == expected
