"""A pipeline is read from a YAML or TOML file as people write it, and its mistakes are named."""

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st

from kapelle.cli.pattern_file import read_pattern_file
from kapelle.domain.errors import InvalidInput
from kapelle.patterns.pipeline import PipelineSpec, StepSpec


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KAPELLE_URL", raising=False)


def read(text: str, name: str = "p.yaml", *, given: Any = None, **overrides: Any) -> dict[str, Any]:
    Path(name).write_text(text, encoding="utf-8")
    body = read_pattern_file("pipeline", Path(name), given or {}, overrides)
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


EXAMPLE = """\
title: Release
variables: {version: "1.0", notes: }
agent: claude
workspaces: shared
steps:
  - design the change for ${version}
  - name: implement
    prompt: |
      Implement it. $${not_a_variable}
    agent: codex
    checks: [make test]
    timeout: 20m
"""

SAME_IN_TOML = '''\
title = "Release"
agent = "claude"
workspaces = "shared"
steps = [
  "design the change for ${version}",
  { name = "implement", agent = "codex", timeout = "20m", checks = ["make test"], prompt = """
Implement it. $${not_a_variable}
""" },
]
[variables]
version = "1.0"
notes = ""
'''

AS_TABLES = '''\
title = "Release"
agent = "claude"
workspaces = "shared"

[variables]
version = 1.0

[[steps]]
prompt = "design the change for ${version}"

[[steps]]
name = "implement"
prompt = """
Implement it. $${not_a_variable}
"""
agent = "codex"
checks = ["make test"]
timeout_s = 1200
'''


@pytest.mark.parametrize(
    ("text", "name", "given"),
    [
        (EXAMPLE, "p.yaml", {"notes": "x"}),
        (EXAMPLE.replace("\n", "\r\n"), "p.YML", {"notes": "x"}),
        ("\ufeff" + EXAMPLE, "p.yml", {"notes": "x"}),
        (SAME_IN_TOML, "p.toml", {}),
        (AS_TABLES, "p.toml", {}),
    ],
)
def test_a_file_becomes_the_body_of_a_request(
    text: str, name: str, given: dict[str, str], tmp_path: Path
) -> None:
    assert read(text, name, given=given) == {
        "title": "Release",
        "directory": str(tmp_path),
        "agent": "claude",
        "workspaces": "shared",
        "steps": [
            {"prompt": "design the change for 1.0"},
            {
                "name": "implement",
                "prompt": "Implement it. ${not_a_variable}\n",
                "agent": "codex",
                "checks": [{"command": "make test"}],
                "timeout_s": 1200,
            },
        ],
    }


def test_standard_input_is_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    text = b"steps: [a, b]\ndirectory: sub\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    body = read_pattern_file("pipeline", Path("-"), {}, {})
    assert body == {
        "steps": [{"prompt": "a"}, {"prompt": "b"}],
        "directory": str(tmp_path / "sub"),
    }
    text = b"steps:\n  - a\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    with pytest.raises(InvalidInput, match=r"^<stdin>:1: steps must have at least 2"):
        read_pattern_file("pipeline", Path("-"), {}, {})


def test_the_examples_of_the_documentation_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    section = page.partition("## From a file\n")[2].partition("\n## ")[0]
    in_yaml, in_toml = re.findall(r"```(?:yaml|toml)\n(.*?)```", section, re.DOTALL)
    body = read(in_yaml, "p.yaml", given={"notes": "n"})
    assert body == read(in_toml, "p.toml", given={"notes": "n"})
    assert problems(in_yaml, "p.yaml") == ["2: the variable notes has no value"]
    # Steps that share a workspace stay in its repository, or the daemon refuses them.
    assert body["workspaces"] == "shared"
    for step in body["steps"]:
        assert Path(step.get("directory", tmp_path)).is_relative_to(body["directory"])


def test_every_key_of_the_specification_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    tables = [line.split("|")[1] for line in page.split("\n") if line.startswith("| `")]
    documented = {name for cell in tables for name in re.findall(r"`(\w+)`", cell)}
    keys = {*PipelineSpec.model_fields, *StepSpec.model_fields}
    # The shell is what the client sends, not what a person writes.
    assert keys - {"timeout_s", "task_timeout_s", "shell"} <= documented


