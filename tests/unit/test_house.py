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
# Modules that `make docs` writes may be as long as they are.
GENERATED = {"kapelle.client.records"}
LONGEST_PATTERN, LONGEST_PLAY = 400, 80
# A package whose modules are looked up by the name of what they hold: each stands for itself.
FOUND_BY_NAME = {"adapters", "patterns"}
STANDING = {"__init__", "__main__"}
# A package whose `__init__` or `table` puts together one module for each noun, however short.
TABLES = {"service", "routes"}
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
    assert [
        name for name, lines in sizes.items() if lines > LARGEST and name not in GENERATED
    ] == []


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
        and not (modules()[name].parent.name in TABLES and _puts_together(next(iter(of))))
    ]
    assert lonely == []


def _puts_together(name: str) -> bool:
    return modules()[name].stem in {"__init__", "table"}


@pytest.mark.parametrize("path", sorted((SOURCE / "patterns").rglob("*.py")), ids=_dotted)
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
    cells = re.findall(r"^\| (`[^|]*) \|", _glossary(), re.MULTILINE)
    words = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}
    used = _words(path for path in modules().values())
    own = _words(path for path in modules().values() if path.parent.name not in FOUND_BY_NAME)
    assert own - words == set(), "explain it in docs/glossary.md, or take a word that is there"
    assert words - used == set(), "the glossary explains words that no module has"


def _glossary() -> str:
    return (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


def test_the_glossary_explains_each_word_once() -> None:
    cells = re.findall(r"^\| (`[^|]*) \|", _glossary(), re.MULTILINE)
    words = [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]
    assert sorted(words) == sorted(set(words))


def test_the_glossary_explains_the_endings_of_class_names() -> None:
    endings: dict[str, int] = {}
    for path in modules().values():
        for name in _type_names(_tree(path)):
            last = re.findall(r"[A-Z][a-z]+", name)
            if len(last) > 1:
                endings[last[-1]] = endings.get(last[-1], 0) + 1
    explained = set(re.findall(r"`…(\w+)`", _glossary()))
    assert explained - endings.keys() == set(), "no class has these endings"
    assert {ending for ending, count in endings.items() if count > 14} - explained == set()


def test_the_glossary_explains_the_verbs_of_functions() -> None:
    verbs = set()
    for path in modules().values():
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                verbs.add(node.name.lstrip("_").partition("_")[0])
    explained = set(re.findall(r"`(\w+)_…`", _glossary()))
    assert len(explained) > 9
    assert explained - verbs == set(), "no function begins with these verbs"


def test_the_glossary_explains_columns_and_fields_that_exist() -> None:
    known: set[str] = set()
    for path in (SOURCE / "store" / "tables.py", *(SOURCE / "domain").glob("*.py")):
        known |= set(re.findall(r"\b[a-z_]+\b", path.read_text(encoding="utf-8")))
    rows = re.findall(r"^\| (?:field|column) (`[^|]*) \|", _glossary(), re.MULTILINE)
    assert len(rows) > 5
    for name in (name for row in rows for name in re.findall(r"`(\w+)`", row)):
        assert name in known, name


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


# Methods that read a text, by what is given to them.
READS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition",
         "replace", "split", "rsplit", "find", "index", "count"}  # fmt: skip
# Methods of expressions, and functions that take one first.
EXPRESSIONS = {"search", "match", "fullmatch", "sub", "findall", "finditer"}
# What makes a constant of the texts that it is called with.
MADE_OF = {"frozenset", "set", "tuple", "list", "re.compile", "dict.fromkeys"}
# Words with a space between them, or one with which a title begins.
PROSE = re.compile(r"[A-Za-z]{2},? [a-z]|[a-z]: $|[A-Za-z]{3} $|, [a-z]+: |^\^?\(?[A-Z][a-z]{2}")
# Packages that read what other programs print: agents, git, forges.
READERS = ("kapelle.agents", "kapelle.workspaces")
# By module, the beginnings of texts that are not our own sentences, and whose they are.
NOT_OURS = {
    "kapelle.api.mcp.progress": ("not done",),  # a phase that a pattern's progress names
    "kapelle.cli.agents": ("not installed",),  # a status in a field
    "kapelle.cli.doctor": ("SQLite format 3",),  # the head of a database
    "kapelle.cli.follow": ("not done",),
    "kapelle.cli.text": ("npm error",),  # npm's
    "kapelle.cli.output": ("(Invalid header value",),  # http.client's
    "kapelle.cli.proposal": ("no test specified",),  # npm's
    "kapelle.cli.spec_file": ("but ",),  # PyYAML's
    "kapelle.cli.uninstall": ("kapelle completion ",),  # a line of a shell's configuration
    "kapelle.client.autostart": ("kapelle: ",),  # what a daemon that has ended wrote into its log
    "kapelle.demo.sandbox": (r"^Ran (\d+) tests",),  # unittest's
    # Messages of the C library.
    "kapelle.engine.processes.confinement": ("(/[^",),
    "kapelle.domain.schedule": ("Bad ",),  # cronsim's
    "kapelle.engine.merge": ("^diff --git ", "^(new file"),  # git's
    "kapelle.engine.processes.launch": ("Bad substitution",),  # of shells
    "kapelle.engine.runs.patterns": ("async def ",),  # Python
    "kapelle.engine.tasks.verify": (r"^(?:\S*(?:error",),  # what checks print
    "kapelle.patterns.team": ("npx playwright test",),  # a command
    "kapelle.service.doctor": ("not usable", "not installed", "not set up"),
    "kapelle.settings.files": ("at end of document",),  # tomllib's
    "kapelle.store.database": ("is full",),  # SQLite's
}


