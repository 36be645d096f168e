"""The options of `kapelle start`, made of the schema of a pattern."""

import io
import json
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from pydantic import Field
from tests.unit.cli.test_cli_commands import command_of

from kapelle.cli.command import usage_error
from kapelle.cli.commands import load
from kapelle.cli.spec_options import options_of
from kapelle.cli.start import pattern_help, start_spec
from kapelle.domain.errors import InvalidInput
from kapelle.patterns import registry
from kapelle.patterns.loop import LoopSpec
from kapelle.patterns.spec import PatternSpec


class SampleSpec(PatternSpec):
    names: list[str] = Field(description="whom to greet")
    years: list[int] = Field([])
    polite: bool = True
    loud: bool = Field(False, description="in capitals")
    times: int | None = None
    pause_s: float = 0
    mood: Literal["good", "bad"] = "good"
    extra: dict[str, int] = Field({})
    labels: dict[str, str] = Field({})
    anything: Any = None
    since: str = Field("", alias="from")
    dashed: str = Field("", alias="a-b")


SAMPLE = {
    "name": "sample", "summary": "Greets.", "origin": "/here.py",
    "spec_schema": SampleSpec.model_json_schema(),
}  # fmt: skip


def built_in(name: str) -> dict[str, Any]:
    (found,) = [item for item in registry.built_in() if item.name == name]
    return {
        "name": name, "summary": "Does.", "origin": "kapelle",
        "spec_schema": found.spec.model_json_schema(),
    }  # fmt: skip


def spec_of(*arguments: str, pattern: dict[str, Any] = SAMPLE) -> dict[str, Any]:
    return start_spec(load("start").make_context("start", list(arguments)).params, pattern)


def given(*words: str) -> dict[str, Any]:
    """What these words ask for besides what is always there."""
    return {
        key: value
        for key, value in spec_of("sample", "--names", "N", *words).items()
        if key != "directory" and (key, value) != ("names", ["N"])
    }


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        (["--names", "Ann", "--names=Bo"], {"names": ["N", "Ann", "Bo"]}),
        (["--years", "1", "--years", "-2"], {"years": [1, -2]}),
        (["--loud"], {"loud": True}),
        (["--no-loud"], {"loud": False}),
        (["--no-polite"], {"polite": False}),
        (["--times", "3"], {"times": 3}),
        (["--times", "-3"], {"times": -3}),
        (["--pause-s", "1.5"], {"pause_s": 1.5}),
        (["--pause-s", "2m"], {"pause_s": 120}),
        (["--pause-s", "-1"], {"pause_s": -1}),
        (["--mood", "bad"], {"mood": "bad"}),
        (["--extra", '{"a": 1}'], {"extra": {"a": 1}}),
        (["--labels", "a=1", "--labels", '{"b": "2"}'], {"labels": {"a": "1", "b": "2"}}),
        (["--anything", "[1, 2]"], {"anything": [1, 2]}),
        (["--anything", "text"], {"anything": "text"}),
        (["--from", "x", "--a-b", "y"], {"from": "x", "a-b": "y"}),
        (["--max-seconds", "1h"], {"max_seconds": 3600}),
        (["--budget-usd", "2"], {"budget_usd": 2}),
        (["--workspace", "in_place"], {"workspace": "in_place"}),
    ],
)
def test_keys_are_options(words: list[str], spec: dict[str, Any]) -> None:
    assert given(*words) == spec


def refused(*words: str) -> None:
    try:
        given(*words)
    except typer.TyperException as error:
        raise usage_error(error) from None


