"""Each mistake in the file of a pipeline is named with its line."""

import pytest
from tests.unit.cli.files.pipelines import problems, refusal

STEPS = "steps: [a, b]\n"

MISTAKES: list[tuple[str, list[str]]] = [
    ("titel: x\n" + STEPS, ["1: there is no key 'titel'; did you mean title?"]),
    (STEPS + "xyzzy: x\n", ["2: there is no key 'xyzzy'"]),
    ("steps:\n- a\n- promt: x\n", [
        "3: step 2: prompt is missing", "3: step 2: there is no key 'promt'; did you mean prompt?",
    ]),
    ("steps:\n- a\n- prompt: b\n  checks:\n  - x\n  - comand: y\n", [
        "6: step 2: check 2: there is no key 'comand'; did you mean command?",
    ]),
    ("steps:\n- a\n- prompt: b\n  checks:\n  - {kind: command}\n", [
        "5: step 2: check 1: a command check needs a command, and a built-in check has none",
    ]),
    ("title: x\n", ["1: steps is missing"]),
    ("title: x\nsteps:\n", ["2: steps must be a list, not nothing"]),
    ("title: x\nsteps: do it\n", ["2: steps must be a list, not 'do it'"]),
    ("title: x\nsteps: {a: b}\n", ["2: steps must be a list, not a mapping"]),
    ("title: x\nsteps:\n\n- a\n", ["2: steps must have at least 2 items, not 1"]),
    ("steps:\n" + "- a\n" * 21, ["1: steps may have at most 20 items, not 21"]),
    ("steps:\n- a\n- ''\n", ["3: step 2: prompt is empty"]),
    ("steps:\n- a\n- '  '\n", ["3: step 2: prompt: the prompt is empty"]),
    ("steps:\n- a\n-\n", ["3: step 2 must be text or a mapping, not nothing"]),
    ("steps:\n- a\n- [b]\n", ["3: step 2 must be text or a mapping, not a list"]),
    ("steps:\n- a\n- name: x\n  prompt:\n", ["4: step 2: prompt must be text, not nothing"]),
    ("steps:\n- a\n- name: x\n  prompt: |\n\n\n", ["4: step 2: prompt is empty"]),
    ("title: [x]\n" + STEPS, ["1: title must be text, not a list"]),
    ("title: {x: y}\n" + STEPS, ["1: title must be text, not a mapping"]),
    ('directory: "a\\nb"\n' + STEPS, ["1: 'a\\nb' is not a directory"]),
    ('env: {"a\\nb": x}\n' + STEPS,
     ["1: env: 'a\\nb' holds a character that is not allowed there"]),
    ("title: \"a\\nb\"\n" + STEPS, ["1: title holds a character that is not allowed there"]),
    ("workspaces: both\n" + STEPS, ["1: workspaces must be 'shared' or 'each', not 'both'"]),
    ("steps:\n- a\n- prompt: b\n  priority: p7\n",
     ["4: step 2: priority must be 'P0', 'P1' or 'P2', not 'p7'"]),
    ("steps:\n- a\n- prompt: b\n  max_attempts: many\n",
     ["4: step 2: max_attempts must be a whole number, not 'many'"]),
    ("max_agent_calls: 1.5\n" + STEPS, ["1: max_agent_calls must be a whole number, not '1.5'"]),
    ("max_agent_calls: 0\n" + STEPS, ["1: max_agent_calls must be at least 1, not '0'"]),
    ("budget_usd: much\n" + STEPS, ["1: budget_usd must be a number, not 'much'"]),
    ("budget_usd: 0\n" + STEPS, ["1: budget_usd must be more than 0, not '0'"]),
    ("fallback_agents:\n- a\n- ''\n" + STEPS, ["3: fallback_agents 2 is empty"]),
    ("env:\n  A: 1\n  B:\n" + STEPS, ["3: env: B must be text, not nothing"]),
    ("env:\n  A: 1\n  B C: 1\n" + STEPS,
     ["3: env: B C holds a character that is not allowed there"]),
    ("steps:\n- a\n- prompt: b\n  checks: make test\n",
     ["4: step 2: checks must be a list, not 'make test'"]),
    ("steps:\n- a\n- prompt: b\n  timeout: soon\n", ["4: timeout is not a duration: 'soon'"]),
    ("steps:\n- a\n- prompt: b\n  timeout: 2y\n", ["4: timeout is not a duration: '2y'"]),
    ("steps:\n- a\n- prompt: b\n  timeout: [1]\n",
     ["4: step 2: timeout_s must be a number, not a list"]),
    ("max_seconds: 0\n" + STEPS,
     ["1: max_seconds must be more than nothing and at most a year, not '0'"]),
    ("steps:\n- a\n- prompt: b\n  timeout: 1m\n  timeout_s: 5\n",
     ["4: timeout and timeout_s mean the same"]),
    ("- a\n- b\n", ["1: a pipeline is a mapping with steps, not a list"]),
    ("\n# nothing\n", ["1: a pipeline is a mapping with steps, not nothing"]),
    ("", ["1: a pipeline is a mapping with steps, not nothing"]),
    ("\nhello\n", ["2: a pipeline is a mapping with steps, not text"]),
    ("title: a\nagent: b\ntitle: c\n", ["3: the key 'title' stands on line 1 already"]),
    ("steps:\n- a\n- prompt: a\n  name: b\n  prompt: c\n",
     ["5: the key 'prompt' stands on line 3 already"]),
    ("title: x\n" + STEPS + "---\ntitle: y\n", ["3: a second document begins here"]),
    ("title: x\n? [a]\n: b\n", ["2: a key must be text, not a list"]),
    ("title: x\n? \n: b\n", ["2: a key must be text, not nothing"]),
    ("title: x\nsteps: !!python/object/apply:os.system [a, b]\n",
     ["2: the tag !!python/object/apply:os.system is not allowed"]),
    ("title: !secret x\n" + STEPS, ["1: the tag !secret is not allowed"]),
    ("title: x\nsteps: &s [a, *s]\n", ["2: the alias *s stands inside itself"]),
    ("title: x\nsteps: [a, *s]\n", ["2: there is no anchor &s before this alias"]),
    ("title: x\nsteps:\n- <<: text\n", ["3: << takes a mapping, not text"]),
    ("title: x\nsteps: " + "[" * 60 + "]" * 60, ["2: this is nested more than 50 deep"]),
    ("a: &a " + "[" * 40 + "]" * 40 + "\nb: &b [*a]\nc: " + "[" * 9 + "*b" + "]" * 9,
     ["3: this is nested more than 50 deep"]),
    ("x: &a [" + "x," * 99 + "]\ny: &b [" + "*a," * 90 + "]\nz: [" + "*b," * 99 + "]\n",
     ["3: the file grows to more than 10,000 values"]),
    ("x: y\nsteps:\n" + "- a\n" * 10_001, ["10002: the file grows to more than 10,000 values"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), MISTAKES)
def test_each_mistake_is_named_with_its_line(text: str, expected: list[str]) -> None:
    assert problems(text) == expected


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("title: x\nsteps: [a, b\n", 3, "not valid YAML: expected ',' or ']'"),
        ("title: x\nagent: a: b\n", 2, "not valid YAML: mapping values are not allowed here"),
        ("title: x\nsteps:\n\t- a\n", 3, "not valid YAML: found character '\\t'"),
        ("title: x\nagent: 'a\n", 3, "not valid YAML: found unexpected end of stream"),
        ("title: x\nsteps:\n  - a\n - b\n", 4, "not valid YAML"),
        ("title: x\nagent: \x07\n", 2, "a character is not allowed"),
        ("title: a\u2028b\nagent: a: b\n", 2, "not valid YAML"),
    ],
)
def test_broken_yaml(text: str, line: int, words: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"{line}: ")
    assert words in problem


