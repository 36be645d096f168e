"""Which patterns are found, and whose files are never executed."""

import importlib.util
import os
import py_compile
from collections.abc import Callable
from pathlib import Path

import pytest

from kapelle.domain.errors import InvalidInput, NotFound, NotTrusted
from kapelle.engine.runs import patterns
from kapelle.home import Home
from kapelle.patterns import registry
from kapelle.settings.trust import find_executable

SOMEBODY = 12345
OWN = """
from pathlib import Path
from kapelle.patterns import PatternSpec, pattern

Path(__file__).with_suffix(".ran").touch()

@pattern("{name}", spec=PatternSpec)
async def {name}(ctx, spec):
    return None
"""

only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


def write(top: Path, name: str = "own", source: str = OWN) -> Path:
    path = top / ".kapelle" / "patterns" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source.replace("{name}", name), encoding="utf-8")
    return path


def available(home: Home, directory: Path, *, trusted: bool = False) -> patterns.Listed:
    return patterns.available(home, find_executable(home, directory), trusted)


def get(name: str, home: Home, directory: Path, *, trusted: bool = False) -> registry.Pattern:
    return patterns.get(name, home, find_executable(home, directory), trusted)


def found(tmp_path: Path, directory: Path) -> tuple[set[str], list[str]]:
    """The names of patterns of one's own, and what is wrong with others."""
    usable, problems = available(Home(tmp_path / "home"), directory, trusted=True)
    own = {item.name for item in usable if item.origin != "Kapelle"}
    return own, [problem.message for problem in problems]


def the_file(path: Path) -> Path:
    return path


def its_directory(path: Path) -> Path:
    return path.parent


def the_directory_around(path: Path) -> Path:
    return path.parents[1]