@cache
def _named(name: str) -> dict[str, ast.expr | tuple[str, str]]:
    """The constants of a module by their names: values, or the module and name they are from."""
    found: dict[str, ast.expr | tuple[str, str]] = {}
    tree = _tree(modules()[name])
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in modules():
            found |= {one.asname or one.name: (node.module, one.name) for one in node.names}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found |= {one.id: node.value for one in node.targets if isinstance(one, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found[node.target.id] = node.value
    return found


def _constant(module: str, name: str) -> tuple[str, ast.expr] | None:
    """The value of a constant, and the module that it is written in."""
    for _ in range(5):
        found = _named(module).get(name) if module in modules() else None
        if isinstance(found, ast.expr):
            return module, found
        if found is None:
            return None
        module, name = found
    return None


def _prose_in(node: ast.AST, module: str, depth: int = 0) -> list[str]:
    """Sentences that a value consists of, also by the names of constants."""
    if isinstance(node, ast.Constant):
        text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        return [text] if isinstance(text, str) and PROSE.search(text) else []
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "xx" for part in node.values]
        text = "".join(map(str, parts))
        return [text] if PROSE.search(text) else []
    named = None
    if isinstance(node, ast.Name):
        named = _constant(module, node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        # A constant by the module that it is in, such as results.MAKES_WAY.
        place = _named(module).get(node.value.id)
        if isinstance(place, tuple):
            named = _constant(".".join(place), node.attr)
    if named is not None and depth < 5:
        return _prose_in(named[1], named[0], depth + 1)
    inside: Iterable[ast.AST] = ()
    if isinstance(node, ast.Call) and ast.unparse(node.func) in MADE_OF:
        inside = node.args
    elif isinstance(node, ast.Dict):
        inside = [one for one in node.keys if one]
    elif isinstance(node, ast.Tuple | ast.List | ast.Set | ast.BinOp | ast.Starred):
        inside = ast.iter_child_nodes(node)
    return [text for one in inside for text in _prose_in(one, module, depth)]


def _reads_of_prose(tree: ast.AST, module: str) -> list[tuple[int, str]]:
    """The lines at which a text is compared with a sentence or taken apart by one."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        read: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in READS:
                read = node.args[:1]
            elif node.func.attr in EXPRESSIONS:
                read = [node.func.value, *node.args[:1]]
        elif isinstance(node, ast.Compare):
            if all(isinstance(one, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for one in node.ops):
                read = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            read = [node.value]
        found += [(one.lineno, text) for one in read for text in _prose_in(one, module)]
    return found


def test_no_state_is_read_from_a_sentence() -> None:
    """A text with a space in it is prose: what it says belongs into a field."""
    found: dict[str, str] = {}
    used = set[tuple[str, str]]()
    for name, path in modules().items():
        if name.startswith(READERS):
            continue
        for line, text in _reads_of_prose(_tree(path), name):
            others = [begin for begin in NOT_OURS.get(name, ()) if text.startswith(begin)]
            used |= {(name, begin) for begin in others}
            if not others:
                found[f"{name}:{line}"] = text
    assert found == {}
    allowed = {(name, begin) for name, texts in NOT_OURS.items() for begin in texts}
    assert allowed - used == set(), "not needed any more"


@pytest.mark.parametrize(
    "code",
    [
        'reason.startswith(("stopped by ", "paused by "))',
        "reason.startswith(_WORDS)",
        "reason.startswith(RESTRAINT)",
        "reason.startswith(judges.RESTRAINT)",
        "_EXPRESSION.match(title)",
        'title.startswith("Intake")',
        're.search("was cancelled", reason)',
        '"was cancelled" in reason',
        'reason in {"it was cancelled", "x"}',
        'reason == f"{who} was cancelled"',
        'fix.partition(", then: ")',
        'text.replace("`kapelle pr` again", "x")',
        'match reason:\n    case "it was cancelled":\n        pass',
    ],
)
def test_every_way_to_read_a_sentence_is_seen(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ast.parse(code)
    own = ast.parse('_WORDS = (f"{a} was cancelled",)\n_EXPRESSION = re.compile("It was .*")')
    values = {one.targets[0].id: one.value for one in own.body}  # type: ignore[attr-defined]
    other = "kapelle.patterns.spec"
    known = {**values, "RESTRAINT": (other, "RESTRAINT"), "judges": ("kapelle.patterns", "spec")}
    restraint = {"RESTRAINT": ast.Constant("it was cancelled")}
    tables = {"kapelle.patterns.loop": known, other: restraint}
    monkeypatch.setitem(globals(), "_named", tables.__getitem__)
    assert _reads_of_prose(tree, "kapelle.patterns.loop")


WEB = ROOT / "web" / "src"
# What a text is compared with in TypeScript: a text, an expression, or the name of a constant.
_TEXT = r"""'[^'\n]*'|"[^"\n]*"|`[^`\n]*`"""
_EXPRESSION = r"/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/"
_CONSTANT = re.compile(rf"const (\w+)(?:: \w+)? = ({_TEXT}|{_EXPRESSION})")
_COMPARED = re.compile(
    rf"(?P<key>\.key )?[!=]==? (?P<text>{_TEXT})"
    rf"|\.(?:startsWith|endsWith|includes|indexOf|lastIndexOf|split|replace|replaceAll|match"
    rf"|matchAll|search)\((?P<given>{_TEXT}|{_EXPRESSION}|\w+)"
    rf"|(?P<called>{_EXPRESSION}|\b\w+)\.(?:test|exec)\("
)
# In a text a space between words, or a word like those that titles begin with.
_TS_PROSE = re.compile(r"[a-z]{2},? [a-z]|[a-z]{2} ['\"`]|(?:^|[^A-Za-z0-9_$.\\[-])[A-Z][a-z]{2}")
# By file, the beginnings of what is no sentence of ours, and whose it is.
NOT_OURS_ON_THE_PAGE = {
    "shell/keys.ts": ("/^(Mac",),  # of a browser
    "views/patch.tsx": ("'diff --git ", "'new file'", "'deleted file'", "'rename from'", "'Binary"),
    "views/now/needs.tsx": (r"/^\[exit code",),  # the line that ends the output of a check
}


def _reads_of_prose_on_the_page(text: str) -> list[tuple[int, str]]:
    constants = dict(_CONSTANT.findall(text))
    found: list[tuple[int, str]] = []
    for match in _COMPARED.finditer(text):
        if match["key"]:
            continue  # of a keyboard
        compared = str(match["text"] or match["given"] or match["called"])
        compared = constants.get(compared, compared)
        if compared[0] in "'\"`/" and _TS_PROSE.search(compared):
            found.append((text.count("\n", 0, match.start()) + 1, compared))
    return found


def test_the_page_reads_no_state_from_a_sentence() -> None:
    found: dict[str, str] = {}
    used = set[tuple[str, str]]()
    for path in sorted([*WEB.rglob("*.ts"), *WEB.rglob("*.tsx")]):
        name = path.relative_to(WEB).as_posix()
        if name == "api/schema.ts":
            continue  # it is generated, and types alone
        for line, text in _reads_of_prose_on_the_page(path.read_text(encoding="utf-8")):
            others = [one for one in NOT_OURS_ON_THE_PAGE.get(name, ()) if text.startswith(one)]
            used |= {(name, begin) for begin in others}
            if not others:
                found[f"{name}:{line}"] = text
    assert found == {}
    allowed = {(name, begin) for name, texts in NOT_OURS_ON_THE_PAGE.items() for begin in texts}
    assert allowed - used == set(), "not needed any more"


@pytest.mark.parametrize(
    "code",
    [
        "reason?.startsWith('paused by ')",
        "step.label.startsWith('Plan')",
        "const PHASE = /^(Assess|Review) \\(cycle (\\d+)\\)/;\nPHASE.test(step.label)",
        "const WORDS = 'was cancelled';\nreason.includes(WORDS)",
        "if (/^No agent was named/.test(message)) x;",
        "work.title === 'Review'",
        "reason !== `${who} was cancelled`",
    ],
)
def test_every_way_of_the_page_to_read_a_sentence_is_seen(code: str) -> None:
    assert _reads_of_prose_on_the_page(code)


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
    "engine/processes/confinement.py": "a file of the package, and files that it creates",
    "engine/runs/mirror.py": "opened for reading and writing, so that a pipe is no seekable file",
    "engine/upkeep.py": "the daemon's own standard error, compared by its inode",
    "runner/identity.py": "/proc",
    "runner/pack.py": "a file that was just made, or a descriptor of open_regular",
    "runner/process_tree.py": "/proc and cgroups",
    "runner/shim/namespaces.py": "/proc",
    "runner/shim/probe.py": "files that it makes itself",
    "runner/shim/shim.py": "the shim's own log, in its own process",
    "runner/shim/tree.py": "/proc and cgroups",
    "runner/shim/supervisor.py": "cgroups",
    "runner/spawner_client.py": "files of the package",
    "secrets/specs.py": "writes a new file",
    "workspaces/copy.py": "copied after a look at its kind, in a throwaway copy",
    "workspaces/intake.py": "writes new files, and reads a pack that git has just written",
    "workspaces/index.py": "an index that git has just written to a private directory",
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
    assert places["ReportRow"] == ["kapelle.service.report_text"], "the search sees type aliases"


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
