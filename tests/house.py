"""Measure how the source reads.

`make house` prints the figures that tests/unit/test_house.py holds.

Densities are counted per 1,000 lines of code. A line of code is a line that is not blank, not a
comment and not part of a docstring.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "kapelle"

LONG_FUNCTION = 40

# Irregular participles and bare verbs that say how a value was made, not what it is.
IRREGULAR = frozenset(
    (
        "asked",
        "begun",
        "bound",
        "broken",
        "brought",
        "built",
        "bought",
        "chosen",
        "done",
        "drawn",
        "fallen",
        "felt",
        "forgotten",
        "found",
        "given",
        "gone",
        "got",
        "grown",
        "had",
        "heard",
        "held",
        "hidden",
        "kept",
        "known",
        "laid",
        "led",
        "lent",
        "lost",
        "made",
        "meant",
        "met",
        "paid",
        "put",
        "said",
        "seen",
        "sent",
        "shown",
        "shut",
        "spoken",
        "spent",
        "stood",
        "taken",
        "told",
        "thought",
        "understood",
        "won",
        "worn",
        "written",
    )
)
# Words that look like participles and are nouns or established terms.
NOUNS = frozenset(
    (
        "bed",
        "feed",
        "embed",
        "need",
        "seed",
        "speed",
        "shed",
        "sled",
        "red",
        "read",
        "run",
        "set",
        "split",
        "cut",
        "left",
    )
)
PARTICIPLE = re.compile(r"^_?[a-z]+ed$")

BAD_DOCSTRING_START = re.compile(r"^(What|Whether|The same|It)\b")


@dataclass
class Figures:
    """Counts for one package."""

    code_lines: int = 0
    comment_lines: int = 0
    docstring_lines: int = 0
    conditional_expressions: int = 0
    nested_conditional_expressions: list[str] = field(default_factory=list)
    comprehensions: int = 0
    heavy_comprehensions: list[str] = field(default_factory=list)
    boolean_arithmetic: list[str] = field(default_factory=list)
    tuple_assignments: list[str] = field(default_factory=list)
    format_skips: int = 0
    long_functions: list[str] = field(default_factory=list)
    names: int = 0
    participle_names: Counter[str] = field(default_factory=Counter)
    bad_docstrings: list[str] = field(default_factory=list)

    def per_thousand(self, count: int) -> float:
        """Return a count per 1,000 lines of code."""
        return 1000 * count / max(self.code_lines, 1)

    def add(self, other: "Figures") -> None:
        """Add the counts of another package."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@cache
def source_files() -> tuple[Path, ...]:
    """Return every module of the package except database migrations."""
    paths = SOURCE.rglob("*.py")
    return tuple(sorted(path for path in paths if "migrations" not in path.parts))


