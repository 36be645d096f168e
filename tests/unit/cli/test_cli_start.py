"""The options of `kapelle start`, made of the schema of a pattern."""

import io
import json
from pathlib import Path
from typing import Any, Literal

import click
import pytest
from pydantic import Field

from kapelle.cli import start
from kapelle.cli.spec_options import options_of
from kapelle.cli.start import find_starter
from kapelle.cli.usage_errors import translate
from kapelle.cli.work_commands import WorkStarter
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
    "name": "sample", "summary": "Gre\x1b[31mets.", "origin": "/here.py", "trusted": True,
    "spec_schema": SampleSpec.model_json_schema(),
}  # fmt: skip


class _Daemon:
    """Knows one pattern that is not built in."""

    def get(self, path: str, query: dict[str, Any]) -> list[dict[str, Any]]:
        return [SAMPLE]


@pytest.fixture(autouse=True)
def daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "DaemonConnection", _Daemon)


def made_of(*arguments: str) -> tuple[WorkStarter, Any]:
    starter, words = find_starter("start", list(arguments))
    command = starter.build_command()
    return starter, command.make_context(f"kapelle start {starter.name}", words)


def spec_of(*arguments: str) -> dict[str, Any]:
    starter, context = made_of(*arguments)
    return starter.spec(context.params)


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
        (["--budget", "2"], {"budget_usd": 2}),
        (["--in-place"], {"workspace": "in_place"}),
    ],
)
def test_keys_are_options(words: list[str], spec: dict[str, Any]) -> None:
    assert given(*words) == spec


def refused(*words: str) -> None:
    try:
        given(*words)
    except click.UsageError as error:
        raise translate(error) from None


@pytest.mark.parametrize(
    ("words", "problem", "instead"),
    [
        (["--nmaes", "x"], "No such option: --nmaes.", "Did you mean --names"),
        (["--xyzzy", "x"], "No such option: --xyzzy.", "See `kapelle start sample --help`."),
        (["--times", "x"], "--times cannot be 'x'", "a whole number"),
        (["--pause-s", "soon"], "not a duration", "10m"),
        (["--polite=maybe"], "does not take a value", "--polite alone, or --no-polite."),
        (["--mood", "odd"], "cannot be 'odd'", "good or bad"),
        (["--extra", "{"], "is not JSON", ""),
        (["--labels", "a"], "not a pair", "NAME=VALUE"),
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
        ("spec.txt", "", "no known type of file"),
        ("spec.json", "{", "spec.json:1: this is not valid JSON"),
        ("spec.yaml", "a: [", "spec.yaml:1: this is not valid YAML"),
        ("spec.toml", "a = ", "this is not valid TOML"),
        ("spec.json", "[1]", "the file has no fields"),
        ("spec.yaml", "1: 2", "the file has no fields"),
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


def test_the_help_of_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit):
        made_of("sample", "--help")
    text = capsys.readouterr().out
    assert "\nUsage: kapelle start sample [OPTIONS]" in text
    assert "\x1b" not in text
    words = " ".join(text.split())
    assert "--names TEXT Whom to greet. [required; repeatable]" in words
    assert "--mood good|bad [default: good]" in words
    assert "--polite / --no-polite [default: on]" in words
    assert "--loud In capitals." in words
    assert "--extra JSON" in words
    assert "--labels NAME=VALUE" in words
    assert "--budget USD" in words


@pytest.mark.parametrize("model", [pattern.spec for pattern in registry.load_built_in()])
def test_every_key_of_the_built_in_patterns_is_an_option(model: type[PatternSpec]) -> None:
    options = options_of(model.model_json_schema())
    assert {option.key for option in options} == set(model.model_fields)
    assert all(option.kind != "any" for option in options)


def test_a_built_in_pattern_is_started_as_by_its_own_command() -> None:
    typed = ["faster", "--eval", "./bench", "--minimize", "-a", "claude"]
    spec = spec_of("loop", *typed)
    found = LoopSpec.model_validate(spec)
    assert (found.prompt, found.direction, found.agent) == ("faster", "minimize", "claude")


def test_a_candidate_may_be_an_object() -> None:
    typed = ["x", "--candidate", '{"agent": "a", "model": "m"}', "--candidate", "b,c:m"]
    spec = spec_of("best-of", *typed)
    assert spec["candidates"] == [{"agent": "a", "model": "m"}, "b", "c:m"]


def test_a_schema_may_be_typed(tmp_path: Path) -> None:
    schema = '{"$id": "http://x//y", "type": "object"}'
    (tmp_path / "schema.json").write_text(schema, encoding="utf-8")
    for typed in (schema, str(tmp_path / "schema.json")):
        assert spec_of("loop", "x", "--eval-schema", typed)["eval_schema"] == json.loads(schema)
    with pytest.raises(InvalidInput, match="--eval-schema is not JSON"):
        spec_of("loop", "x", "--eval-schema", "{type")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["loop", "-"], {"prompt": "from stdin"}),
        (["pipeline", "-", "--step", '{"prompt": "b"}'],
         {"steps": ["from stdin", {"prompt": "b"}]}),
        (["team", "-"], {"goal": "from stdin"}),
    ],
)  # fmt: skip
def test_a_dash_reads_a_prompt_from_stdin(
    typed: list[str], found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"from stdin"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    spec = spec_of(*typed)
    assert {key: value for key, value in spec.items() if key != "directory"} == found