@pytest.mark.parametrize(
    "text",
    ["yes", "no", "on", "1.10", "0x1F", "010", "1_000", "12:30", "2026-01-02", "1e3", ".5", "true"],
)  # fmt: skip
def test_what_looks_like_something_else_stays_as_it_was_written(text: str) -> None:
    body = read(
        f"title: {text}\nvariables: {{v: {text}}}\nenv: {{A: {text}}}\n"
        f"steps:\n  - {text}\n  - prompt: {text}\n  - is ${{v}}\n"
    )
    assert body["title"] == text
    assert body["env"] == {"A": text}
    assert [step["prompt"] for step in body["steps"]] == [text, text, f"is {text}"]


def test_numbers_are_numbers_where_numbers_are_wanted() -> None:
    body = read("budget_usd: 2.50\nmax_agent_calls: 7\nsteps: [a, {prompt: b, max_attempts: '3'}]")
    assert (body["budget_usd"], body["max_agent_calls"]) == (2.5, 7)
    assert body["steps"][1]["max_attempts"] == 3


def test_nothing_is_as_if_the_key_were_not_there(tmp_path: Path) -> None:
    body = read(
        "agent:\nmodel: ~\ntitle: null\ndirectory:\nvariables:\nsteps: [a, {prompt: b, name: }]"
    )
    assert body == {"directory": str(tmp_path), "steps": [{"prompt": "a"}, {"prompt": "b"}]}


def test_toml_numbers_and_dates_are_text_where_text_is_wanted() -> None:
    body = read(
        'title = 1.10\nproject = 2026-01-02\nsteps = ["${a} ${b}", "x"]\n'
        "[variables]\na = true\nb = 1.10\n",
        "p.toml",
    )
    assert (body["title"], body["project"]) == ("1.10", "2026-01-02")
    assert body["steps"][0]["prompt"] == "true 1.10"


def test_a_relative_directory_begins_at_the_file(tmp_path: Path) -> None:
    for name in ("file", "file/sub", "file/step", "here"):
        (tmp_path / name).mkdir()
    text = "directory: sub\nsteps: [a, {prompt: b, directory: ./step}]"
    body = read(text, "file/p.yaml")
    assert body["directory"] == str(tmp_path / "file" / "sub")
    assert body["steps"][1]["directory"] == str(tmp_path / "file" / "step")
    assert read(text, "file/p.yaml", directory="here")["directory"] == str(tmp_path / "here")
    absolute = f"directory: {tmp_path / 'here'}\nsteps: [a, b]"
    assert read(absolute, "file/p.yaml")["directory"] == str(tmp_path / "here")
    assert read("steps: [a, b]", "file/p.yaml")["directory"] == str(tmp_path)


def test_a_directory_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "steps:\n- a\n- prompt: b\n  directory: nowhere\ndirectory: ''\n"
    assert problems(text) == ["4: 'nowhere' is not a directory", "5: directory is empty"]
    # With a URL the daemon may stand on another machine.
    monkeypatch.setenv("KAPELLE_URL", "http://127.0.0.1:1")
    assert read("directory: /no/where\nsteps: [a, b]")["directory"] == "/no/where"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max_seconds: 2h", {"max_seconds": 7200}),
        ("max_seconds: 90", {"max_seconds": 90}),
        ("timeout: 1h30m", {"task_timeout_s": 5400}),
        ("task_timeout: 5m", {"task_timeout_s": 300}),
        ("task_timeout_s: 1.5", {"task_timeout_s": 1.5}),
        ("timeout:", {}),
    ],
)
def test_durations_of_the_whole(line: str, expected: dict[str, float]) -> None:
    body = read(f"{line}\nsteps: [a, b]")
    assert {key: body[key] for key in body if key not in {"steps", "directory"}} == expected


def test_durations_of_steps_and_checks() -> None:
    body = read(
        "steps:\n- {prompt: a, timeout_s: 1m}\n- {prompt: b, checks: [{command: x, timeout: 2m}]}"
    )
    assert body["steps"][0]["timeout_s"] == 60
    assert body["steps"][1]["checks"] == [{"command": "x", "timeout_s": 120}]


def test_options_replace_what_the_file_says() -> None:
    text = "agent: claude\npriority: P2\nsteps: [a, b]"
    body = read(text, agent="codex", title="T", model=None, priority=None)
    assert (body["agent"], body["priority"], body["title"]) == ("codex", "P2", "T")
    assert "model" not in body


