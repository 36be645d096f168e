"""A pipeline is read from a file in YAML or TOML, as people write them."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.cli.files.pipelines import problems, read

from kapelle.cli.files.pipeline import read_pipeline
from kapelle.domain.errors import InvalidInput
from kapelle.domain.run_specs import PipelineSpec, StepSpec

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
    body = read_pipeline(Path("-"), {}, {})
    assert body == {
        "steps": [{"prompt": "a"}, {"prompt": "b"}],
        "directory": str(tmp_path / "sub"),
    }
    text = b"steps:\n  - a\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="utf-8"))
    with pytest.raises(InvalidInput, match=r"^<stdin>:1: steps must have at least 2"):
        read_pipeline(Path("-"), {}, {})


def test_the_examples_of_the_documentation_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = (Path(__file__).parents[4] / "docs" / "pipeline.md").read_text(encoding="utf-8")
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
    page = (Path(__file__).parents[4] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    tables = [line.split("|")[1] for line in page.split("\n") if line.startswith("| `")]
    documented = {name for cell in tables for name in re.findall(r"`(\w+)`", cell)}
    keys = {*PipelineSpec.model_fields, *StepSpec.model_fields}
    assert keys - {"timeout_s", "task_timeout_s"} <= documented


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
        "none.yaml": "none.yaml:1: there is no such file",
        "d.yaml": "d.yaml:1: this is a directory",
        "latin.yaml": "latin.yaml:2: this is not UTF-8 text",
        "large.yaml": "large.yaml:1: this is larger than 1 MB",
        "p.txt": "p.txt:1: its name does not tell what kind of file it is",
        "a\0b.yaml": "a\0b.yaml:1: this cannot be read: embedded null byte",
    }
    for name, words in expected.items():
        with pytest.raises(InvalidInput) as caught:
            read_pipeline(Path(name), {}, {})
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
    probe = "import sys, kapelle.cli.files.pipeline; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"pydantic", "yaml", "tomlkit", "rich", "fastapi", "sqlalchemy"}
