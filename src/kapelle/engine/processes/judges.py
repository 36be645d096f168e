"""The files of a repository that judge work or decide what a check does, by their names.

A judge is a test, or a file that leads a check: its configuration, a script that it runs, or a
module that a test runner imports by itself or in place of one of its own.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

_CODE = "py|[cm]?[jt]sx?|rb|php|go|rs|java|kt|cs|swift|lua|sh|pl"
# Names in any case, then names that only their capitals tell from words such as "latest".
_TEST = re.compile(
    r"(?i:(^|/)(tests?|specs?|__tests__|testing|testdata|__snapshots__)/"
    rf"|(^|/)(test_[^/]*|tests?\.({_CODE})|conftest\.py)$|[._-](test|spec)s?\.|_(test|spec)\.[a-z]+$)"
    r"|[A-Za-z0-9.](Tests?|Specs?)(\.[a-z]+$|/)"
)
_BESIDE = re.compile(
    r"\.(md|rst|txt|toml|cfg|ini|lock|ya?ml|json|xml|mod|sum|sh)$|(^|/)(\.[^/]*|Makefile|LICENSE)$"
)
# By the name of the file, at any depth.
_LEADING = re.compile(
    r"\.(toml|cfg|ini|mk|make|pth|gradle|gradle\.kts)$|([Mm]ake|[Jj]ust|Rake|Gem|Docker)file$"
    r"|^(package\.json|go\.work|pom\.xml|phpunit\.xml|CMakeLists\.txt|meson\.build|build\.rs)$"
    r"|^([Tt]askfile(\.dist)?\.ya?ml|composer\.json|deno\.jsonc?|tsconfig[^/]*\.json|\.flake8)$"
    r"|^\.pre-commit-config\.ya?ml$"
    r"|^(conftest|noxfile|setup|sitecustomize|usercustomize)\.py$"
    r"|\.(config|setup)\.([cm]?[jt]s|json)$|^\.[^/]*rc(\.[a-z]+)?$|^\.rspec$"
)
# Settings of tools that nobody lists: where a check runs, those that were there decide about it.
_SETTINGS = re.compile(r"^\.[^/]+$|\.(json[c5]?|ya?ml|toml|cfg|ini|conf|properties)$")
# What makes an installed distribution of a directory, with the plugins that it brings.
_DISTRIBUTION = re.compile(r"(^|/)[^/]+\.(dist-info|egg-info|egg)/|\.(egg|egg-link)$")
# A shell script may as well be what the work is about: those of tools are told by place and name.
_SHELL = re.compile(r"\.(sh|bash)$")
_TOOL = re.compile(
    r"(^|/)(scripts?|tools?|hack|bin|\.?ci)/|(^|[/._-])(tests?|checks?|ci|lint|verify|build|run)[^/]*$"
)
_RUNNERS = frozenset(
    "pytest _pytest pluggy iniconfig xdist coverage hypothesis nose nose2 tox".split()  # noqa: SIM905
)
_SHADOWED = _RUNNERS | sys.stdlib_module_names
_MODULE = re.compile(r"\.(py|pyc|so|pyd)$")
# Where Python looks for modules first: the directory of a check, and the usual roots of packages.
_ROOTS = ("", "src", "lib", "python")
# Every repetition before the end of a match is bounded: agents write the files that are searched,
# and a search in quadratic time would keep the daemon from everything else.
_INTERPRETER = (
    r"(?:\b(?:ba|da|z)?sh|\bpython[\d.]{0,10}|\b(?:node|ruby|perl|php|lua|pytest|bash|bun|tsx"
    r"|ts-node|deno\s{1,20}run|uv\s{1,20}run|go\s{1,20}run))(?=\s)"
)
# A name is at most 255 letters long.
_SCRIPT = r"\s{0,20}(?:-[^\s/]{1,60}\s{1,20}){0,10}([\w.@+-]{0,255}[./][^\s;&|()<>\"']*)"
# A command begins with an interpreter, perhaps with its directory, or with the script itself.
_BEGINNING = r"(?:^|[;&|(])\s{0,20}"
_DIRECTORIES = r"(?:[\w.@+-]{0,255}/){0,20}"
_EXECUTED = re.compile(
    rf"(?:{_BEGINNING}(?:{_DIRECTORIES}{_INTERPRETER})?|{_INTERPRETER}){_SCRIPT}"
)
_INTERPRETED = re.compile(rf"{_INTERPRETER}{_SCRIPT}")
_WORD = re.compile(r"[^\s;&|()<>\"'=:]+")
# Where a line of a makefile, or of settings, begins with a name and a colon.
_SECTION = re.compile(r"""^(\s*)["']?([\w.-]+)["']?\s*:""")
_START = frozenset(
    "start prestart poststart serve dev watch preview main module deploy bin".split()  # noqa: SIM905
)
_QUOTES = re.compile(r"""["'\[\],]+""")
_IMPORT = re.compile(
    r"^[ \t]{0,100}(?:from[ \t]{1,20}(\w{1,255})|import[ \t]{1,20}([^\n#;]{1,1000}))", re.MULTILINE
)
_INCLUDE = re.compile(r"^-?s?include\s+(.+)$", re.MULTILINE)
_MAKEFILE = re.compile(r"(^|/)([Mm]akefile|GNUmakefile|[^/]*\.mk|[^/]*\.make)$")


def is_test(path: str) -> bool:
    return bool(_TEST.search(path))


def is_makefile(path: str) -> bool:
    return bool(_MAKEFILE.search(path))


def is_shell(path: str) -> bool:
    return bool(_SHELL.search(path))


def is_tool(path: str) -> bool:
    """Tell whether a path is that of a tool, by its name or its directory."""
    return is_shell(path) or bool(_TOOL.search(path))


def list_executed(command: str) -> set[str]:
    """Return the paths that a command runs as programs or scripts, as they are written there."""
    return {os.path.normpath(path) for path in _EXECUTED.findall(command)}


def list_includes(makefile: str) -> set[str]:
    """Return the paths of the files that a makefile includes."""
    return set(" ".join(_INCLUDE.findall(makefile)).split())


def named_scripts(text: str) -> set[str]:
    """Return the paths that a file which leads a check runs as programs or scripts.

    Scripts by which a program is started, such as `start` of a package.json, are left out: they
    name the program itself.
    """
    paths = set[str]()
    is_start = False
    for line in text.splitlines():
        if heading := _SECTION.match(line):
            indent, name = heading.groups()
            # Of a makefile a target; in YAML, below a name, any command.
            is_start = name in _START or (name == "run" and not indent)
        if is_start:
            continue
        words = _QUOTES.sub(" ", line).strip("\t @-")
        paths.update(map(os.path.normpath, _INTERPRETED.findall(words)))
        for part in re.split(r":\s", words):
            paths.update(path for path in list_executed(part.strip("\t @-")) if is_tool(path))
    return paths


def imported_modules(text: str) -> set[str]:
    """Return the top-level modules that a program in Python imports."""
    names = set[str]()
    for module, several in _IMPORT.findall(text):
        for name in (module, *several.split(",")):
            names.add(name.strip().partition(" ")[0].partition(".")[0])
    return names - {""}


@dataclass(frozen=True)
class Judges:
    """The judges of one check: its command, its directory, and the files that its settings name."""

    command: str
    directory: str = ""
    includes: frozenset[str] = frozenset()

    def leads(self, path: str) -> bool:
        """Tell whether a file decides what the check does, without being a test."""
        name = os.path.basename(path)
        if _LEADING.search(name) or path in self.includes:
            return True
        if _SHELL.search(name) and _TOOL.search(path):
            return True
        return self._is_executed(path) or self._shadows(path) or bool(_DISTRIBUTION.search(path))

    def names_scripts(self, path: str) -> bool:
        """Tell whether a file may name scripts that the check runs."""
        if is_makefile(path) or self._is_executed(path):
            return True
        leads = bool(_LEADING.search(os.path.basename(path)))
        return self._is_near(path) and (leads or self.is_setting(path))

    def is_setting(self, path: str) -> bool:
        """Tell whether a file may hold settings of the check: one where it runs, or at the top.

        Only where it was there before the work: a new one may be what the work is about.
        """
        return self._is_near(path) and bool(_SETTINGS.search(os.path.basename(path)))

    def judges(self, path: str) -> bool:
        return is_test(path) or self.leads(path)

    def is_beside(self, path: str) -> bool:
        """Tell whether a file is no work by itself: settings, documents, and what leads a check."""
        return bool(_BESIDE.search(path)) or self.leads(path)

    def among(self, files: Mapping[str, str]) -> dict[str, str]:
        """Return those of the files by whose content a proof of the check is remembered."""
        paths = [
            path
            for path in files
            if self.judges(path) or self.is_setting(path) or _SHELL.search(path)
        ]
        return {path: files[path] for path in paths}

    def decisive(self, files: list[str]) -> list[str]:
        """Return those of the changed files that the check must look at."""
        others = [path for path in files if not self._is_executed(path)] or files
        tests = [path for path in others if is_test(path)]
        works = [path for path in others if not is_test(path) and not self.is_beside(path)]
        return works or tests or others

    def asks_for(self, path: str, before: Iterable[str]) -> bool:
        """Tell whether the command names a file, or a directory of it, that is new."""
        words = [os.path.normpath(word) for word in _WORD.findall(self.command)]
        paths = [os.path.normpath(os.path.join(self.directory, word)) for word in words]
        for place in (*paths, *words):
            is_named = path == place or path.startswith(f"{place}/")
            was_there = any(one == place or one.startswith(f"{place}/") for one in before)
            if is_named and place != "." and not was_there:
                return True
        return False

    @cached_property
    def _scripts(self) -> set[str]:
        return list_executed(self.command)

    def _is_executed(self, path: str) -> bool:
        if self.directory:
            below = os.path.relpath(path, self.directory)
        else:
            below = path
        return path in self._scripts or below in self._scripts

    def _is_near(self, path: str) -> bool:
        return os.path.dirname(path) in {"", self.directory}

    def _shadows(self, path: str) -> bool:
        """Tell whether Python would import this file in place of its own or a runner's module."""
        return not _SHADOWED.isdisjoint(self.modules(path))

    def modules(self, path: str) -> set[str]:
        """Return the modules as which Python may import a file, or as part of which."""
        names = set[str]()
        for root in {*_ROOTS, self.directory}:
            if root:
                below = path.removeprefix(f"{root}/")
            else:
                below = path
            if root and below == path:
                continue
            module = below.partition("/")[0].partition(".")[0]
            # Without a suffix it may be a link to a package.
            is_module = bool(_MODULE.search(below)) or below == module
            if is_module:
                names.add(module)
        return names
