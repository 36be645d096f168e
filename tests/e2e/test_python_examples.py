"""The examples of docs/python.md: each passes mypy --strict, and does what it says."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.support.ensembles import YES, answer, rule
from tests.e2e.support.instance import Instance
from tests.e2e.support.page_examples import examples_of, require_says, require_well_typed
from tests.e2e.support.repositories import make_repository

EXAMPLES = examples_of("python.md")

PARTS = "\n".join(
    [
        rule(
            "You prepare",
            answer({"success_criteria": ["it is there"], "questions": ["For whom?"]}),
        ),
        rule(
            "You plan",
            answer({"subgoals": [{"id": "a", "title": "the manual", "task": "PART: write"}]}),
        ),
        rule("You review", answer(YES)),
        rule(
            "^PART",
            {"write": "manual.md", "content": "Read this.\n"},
            {"write": "fixed", "content": "yes"},
            {"result": "Written."},
        ),
        rule("Explain", {"result": "It is simple."}),
        rule("Tidy up", {"say": "Tidying."}, {"result": "All is tidy."}),
        rule("", {"write": "fixed", "content": "yes"}, {"result": "Mended."}),
    ]
)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Instance, Path]]:
    """A daemon whose default agent plays a part for each example, and a repository to work on."""
    directory = tmp_path_factory.mktemp("examples")
    makefile = "test:\n\ttest -f fixed\n"
    repository = make_repository(directory / "repository", {"Makefile": makefile})
    instance = Instance(directory / "home")
    instance.home.root.mkdir()
    playbook = directory / "playbook.toml"
    playbook.write_text(PARTS, encoding="utf-8")
    settings = ['default_agent = "rehearsal"', "[agents.rehearsal]"]
    settings.append(f"playbook = {json.dumps(str(playbook))}")
    instance.home.config.write_text("\n".join(settings), encoding="utf-8")
    instance.start()
    try:
        yield instance, repository
    finally:
        instance.destroy()


def test_every_example_is_well_typed(tmp_path: Path) -> None:
    """Those of the library too, for much of what mypy does is the same for both."""
    library = examples_of("library.md")
    assert len(EXAMPLES) >= 7
    assert len(library) >= 9
    require_well_typed([*EXAMPLES, *library], tmp_path)


SAYS = [
    ["completed Mended.", "make test passed", "fixed"],
    ["Explain the parser completed It is simple.", "Explain the tests completed"],
    ["completed", "task", "all 2 steps are done"],
    ["completed the goal is reached"],
    ["task.created", "task.completed", "text Tidying.", "result All is tidy."],
    ["Update the dependencies task", "Make the tests pass loop"],
    ["There is no agent 'nobody'", "not_found"],
]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_runs(ensemble: tuple[Instance, Path], tmp_path: Path, number: int) -> None:
    instance, repository = ensemble
    path = tmp_path / "example.py"
    require_says(EXAMPLES[number], path, SAYS[number], cwd=repository, env=instance.env)