def test_a_wrong_option_is_not_blamed_on_a_line() -> None:
    assert problems("# x\n\npriority: P1\nsteps: [a, b]", priority="P9") == [
        "1: priority must be 'P0', 'P1' or 'P2', not 'P9' (it was given on the command line)"
    ]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"title: x\nagent: \xfc\n")
    (tmp_path / "large.yaml").write_bytes(b"# " + b"x" * 1_000_000)
    (tmp_path / "p.txt").write_text("steps: [a, b]", encoding="utf-8")
    expected = {
        "none.yaml": "none.yaml cannot be read: No such file or directory.",
        "d.yaml": "d.yaml cannot be read: Is a directory.",
        "latin.yaml": "latin.yaml:2: this is not UTF-8 text",
        "large.yaml": "large.yaml:1: this is larger than 1 MB",
        "p.txt": "p.txt:1: the end of its name is no known type of file",
    }
    for name, words in expected.items():
        with pytest.raises(InvalidInput) as caught:
            read_pattern_file("pipeline", Path(name), {}, {})
        assert caught.value.message == words
        assert caught.value.hint


def test_a_prompt_of_many_lines_is_read_quickly() -> None:
    body = read("steps:\n- |\n" + "  a line of ${x}\n" * 50_000 + "- b\n", given={"x": "y"})
    assert body["steps"][0]["prompt"] == "a line of y\n" * 50_000


def test_anchors_and_merges_work() -> None:
    body = read(
        "steps:\n- &base\n  prompt: a\n  agent: codex\n  checks: &c [make]\n"
        "- <<: *base\n  prompt: b\n- {prompt: c, checks: *c}\n- <<: [{name: n}, *base]\n"
    )
    first, second, third, fourth = body["steps"]
    assert second == {**first, "prompt": "b"}
    assert third == {"prompt": "c", "checks": [{"command": "make"}]}
    assert fourth == {**first, "name": "n"}


