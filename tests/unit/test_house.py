"""The house stays in order: budgets, names, walks. What a change makes larger is raised in
pyproject.toml, where everybody sees it."""

import ast
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "kapelle"
HOUSE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["kapelle"]
BUDGETS: dict[str, int] = HOUSE["budgets"]
SMALLEST, LARGEST, SMALL_USER = 35, 600, 60
LONGEST_PATTERN, LONGEST_PLAY = 400, 80
# A package whose modules are looked up by the name of what they hold: each stands for itself.
FOUND_BY_NAME = {"adapters", "patterns"}
STANDING = {"__init__", "__main__"}
GERUND = re.compile(r"(?<!str)(?<!sett)(?<!learn)ings?$")


@cache
def modules() -> dict[str, Path]:
    """Every module by its dotted name, migrations apart."""
    found = (path for path in SOURCE.rglob("*.py") if "migrations" not in path.parts)
    return {_dotted(path): path for path in sorted(found)}


def _dotted(path: Path) -> str:
    parts = ("kapelle", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _package(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first if (SOURCE / first).is_dir() else "kapelle"


@cache
def imports() -> dict[str, set[str]]:
    """For every module, the modules that it imports, also inside functions."""
    return {name: _imported(path) for name, path in modules().items()}


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{item.name}" for item in node.names}
            found |= inner & modules().keys() or {node.module}
    return found & modules().keys()


@pytest.mark.parametrize("package", [*BUDGETS])
def test_a_package_stays_within_its_number_of_modules(package: str) -> None:
    paths = [path for path in modules().values() if _package(path) == package]
    assert len(paths) <= BUDGETS[package], "join some, or raise the budget in pyproject.toml"


def test_every_package_has_a_budget() -> None:
    assert {_package(path) for path in modules().values()} == BUDGETS.keys()


def test_no_module_is_a_crumb_or_a_heap() -> None:
    own = {name: path for name, path in modules().items() if path.stem not in STANDING}
    # What is found by its name may be as short as it is.
    sizes = {n: _lines(p) for n, p in own.items() if p.parent.name not in FOUND_BY_NAME}
    assert [name for name, lines in sizes.items() if lines < SMALLEST] == []
    assert [name for name, lines in sizes.items() if lines > LARGEST] == []


def test_no_module_has_a_single_small_user() -> None:
    """What is short and used in one place of its own package lives in that place."""
    users: dict[str, set[str]] = {name: set() for name in modules()}
    for name, used in imports().items():
        for other in used - {name}:
            users[other].add(name)
    lonely = [
        f"{name} is used by {next(iter(of))} alone"
        for name, of in users.items()
        if len(of) == 1
        and modules()[name].stem not in STANDING
        and _lines(modules()[name]) < SMALL_USER
        and modules()[next(iter(of))].parent == modules()[name].parent
        and modules()[name].parent.name not in FOUND_BY_NAME
    ]
    assert lonely == []


@pytest.mark.parametrize("path", sorted((SOURCE / "patterns").glob("*.py")), ids=lambda p: p.stem)
def test_a_pattern_is_read_in_one_go(path: Path) -> None:
    """A file with its spec, or a part of it; the context is what all of them call."""
    assert _lines(path) <= LONGEST_PATTERN or path.stem == "context"
    for node in _tree(path).body:
        if isinstance(node, ast.AsyncFunctionDef) and _registers(node):
            assert (node.end_lineno or 0) - node.lineno < LONGEST_PLAY


def _registers(node: ast.AsyncFunctionDef) -> bool:
    calls = [one.func for one in node.decorator_list if isinstance(one, ast.Call)]
    return any(isinstance(call, ast.Name) and call.id == "pattern" for call in calls)


def test_every_module_is_named_by_nouns_of_the_glossary() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`[^|]*) \|", glossary, re.MULTILINE)
    words = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}
    used = _words(path for path in modules().values())
    own = _words(path for path in modules().values() if path.parent.name not in FOUND_BY_NAME)
    assert own - words == set(), "explain it in docs/glossary.md, or take a word that is there"
    assert words - used == set(), "the glossary explains words that no module has"


def _words(paths: Iterable[Path]) -> set[str]:
    return {
        word
        for path in paths
        for part in path.relative_to(SOURCE).with_suffix("").parts
        if part not in STANDING
        for word in part.split("_")
    }


def test_no_module_is_named_by_a_gerund() -> None:
    assert [name for name in modules() if GERUND.search(name.rpartition(".")[2])] == []


WALK = re.compile(r"^\d+\. `([\w/.]+)` `(\w+)`", re.MULTILINE)


@pytest.mark.parametrize("subject", ["task", "run"])
def test_the_walk_in_the_architecture_page_is_the_one_in_the_code(subject: str) -> None:
    """Each step is a function in a module, called by the module of a step before it."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = page.split(f"## The walk of a {subject}\n")[1].split("\n## ")[0]
    walks = [steps for part in section.split("\n\n") if (steps := WALK.findall(part))]
    assert len(walks) == 2, "what a request does, and what the daemon does after it"
    for steps in walks:
        known: set[str] = {steps[0][1]}
        for file, function in steps:
            assert function in _defined(SOURCE / file), f"{file} has no {function}"
            assert function in known, f"nothing before it calls {function} of {file}"
            known |= _names(SOURCE / file)


def _defined(path: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(_tree(path)) if isinstance(node, kinds)}


def _names(path: Path) -> set[str]:
    found = {node.id for node in ast.walk(_tree(path)) if isinstance(node, ast.Name)}
    found |= {node.attr for node in ast.walk(_tree(path)) if isinstance(node, ast.Attribute)}
    return found


def test_no_state_is_read_from_the_beginning_of_a_sentence() -> None:
    """A prefix with a space in it is prose: what it says belongs into a field."""
    found = [
        f"{name}:{node.lineno}"
        for name, path in modules().items()
        if name.split(".")[1:2] in (["engine"], ["service"], ["cli"], ["patterns"], ["library"])
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"startswith", "removeprefix"}
        and any(
            isinstance(item, ast.Constant)
            and isinstance(item.value, str)
            and re.search(r"[a-z]{2} [a-z]|: $", item.value)
            and item.value != "Value error, "  # pydantic's own
            for argument in node.args
            for item in ast.walk(argument)
        )
    ]
    assert found == []


# The demo executes the sample repository's own code, which it wrote itself.
OWN_CODE = {"run_tests", "tune"}


def test_every_interpreter_is_started_without_the_current_directory() -> None:
    """`python -m` puts the current directory before all modules: a clone that has a secrets.py
    would be executed. -P and -I keep it out."""
    lists = 0
    unsafe = []
    for name, path in modules().items():
        for function in ast.walk(_tree(path)):
            if isinstance(function, ast.FunctionDef) and function.name in OWN_CODE:
                continue
            for node in _own_nodes(function):
                if not isinstance(node, ast.List) or not node.elts:
                    continue
                if ast.unparse(node.elts[0]) != "sys.executable":
                    continue
                lists += 1
                flag = node.elts[1] if len(node.elts) > 1 else None
                if not isinstance(flag, ast.Constant) or flag.value not in {"-P", "-I"}:
                    unsafe.append(f"{name}:{node.lineno}")
    assert unsafe == []
    assert lists >= 9, "the search finds the places that are known"


def _own_nodes(scope: ast.AST) -> Iterable[ast.AST]:
    """The nodes of a module or function, without those of functions inside it."""
    if not isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += ast.iter_child_nodes(node)


# Uses of the interpreter's path that start nothing: its folder, its name in a sentence, a default
# that another module starts with -I.
NO_START = {
    "kapelle.agents.adapters.openai",
    "kapelle.cli.doctor",
    "kapelle.demo.sandbox",
    "kapelle.runner.runner",
}


def test_the_interpreters_path_is_used_nowhere_else() -> None:
    others = set()
    for name, path in modules().items():
        text = path.read_text(encoding="utf-8")
        listed = len(re.findall(r"\[\s*sys\.executable", text))
        calls = len(re.findall(r"os\.execv\(sys\.executable, ", text))
        if text.count("sys.executable") > listed + calls:
            others.add(name)
    assert others == NO_START


PLAIN_READS = {"read_text", "read_bytes", "readlines", "open"}
LOOKED_AT = ("engine", "service", "workspaces", "runner", "api", "store")
# Reads of what no agent can have put there, or that are safe for the reason given.
SAFE_READS = {
    "engine/runs/mirror.py": "opened for reading and writing, so that a pipe is no seekable file",
    "engine/upkeep.py": "the daemon's own standard error, compared by its inode",
    "runner/identity.py": "/proc",
    "runner/pack.py": "a file that was just made, or a descriptor of open_regular",
    "runner/process_tree.py": "/proc and cgroups",
    "runner/shim/shim.py": "the shim's own log, in its own process",
    "runner/shim/tree.py": "/proc and cgroups",
    "runner/shim/supervisor.py": "cgroups",
    "runner/spawner_client.py": "files of the package",
    "secrets/specs.py": "writes a new file",
    "workspaces/copy.py": "copied after a look at its kind, in a throwaway copy",
    "workspaces/index.py": "an index that git has just written to a private directory",
    "workspaces/worktree.py": "writes a new file",
}


def test_files_that_an_agent_may_have_replaced_are_not_read_plainly() -> None:
    """A pipe or a device stops whoever opens it: use read_own, read_small or open_regular."""
    found = {
        str(path.relative_to(SOURCE))
        for path in [SOURCE / "daemon.py", *modules().values()]
        if path.relative_to(SOURCE).parts[0] in {*LOOKED_AT, "daemon.py", "secrets"}
        and any(map(_reads_plainly, ast.walk(_tree(path))))
    }
    assert found - SAFE_READS.keys() == set()
    assert SAFE_READS.keys() - found == set(), "not needed any more"


def _reads_plainly(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute) or function.attr not in PLAIN_READS:
        return False
    is_of_os = isinstance(function.value, ast.Name) and function.value.id == "os"
    # A method of another kind of object has no mode.
    has_mode = any(isinstance(given, ast.Constant) for given in node.args)
    return not is_of_os and (function.attr != "open" or has_mode)


# Names that several modules define with the same meaning, and the reason.
SHARED_NAMES: dict[str, str] = {}


TYPE_NAME = re.compile(r"_?[A-Z](\w*[a-z])")


def test_a_name_of_a_class_or_type_has_one_meaning() -> None:
    """No class or type alias of the source shares its name with another one."""
    places: dict[str, list[str]] = {}
    for module, path in modules().items():
        for name in _type_names(_tree(path)):
            places.setdefault(name, []).append(module)
    repeated = {name: where for name, where in places.items() if len(where) > 1}
    assert {n: where for n, where in repeated.items() if n not in SHARED_NAMES} == {}
    assert SHARED_NAMES.keys() - repeated.keys() == set(), "not needed any more"
    assert places["Attempt"] == ["kapelle.domain.task"], "the search sees classes"
    assert places["RunFields"] == ["kapelle.domain.report"], "the search sees type aliases"


def _type_names(tree: ast.Module) -> Iterable[str]:
    """Return the names of all classes, nested ones included, and of the module's type aliases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            targets = []
        for target in targets:
            if isinstance(target, ast.Name) and TYPE_NAME.match(target.id):
                yield target.id