def package_of(path: Path) -> str:
    """Return the first folder below the source, or `kapelle` for modules at the top."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "kapelle"


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def measure(path: Path) -> Figures:
    """Count everything in one module."""
    figures = Figures()
    tree = parse(path)
    _count_lines(path, tree, figures)
    for node in ast.walk(tree):
        place = f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 1)}"
        _count_expression(node, place, figures)
        _count_name(node, figures)
        _count_docstring(node, place, figures)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LONG_FUNCTION:
                figures.long_functions.append(f"{place} {node.name} ({length} lines)")
    return figures


def _count_lines(path: Path, tree: ast.Module, figures: Figures) -> None:
    text = path.read_text(encoding="utf-8")
    docstring_lines = set(_docstring_lines(tree))
    comment_lines: set[int] = set()
    code_lines: set[int] = set()
    silent = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comment_lines.add(token.start[0])
            if "fmt: skip" in token.string:
                figures.format_skips += 1
        elif token.type not in silent:
            code_lines.update(range(token.start[0], token.end[0] + 1))
    code_lines -= docstring_lines
    figures.code_lines = len(code_lines)
    figures.comment_lines = len(comment_lines - code_lines)
    figures.docstring_lines = len(docstring_lines)


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        constant = _docstring(node)
        if constant is not None:
            yield from range(constant.lineno, (constant.end_lineno or constant.lineno) + 1)


def _docstring(node: ast.AST) -> ast.Constant | None:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if not isinstance(node, documented) or not node.body:
        return None
    first = node.body[0]
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return None
    return first.value if isinstance(first.value.value, str) else None


def _count_docstring(node: ast.AST, place: str, figures: Figures) -> None:
    constant = _docstring(node)
    if constant is None:
        return
    first_line = str(constant.value).strip().partition("\n")[0]
    if BAD_DOCSTRING_START.match(first_line):
        figures.bad_docstrings.append(f"{place} {first_line}")


def _count_expression(node: ast.AST, place: str, figures: Figures) -> None:
    if isinstance(node, ast.IfExp):
        figures.conditional_expressions += 1
        if any(isinstance(inner, ast.IfExp) for inner in ast.walk(node) if inner is not node):
            figures.nested_conditional_expressions.append(place)
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        figures.comprehensions += 1
        conditions = sum(len(generator.ifs) for generator in node.generators)
        if len(node.generators) > 1 or conditions > 1:
            figures.heavy_comprehensions.append(place)
    elif isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult) and _has_boolean_operand(node):
            figures.boolean_arithmetic.append(place)
    elif isinstance(node, ast.AugAssign):
        if _is_boolean(node.value) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            figures.boolean_arithmetic.append(place)
    elif isinstance(node, ast.Slice):
        if any(_is_boolean(bound) for bound in (node.lower, node.upper, node.step)):
            figures.boolean_arithmetic.append(place)
    elif isinstance(node, ast.Assign) and _assigns_unrelated_values(node):
        figures.tuple_assignments.append(place)


def _has_boolean_operand(node: ast.BinOp) -> bool:
    return _is_boolean(node.left) or _is_boolean(node.right)


def _is_boolean(node: ast.expr | None) -> bool:
    """Tell whether an expression is evidently a boolean."""
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("bool", "isinstance", "any", "all")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("startswith", "endswith", "is_set", "exists")
    return False


def _assigns_unrelated_values(node: ast.Assign) -> bool:
    """Tell whether `a, b = x, y` is more than a swap."""
    if len(node.targets) != 1:
        return False
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    targets = {ast.unparse(element) for element in target.elts}
    values = {ast.unparse(element) for element in node.value.elts}
    return targets != values


def _count_name(node: ast.AST, figures: Figures) -> None:
    name = _stored_name(node)
    if name is None:
        return
    figures.names += 1
    word = name.lstrip("_")
    if word in NOUNS:
        return
    if word in IRREGULAR or PARTICIPLE.match(word):
        figures.participle_names[name] += 1


def _stored_name(node: ast.AST) -> str | None:
    """Return the name that a node gives to a variable, a parameter or a function."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    return None


def class_places() -> dict[str, list[str]]:
    """Return where each class is defined; enumerations and exceptions included."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in source_files():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return places


def duplicate_classes() -> dict[str, list[str]]:
    """Return the class names that are defined more than once, with their places."""
    return {name: places for name, places in class_places().items() if len(places) > 1}


def packages() -> dict[str, Figures]:
    """Return the figures of every package."""
    sums: dict[str, Figures] = defaultdict(Figures)
    for path in source_files():
        sums[package_of(path)].add(measure(path))
    return dict(sorted(sums.items()))


COLUMNS = (
    "package", "code", "cond/k", "nested", "compr/k", "heavy", "bool", "tuples", "skips",
    "comm %", "doc %", ">40", "partic.", "bad doc",
)  # fmt: skip


def _row(name: str, figures: Figures) -> list[str]:
    lines = figures.code_lines + figures.comment_lines + figures.docstring_lines
    return [
        name,
        str(figures.code_lines),
        f"{figures.per_thousand(figures.conditional_expressions):.0f}",
        str(len(figures.nested_conditional_expressions)),
        f"{figures.per_thousand(figures.comprehensions):.0f}",
        str(len(figures.heavy_comprehensions)),
        str(len(figures.boolean_arithmetic)),
        str(len(figures.tuple_assignments)),
        str(figures.format_skips),
        f"{100 * figures.comment_lines / max(lines, 1):.1f}",
        f"{100 * figures.docstring_lines / max(lines, 1):.1f}",
        str(len(figures.long_functions)),
        str(figures.participle_names.total()),
        str(len(figures.bad_docstrings)),
    ]


LISTS = (
    "nested_conditional_expressions", "heavy_comprehensions", "boolean_arithmetic",
    "tuple_assignments", "long_functions", "bad_docstrings",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Print the table; with names of packages, also the places in them."""
    figures = packages()
    total = Figures()
    for one in figures.values():
        total.add(one)
    rows = [list(COLUMNS), *(_row(name, one) for name, one in figures.items()), _row("all", total)]
    for row in rows:
        print(row[0].ljust(12), *(cell.rjust(8) for cell in row[1:]))
    duplicates = duplicate_classes()
    print(f"\nclass names defined more than once: {len(duplicates)}")
    for name, places in sorted(duplicates.items()):
        print(f"  {name}: {', '.join(places)}")
    common = total.participle_names.most_common(30)
    print(
        "\nmost frequent participle names:", ", ".join(f"{name} {count}" for name, count in common)
    )
    for package in arguments:
        print(f"\n{package}")
        for title in LISTS:
            for place in getattr(figures[package], title):
                print(f"  {title.replace('_', ' ')}: {place}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
