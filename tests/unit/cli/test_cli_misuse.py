"""A command line with mistakes: what was wrong, and what to type instead."""

from pathlib import Path

import pytest
from tests.unit.cli.program import find_options

from kapelle.cli.main import run_command
from kapelle.domain.errors import KapelleError

# What each command needs before and behind an option, so that only this is wrong.
RIGHT: dict[str, tuple[list[str], list[str]]] = {
    "run": (["x"], []),
    "pipeline": (["x", "y"], []),
    "loop": (["x", "--until", "true"], []),
    "team": (["x"], []),
    "best-of": (["x"], []),
    "schedule create": (["--at", "2h"], ["run", "x"]),
}


@pytest.fixture(autouse=True)
def _nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not refused at once ends at a daemon that is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAPELLE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("KAPELLE_TOKEN", "t")


def refusal(*arguments: str) -> KapelleError:
    with pytest.raises(KapelleError) as caught:
        run_command(list(arguments))
    assert caught.value.exit_code == 2
    assert caught.value.code in {"invalid_input", "not_found"}, caught.value.message
    assert caught.value.hint
    return caught.value


def test_help_is_a_command_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["help", "team"]) == 0
    assert "\nUsage: kapelle team [OPTIONS]" in capsys.readouterr().out
    assert run_command(["help", "runs", "tail"]) == 0
    assert "\nUsage: kapelle runs tail [OPTIONS]" in capsys.readouterr().out
    assert "'frobnicate'" in refusal("help", "frobnicate").message


def options(name: str) -> list[str]:
    """Every option of a command that takes a value."""
    return [option.opts[0] for option in find_options(name) if not option.is_flag]


@pytest.mark.parametrize("name", RIGHT)
def test_an_option_without_its_value_is_told_what_to_type(name: str) -> None:
    for option in options(name):
        error = refusal(*name.split(), option)
        assert error.message == f"{option} needs a value."
        assert str(error.hint).startswith(f"Write {option} ")
        assert str(error.hint).endswith(f"See `kapelle {name} --help`.")


@pytest.mark.parametrize("name", RIGHT)
def test_an_empty_value_is_refused_before_anything_is_sent(name: str) -> None:
    before, behind = RIGHT[name]
    for option in options(name):
        refusal(*name.split(), *before, option, "", *behind)


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (["loop", "x", "--max-iterations", "-1"], "--max-iterations cannot be '-1'.",
         "Use a whole number: 0 to 1,000,000."),
        (["best-of", "x", "-n", "1.5"], "--count cannot be '1.5'.",
         "Use a whole number: 2 to 20."),
        (["runs", "list", "--limit", "0"], "--limit cannot be '0'.",
         "Use a whole number: 1 or more."),
        (["loop", "x", "--until", "true", "--max-seconds", "2x"],
         "--max-seconds is not a duration: '2x'.", "Write it like 90, 90s, 10m or 2h."),
        (["loop", "x", "--until", "true", "--cooldown", "-1"],
         "--cooldown must be more than 0 and at most a year, not '-1'.",
         "Write it like 90, 90s, 10m or 2h."),
        (["loop", "x", "--eval", "y", "--minimize", "--target", "nan"],
         "--target is not a number: 'nan'.", "Write --target 100"),
        (["loop", "x", "y"], "No further argument is expected: y.", "into quotation marks"),
        (["loop", "x", "--untill", "true"], "No such option: --untill.", "Did you mean --until"),
        (["loop", "x", "--untill", "true"], "No such option", "See `kapelle loop --help`."),
        (["run", "x", "--every", "1h", "--overlap"], "No such option: --overlap.",
         "See `kapelle run --help`."),
        (["run", "x", "--every", "0.5s"],
         "--every must be at least 1s and at most a year, not '0.5s'.", "Write it like 90"),
        (["loop", "x", "--until=true", "--follow=3"], "does not take a value.",
         "Write --follow alone, or --detach."),
        (["tracks", "--track", "a=x", "--track", "a=y"], "--track a is there twice.", "once"),
        (["runs", "status"], "ID is missing.", "Write `kapelle runs status ID`."),
        (["runs", "answer", "run_1"], "TEXT is missing.", "`kapelle runs answer ID|TOKEN TEXT`"),
        (["runs", "pause"], "ID is missing.", "Write `kapelle runs pause ID...`."),
        (["runs", "status", "../x"], "'../x' is not the id of a run.", "`kapelle runs list`"),
        (["runs", "list", "--status", "lost"], "--status cannot be 'lost'.",
         "Use queued, running"),
        (["schedule", "list", "--status", "lost"], "--status cannot be 'lost'.",
         "Use active, paused"),
        (["pipeline", "a", "--step", ""], "The prompt of step 2 is empty.",
         'Write `kapelle pipeline "design it" --step "implement it"'),
        (["loop", "a", "--step", " ", "--until", "true"], "The prompt of step 2 is empty.",
         'Write --step "what to do"'),
        (["loop", "--step", "", "--until", "true"], "The prompt of step 1 is empty.",
         'Write --step "what to do"'),
        (["loop", "", "--until", "true"], "The prompt is empty.", "kapelle loop"),
        (["best-of", ""], "The prompt is empty.", "kapelle best-of"),
        (["team", ""], "The goal is empty.", "kapelle team"),
        (["loop", "x", "--eval-schema", "nowhere"], "cannot be read", "Check its name."),
        (["team", "--goal-file", "nowhere"], "The goal file nowhere cannot be read", "Check its"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_what_to_type(arguments: list[str], said: str, hint: str) -> None:
    error = refusal(*arguments)
    assert said in error.message
    assert hint in str(error.hint)


def test_a_directory_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAPELLE_URL")
    error = refusal("team", "x", "-C", "nowhere")
    assert error.message == "nowhere is not a directory."


def test_no_pause_may_be_written_with_a_unit() -> None:
    with pytest.raises(KapelleError) as caught:
        run_command(["loop", "x", "--until", "true", "--cooldown", "0s"])
    assert caught.value.code == "unavailable"