TOML_MISTAKES: list[tuple[str, list[str]]] = [
    ('title = "x"\nagent = y\n', ["2: this is not valid TOML: invalid value"]),
    ('title = "x\n', ["1: this is not valid TOML: illegal character '\\n'"]),
    ('title = "x"\n\nsteps = ["a",\n', ["3: this is not valid TOML: invalid value"]),
    ('title = "x"\ntitle = "y"\n', ["2: this is not valid TOML: cannot overwrite a value"]),
    ('titel = "x"\nsteps = ["a", "b"]\n', ["1: there is no key 'titel'; did you mean title?"]),
    ('[[steps]]\nprompt = "a"\n\n[[steps]]\n# x\npromt = "b"\n', [
        "4: step 2: prompt is missing", "6: step 2: there is no key 'promt'; did you mean prompt?",
    ]),
    ('[[steps]]\nprompt = "a"\n', ["1: steps must have at least 2 items, not 1"]),
    ('# x\nsteps = [\n  "a",\n\n  " ",\n]\n', ["5: step 2: prompt: the prompt is empty"]),
    ('steps = ["a", {prompt = "b", checks = [\n"x",\n{command = "y",  nam = 1}\n]}]\n',
     ["3: step 2: check 2: there is no key 'nam'; did you mean name?"]),
    ('[[steps]]\nprompt = "a"\n[[steps]]\nprompt = """\n[x]\n${v}\n"""\n',
     ["6: the variable v is not defined"]),
    ("[[steps]]\nprompt = '''\n[[steps]]\na = 1\n'''\n[[steps]]\n\"prompt\" = 'b'\n"
     "priority = 'x'\n",
     ["8: step 2: priority must be 'P0', 'P1' or 'P2', not 'x'"]),
    ('[[steps]]\nprompt = "a"\n[[steps]]\nprompt = "b"\n[[steps.checks]]\ncommand = "x"\n'
     '[[steps.checks]]\ncommand = "y"\ntimeout = "z"\n', ["9: timeout is not a duration: 'z'"]),
    ('[[steps]]\nprompt = "a"\n[[steps]]\nprompt = "b"\n[steps.env]\nA = "x"\n',
     ["5: step 2: there is no key 'env'"]),
    ('steps = ["a", "b"]\nenv.A = "x"\nenv."B C" = "y"\n',
     ["3: env: B C holds a character that is not allowed there"]),
    ('steps = ["a", "b"]\n[env]\nA = ["x"]\n', ["3: env: A must be text, not a list"]),
    ("x = " + "[" * 60 + "]" * 60, ["1: this is nested more than 50 deep"]),
    ("x = " + "[" * 5000 + "]" * 5000, ["1: this is nested more than 50 deep"]),
    ("\nx = [" + "1," * 10_001 + "]", ["2: the file has more than 10,000 values"]),
    ('variables = "x"\nsteps = ["a", "b"]\n',
     ["1: variables must be a mapping of names to texts, not text"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TOML_MISTAKES)
def test_mistakes_in_toml(text: str, expected: list[str]) -> None:
    assert problems(text, "p.toml") == expected


def test_all_mistakes_are_reported_in_the_order_of_lines() -> None:
    text = "steps:\n- prompt: ${x}\n  timeout: z\n- promt: b\ntitel: t\nbase: []\nvariables: {n: }"
    error = refusal(text)
    assert [line.split(":")[1] for line in error.message.split("\n")] == list("2344567")
    assert error.hint == "Add --var x=VALUE, or write $${x} if it is none."


def test_a_mistake_in_a_repeated_part_is_named_where_it_stands() -> None:
    text = "steps:\n- &a\n  prompt: a ${x}\n  agent: b\n- *a\n"
    assert problems(text) == ["3: the variable x is not defined"]