def test_the_command_line_stays_light() -> None:
    probe = "import sys, kapelle.cli.pattern_file; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"pydantic", "yaml", "tomlkit", "rich", "starlette", "sqlalchemy"}


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
        "5: step 2: check 1: a command check needs a command; a built-in check takes none",
    ]),
    ("title: x\n", ["1: steps is missing"]),
    ("title: x\nsteps:\n", ["2: steps must be a list, not nothing"]),
    ("title: x\nsteps: do it\n", ["2: steps must be a list, not 'do it'"]),
    ("title: x\nsteps: {a: b}\n", ["2: steps must be a list, not a mapping"]),
    ("title: x\nsteps:\n\n- a\n", ["2: steps must have at least 2 items, not 1"]),
    ("steps:\n" + "- a\n" * 21, ["1: steps must have at most 20 items, not 21"]),
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
     ["1: env: 'a\\nb' contains a character that is not allowed"]),
    ("title: \"a\\nb\"\n" + STEPS, ["1: title contains a character that is not allowed"]),
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
     ["3: env: B C contains a character that is not allowed"]),
    ("steps:\n- a\n- prompt: b\n  checks: make test\n",
     ["4: step 2: checks must be a list, not 'make test'"]),
    ("steps:\n- a\n- prompt: b\n  timeout: soon\n", ["4: timeout is not a duration: 'soon'"]),
    ("steps:\n- a\n- prompt: b\n  timeout: 2y\n", ["4: timeout is not a duration: '2y'"]),
    ("steps:\n- a\n- prompt: b\n  timeout: [1]\n",
     ["4: step 2: timeout_s must be a number, not a list"]),
    ("max_seconds: 0\n" + STEPS,
     ["1: max_seconds must be more than 0 and at most a year, not '0'"]),
    ("steps:\n- a\n- prompt: b\n  timeout: 1m\n  timeout_s: 5\n",
     ["4: timeout and timeout_s mean the same"]),
    ("- a\n- b\n", ["1: a pipeline is a mapping with steps, not a list"]),
    ("\n# nothing\n", ["1: a pipeline is a mapping with steps, not nothing"]),
    ("", ["1: a pipeline is a mapping with steps, not nothing"]),
    ("\nhello\n", ["2: a pipeline is a mapping with steps, not text"]),
    ("title: a\nagent: b\ntitle: c\n", ["3: the key 'title' stands on line 1 already"]),
    ("steps:\n- a\n- prompt: a\n  name: b\n  prompt: c\n",
     ["5: the key 'prompt' stands on line 3 already"]),
    ("title: x\n" + STEPS + "---\ntitle: y\n",
     ["3: this is not valid YAML: found another document"]),
    ("title: x\n? [a]\n: b\n", ["2: a key must be text, not a list"]),
    ("title: x\n? \n: b\n", ["2: a key must be text, not nothing"]),
    ("title: x\nsteps: !!python/object/apply:os.system [a, b]\n",
     ["2: this is not valid YAML: could not determine a constructor for the tag "
      "'tag:yaml.org,2002:python/object/apply:os.system'"]),
    ("title: !secret x\n" + STEPS, [
        "1: this is not valid YAML: could not determine a constructor for the tag '!secret'",
    ]),
    ("title: x\nsteps: &s [a, *s]\n", [" this is nested too deep"]),
    ("title: x\nsteps: [a, *s]\n", ["2: this is not valid YAML: found undefined alias 's'"]),
    ("title: x\nsteps:\n- <<: text\n", [
        "3: this is not valid YAML: expected a mapping or list of mappings for merging, "
        "but found scalar",
    ]),
    ("title: x\nsteps: " + "[" * 1500 + "]" * 1500, [" this is nested too deep"]),
    ("x: &a [" + "x," * 99 + "]\ny: &b [" + "*a," * 90 + "]\nz: [" + "*b," * 99 + "]\n",
     ["1: the file grows to more than 10,000 values"]),
    ("x: y\nsteps:\n" + "- a\n" * 10_001, ["10000: the file grows to more than 10,000 values"]),
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
    ('title = "x"\nagent = y\n', [" this is not valid TOML: Invalid value (at line 2, column 9)"]),
    ('title = "x\n', [" this is not valid TOML: Illegal character '\\n' (at line 1, column 11)"]),
    ('title = "x"\n\nsteps = ["a",\n',
     [" this is not valid TOML: Invalid value (at end of document)"]),
    ('title = "x"\ntitle = "y"\n',
     [" this is not valid TOML: Cannot overwrite a value (at line 2, column 12)"]),
    ('titel = "x"\nsteps = ["a", "b"]\n', [" there is no key 'titel'; did you mean title?"]),
    ('[[steps]]\nprompt = "a"\n\n[[steps]]\n# x\npromt = "b"\n', [
        " step 2: prompt is missing", " step 2: there is no key 'promt'; did you mean prompt?",
    ]),
    ('[[steps]]\nprompt = "a"\n', [" steps must have at least 2 items, not 1"]),
    ('# x\nsteps = [\n  "a",\n\n  " ",\n]\n', [" step 2: prompt: the prompt is empty"]),
    ('steps = ["a", {prompt = "b", checks = [\n"x",\n{command = "y",  nam = 1}\n]}]\n',
     [" step 2: check 2: there is no key 'nam'; did you mean name?"]),
    ('[[steps]]\nprompt = "a"\n[[steps]]\nprompt = """\n[x]\n${v}\n"""\n',
     [" the variable v is not defined"]),
    ("[[steps]]\nprompt = '''\n[[steps]]\na = 1\n'''\n[[steps]]\n\"prompt\" = 'b'\n"
     "priority = 'x'\n",
     [" step 2: priority must be 'P0', 'P1' or 'P2', not 'x'"]),
    ('[[steps]]\nprompt = "a"\n[[steps]]\nprompt = "b"\n[[steps.checks]]\ncommand = "x"\n'
     '[[steps.checks]]\ncommand = "y"\ntimeout = "z"\n', [" timeout is not a duration: 'z'"]),
    ('[[steps]]\nprompt = "a"\n[[steps]]\nprompt = "b"\n[steps.env]\nA = "x"\n',
     [" step 2: there is no key 'env'"]),
    ('steps = ["a", "b"]\nenv.A = "x"\nenv."B C" = "y"\n',
     [" env: B C contains a character that is not allowed"]),
    ('steps = ["a", "b"]\n[env]\nA = ["x"]\n', [" env: A must be text, not a list"]),
    ("x = " + "[" * 1500 + "]" * 1500, [" this is nested too deep"]),
    ('variables = "x"\nsteps = ["a", "b"]\n',
     [" variables must be a mapping of names to texts, not text"]),
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


@given_any(
    st.text(alphabet="-:[]{}&*!|>'\"#%@ \t\n,?a1~<\\", max_size=60),
    st.sampled_from(["yaml", "toml"]),
)
def test_no_text_breaks_the_reading(text: str, suffix: str) -> None:
    try:
        read(text, f"any.{suffix}")
    except InvalidInput as error:
        message = error.message
    else:
        message = "any."
    assert message.startswith("any.")


def test_a_variable_as_other_tools_write_it_is_told_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "steps: ['Design {{feature}}', 'see ${{ github.ref }}']"
    mistakes = problems(text, given={"feature": "x"})
    assert "1: {{feature}} is no variable" in mistakes
    read("steps: ['Design {{feature}}', 'see $${{ github.ref }}']")
    told = capsys.readouterr().err
    assert ("{{feature}} goes to the agent as it is" in told, "github" in told) == (True, False)