@pytest.mark.parametrize(
    ("words", "problem", "instead"),
    [
        (["--nmaes", "x"], "No such option: --nmaes. Did you mean --names", "sample --help"),
        (["--xyzzy", "x"], "No such option: --xyzzy.", "See `kapelle start sample --help`."),
        (["--times", "x"], "--times cannot be 'x'", "a whole number"),
        (["--pause-s", "soon"], "not a duration", "10m"),
        (["--loud=maybe"], "does not take a value", "--loud alone, or --no-loud."),
        (["--mood", "odd"], "cannot be 'odd'", "good or bad"),
        (["--extra", "{"], "is not JSON", ""),
        (["--labels", "a"], "not a pair", "KEY=VALUE"),
        (["--labels", '{"a": 1}'], "texts only", "NAME=VALUE"),
        (["--times"], "needs a value", "--times NUMBER"),
        (["stray"], "No further argument is expected: stray", "quotation marks"),
    ],
)
def test_what_fits_no_key_gets_a_sentence(words: list[str], problem: str, instead: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        refused(*words)
    assert problem in caught.value.message
    assert instead in (caught.value.hint or "")


def test_shared_options_stand_beside_those_of_the_pattern(tmp_path: Path) -> None:
    spec = spec_of("sample", "-C", str(tmp_path), "--names", "Ann", "-a", "claude", "--budget", "2")
    assert spec == {
        "directory": str(tmp_path), "names": ["Ann"], "agent": "claude", "budget_usd": 2,
    }  # fmt: skip
    SampleSpec.model_validate(spec)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("spec.json", '{"names": ["File"], "times": 2}'),
        ("spec.yaml", "names: [File]\ntimes: 2\n"),
        ("spec.toml", 'names = ["File"]\ntimes = 2\n'),
    ],
)
def test_options_go_before_what_a_file_says(tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_text(content, encoding="utf-8")
    spec = spec_of("sample", "-C", str(tmp_path), "--spec", str(file), "--times", "5")
    assert spec == {"directory": str(tmp_path), "names": ["File"], "times": 5}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("spec.txt", "", "no kind that is known"),
        ("spec.json", "{", "is not JSON"),
        ("spec.yaml", "a: [", "is not YAML"),
        ("spec.toml", "a = ", "is not TOML"),
        ("spec.json", "[1]", "holds no fields"),
        ("spec.yaml", "1: 2", "holds no fields"),
        ("spec.json", None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_specification(
    tmp_path: Path, name: str, content: str | None, problem: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidInput, match=problem):
        spec_of("sample", "--spec", str(file))


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidInput, match="sample needs --names"):
        spec_of("sample")


def test_the_help_of_a_pattern() -> None:
    text = pattern_help({**SAMPLE, "summary": "Gre\x1b[31mets."})
    assert text.startswith("Usage: kapelle start sample [OPTIONS]")
    assert "\x1b" not in text
    assert "--names TEXT            Whom to greet (required); repeatable." in text
    assert "--mood good|bad         (default good)." in text
    assert "--loud / --no-loud      In capitals." in text
    assert "--extra JSON" in text
    assert "--labels NAME=VALUE" in text
    assert "--budget-usd" not in text


@pytest.mark.parametrize("model", [pattern.spec for pattern in registry.built_in()])
def test_every_key_of_the_built_in_patterns_is_an_option(model: type[PatternSpec]) -> None:
    options = options_of(model.model_json_schema())
    assert {option.key for option in options} == set(model.model_fields)
    assert all(option.kind != "any" for option in options)


def test_a_loop_by_its_keys() -> None:
    loop = {**SAMPLE, "name": "loop", "spec_schema": LoopSpec.model_json_schema()}
    words = ["--prompt", "x", "--until", "make test", "--until", '{"command": "b", "timeout_s": 5}']
    spec = spec_of("loop", *words, "--steps", '{"prompt": "y"}', pattern=loop)
    assert spec.pop("steps") == [{"prompt": "y"}]
    found = LoopSpec.model_validate(spec)
    assert [check.command for check in found.until] == ["make test", "b"]
    assert json.dumps(spec)


@pytest.mark.parametrize("option", ["--candidate", "--candidates"])
def test_a_candidate_may_be_an_object(option: str) -> None:
    typed = ["--prompt", "x", option, '{"agent": "a", "model": "m"}', option, "b,c:m"]
    spec = spec_of("best-of", *typed, pattern=built_in("best-of"))
    assert spec["candidates"] == [{"agent": "a", "model": "m"}, "b", "c:m"]


def test_a_schema_may_be_typed(tmp_path: Path) -> None:
    schema = '{"$id": "http://x//y", "type": "object"}'
    (tmp_path / "schema.json").write_text(schema, encoding="utf-8")
    for typed in (schema, str(tmp_path / "schema.json")):
        spec = spec_of("loop", "--eval-schema", typed, pattern=built_in("loop"))
        assert spec["eval_schema"] == json.loads(schema)
    with pytest.raises(InvalidInput, match="--eval-schema is not JSON"):
        spec_of("loop", "--eval-schema", "{type", pattern=built_in("loop"))


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["loop", "--prompt", "-"], {"prompt": "from stdin"}),
        (["loop", "--steps", "-", "--steps", '{"prompt": "b"}'],
         {"steps": ["from stdin", {"prompt": "b"}]}),
        (["pipeline", "--steps", "a", "--steps", "-"], {"steps": ["a", "from stdin"]}),
        (["team", "--goal", "-"], {"goal": "from stdin"}),
    ],
)  # fmt: skip
def test_a_dash_reads_a_prompt_from_stdin(
    typed: list[str], found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"from stdin"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    spec = spec_of(*typed, pattern=built_in(typed[0]))
    assert {key: value for key, value in spec.items() if key != "directory"} == found


def test_defaults_are_shown_by_both_commands() -> None:
    own = " ".join(pattern_help(built_in("loop")).split())
    command = " ".join(command_of("loop")[1].split())
    for shown in ("any number (default 10)", "for never (default 3)", "may take (default 10m)"):
        assert shown in own
        assert shown in command
    assert "Instead of a prompt: the steps" in own
    assert "A further step of every iteration" in command