@only_root
@pytest.mark.parametrize("part", [the_file, its_directory, the_directory_around])
def test_what_somebody_else_put_into_a_shared_parent_is_not_executed(
    tmp_path: Path, part: Callable[[Path], Path]
) -> None:
    path = write(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    os.chown(part(path), SOMEBODY, SOMEBODY)
    refusal = f"{part(path)} belongs to another user; remove it or change its owner."
    assert found(tmp_path, work) == (set(), [refusal])
    with pytest.raises(InvalidInput, match="another user"):
        get("own", Home(tmp_path / "home"), work, trusted=True)
    assert not path.with_suffix(".ran").exists()
    assert get("loop", Home(tmp_path / "home"), work, trusted=True).name == "loop"


@only_root
def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere")
    shared = tmp_path / "shared"
    (shared / "work").mkdir(parents=True)
    link = shared / ".kapelle"
    link.symlink_to(elsewhere.parents[1])
    os.chown(link, SOMEBODY, SOMEBODY, follow_symlinks=False)
    names, problems = found(tmp_path, shared / "work")
    assert (names, len(problems)) == (set(), 1)
    assert not elsewhere.with_suffix(".ran").exists()


@only_root
def test_files_beside_somebody_elses_and_those_of_the_directorys_owner_are_used(
    tmp_path: Path,
) -> None:
    os.chown(write(tmp_path, "other"), SOMEBODY, SOMEBODY)
    write(tmp_path, "mine")
    names, problems = found(tmp_path, tmp_path)
    assert (names, len(problems)) == ({"mine"}, 1)
    os.chown(tmp_path, SOMEBODY, SOMEBODY)
    assert found(tmp_path, tmp_path) == ({"mine", "other"}, [])


def test_what_a_file_imports_or_names_twice_is_no_pattern_of_its_own(tmp_path: Path) -> None:
    more = "\nfrom kapelle.patterns.loop import loop\nfrom kapelle.patterns import *\nagain = own\n"
    write(tmp_path, "own", OWN + more)
    assert found(tmp_path, tmp_path) == ({"own"}, [])


def test_a_home_called_dot_kapelle_is_read_once(tmp_path: Path) -> None:
    write(tmp_path)
    usable, problems = available(Home(tmp_path / ".kapelle"), tmp_path, trusted=True)
    assert "own" in {item.name for item in usable}
    assert problems == []


def test_a_directory_that_is_gone_for_a_while_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    assert found(tmp_path, tmp_path / "gone" / "deep") == ({"own"}, [])


def test_a_link_to_nothing_as_editors_make_them_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.with_name(".#own.py").symlink_to("me@host.1")
    assert found(tmp_path, tmp_path) == ({"own"}, [])


@pytest.mark.parametrize(
    "field",
    [
        "act: Callable[[], None]",
        "act: int = Field(1, json_schema_extra={'x': object()})",
    ],
)
def test_a_spec_without_a_schema_is_told_of(tmp_path: Path, field: str) -> None:
    source = f"""
from collections.abc import Callable
from pydantic import Field
from kapelle.patterns import PatternSpec, pattern

class Spec(PatternSpec):
    {field}

@pattern("own", spec=Spec)
async def own(ctx, spec):
    return None
"""
    path = write(tmp_path, "own", source)
    with pytest.raises(InvalidInput, match=r"pattern 'own' has no JSON schema: .+") as refused:
        get("own", Home(tmp_path / "home"), tmp_path, trusted=True)
    assert refused.value.message.startswith(f"{path}: ")
    assert found(tmp_path, tmp_path) == (set(), [refused.value.message])


def test_what_is_built_in_stands_in_the_file_of_its_name(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    shipped = registry.load_built_in()
    assert {"best-of", "loop", "pipeline", "team"} <= {item.name for item in shipped}
    for item in shipped:
        assert item.spec.__module__ == f"kapelle.patterns.{item.name.replace('-', '_')}"
        assert get(item.name, home, tmp_path, trusted=True) == item
    with pytest.raises(NotFound, match="There is no pattern 'spec'; known are: batch, best-of,"):
        get("spec", home, tmp_path, trusted=True)


def test_what_is_not_trusted_is_read_and_not_executed(tmp_path: Path) -> None:
    path = write(tmp_path)
    usable, problems = available(Home(tmp_path / "home"), tmp_path)
    [item] = [item for item in usable if not item.trusted]
    assert (item.name, item.origin, item.spec_schema, problems) == ("own", str(path), {}, [])
    with pytest.raises(NotTrusted, match="is not trusted, so the pattern 'own' cannot be used"):
        get("own", Home(tmp_path / "home"), tmp_path)
    assert not path.with_suffix(".ran").exists()


def test_compiled_code_beside_a_file_is_not_taken_for_it(tmp_path: Path) -> None:
    """An importer would believe code that says it need not be compared with its source."""
    path = write(tmp_path)
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'harm')!r}, 'w').close()\n", encoding="utf-8")
    cached = Path(importlib.util.cache_from_source(str(path)))
    cached.parent.mkdir()
    how = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(evil), cfile=str(cached), invalidation_mode=how)
    assert found(tmp_path, tmp_path) == ({"own"}, [])
    assert get("own", Home(tmp_path / "home"), tmp_path, trusted=True).name == "own"
    assert path.with_suffix(".ran").exists()
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("text", ["(" * 300, "x = " + "-" * 50_000 + "1", "\0", '"\\ud800"'])
def test_a_file_that_is_hard_to_read_is_told_of_at_most(tmp_path: Path, text: str) -> None:
    write(tmp_path, "own", text + "\n")
    usable, problems = available(Home(tmp_path / "home"), tmp_path)
    assert all(item.trusted for item in usable)
    assert len(problems) <= 1


def test_what_is_executed_is_the_text_that_was_trusted(tmp_path: Path) -> None:
    """Whatever is written there between the look and the import, and whatever encoding it names."""
    home = Home(tmp_path / "home")
    path = write(tmp_path, "own", "# coding: utf-7\n" + OWN)
    seen = find_executable(home, tmp_path)
    harm = tmp_path / "harm"
    write(tmp_path, "own", OWN + f"open({str(harm)!r}, 'w').close()\n")
    assert patterns.get("own", home, seen, is_trusted=True).name == "own"
    assert path.with_suffix(".ran").exists()
    assert not harm.exists()
    hidden = f"+AAo-open({str(harm)!r}, +ACI-w+ACI-)\n"
    write(tmp_path, "own", "# coding: utf-7\n# " + hidden + OWN)
    assert get("own", home, tmp_path, trusted=True).name == "own"
    assert not harm.exists()


def test_more_than_anybody_would_read_is_refused(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, f"own{number}", OWN + "# " + "x" * 900_000)
    with pytest.raises(InvalidInput, match="holds more than 2 MB that could be executed"):
        find_executable(Home(tmp_path / "home"), tmp_path)
    for number in range(250):
        write(tmp_path, f"own{number}")
    with pytest.raises(InvalidInput, match="has more than 200 files"):
        find_executable(Home(tmp_path / "home"), tmp_path)
