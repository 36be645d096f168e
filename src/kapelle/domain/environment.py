"""Variables of a person's shell that agents and commands may see.

Every command of the command line imports this module, so it imports little.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kapelle.domain.text import make_storable

# Variables of the person, the machine, the network and build tools.
ALLOWED = """
PATH HOME USER LOGNAME SHELL TERM TZ TMPDIR LANG LANGUAGE LC_* XDG_* SSL_CERT_FILE SSL_CERT_DIR
NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE CURL_CA_BUNDLE AWS_CA_BUNDLE PIP_CERT NIX_SSL_CERT_FILE
GIT_SSL_CAINFO HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy
CI EDITOR PAGER NO_COLOR CC CXX CPP LD AR CFLAGS CXXFLAGS CPPFLAGS LDFLAGS MAKEFLAGS CMAKE_*
PKG_CONFIG_PATH LD_LIBRARY_PATH DYLD_* CPATH LIBRARY_PATH VIRTUAL_ENV PYTHONPATH
PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED PYENV_* CONDA_* UV_CACHE_DIR UV_PYTHON
UV_PROJECT_ENVIRONMENT PIP_CACHE_DIR POETRY_HOME POETRY_VIRTUALENVS_* NODE_PATH NODE_ENV
NODE_OPTIONS NODE_VERSION NVM_DIR NVM_BIN NVM_INC FNM_* VOLTA_HOME PNPM_HOME COREPACK_HOME
BUN_INSTALL DENO_DIR ASDF_* MISE_* JAVA_HOME JDK_HOME JAVA_OPTS JAVA_TOOL_OPTIONS MAVEN_HOME
M2_HOME MAVEN_OPTS GRADLE_HOME GRADLE_USER_HOME GRADLE_OPTS KOTLIN_HOME ANDROID_HOME
ANDROID_SDK_ROOT CLASSPATH GOPATH GOROOT GOBIN GOFLAGS GOMODCACHE GOCACHE GOPROXY GOPRIVATE GOWORK
GOTOOLCHAIN CGO_* CARGO_HOME CARGO_TARGET_DIR RUSTUP_HOME RUSTUP_TOOLCHAIN RUSTFLAGS RUST_BACKTRACE
GEM_HOME GEM_PATH BUNDLE_GEMFILE BUNDLE_PATH RBENV_* RUBYLIB RAILS_ENV RACK_ENV COMPOSER_HOME
APP_ENV DJANGO_SETTINGS_MODULE FLASK_APP PERL5LIB DOTNET_ROOT NUGET_PACKAGES DOCKER_HOST
DOCKER_CONTEXT COMPOSE_PROJECT_NAME KUBECONFIG AWS_PROFILE AWS_REGION AWS_DEFAULT_REGION NIX_PATH
NIX_PROFILES
""".split()  # noqa: SIM905 - names read better as words
# Variables that every shell has and no check needs.
_OF_SHELLS = """
_ PWD OLDPWD SHLVL PS1 PS2 PROMPT* HIST* LS_COLORS LESS* COLUMNS LINES COLORTERM TERM_* KAPELLE_*
_* BASH* ZSH* HOSTNAME
""".split()  # noqa: SIM905 - names read better as words
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_SECRET = re.compile(
    "KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(^|_)(PAT|PASS|PWD|AUTH)(_|$)",
    re.IGNORECASE,
)
_MOST_NAMES = 1000


def looks_secret(name: str) -> bool:
    """Return whether a variable of this name likely holds a secret."""
    return _SECRET.search(name) is not None


def match_names(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """Return the names that equal one of the patterns or match a PREFIX* among them."""
    exact = {*patterns}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return {name for name in names if name in exact or name.startswith(prefixes)}


def select_allowed(names: Iterable[str], patterns: Sequence[str] = ()) -> set[str]:
    """Return the names that agents may see.

    These are the usual ones, unless they look secret, and those that match the given patterns.
    """
    candidates = list(names)
    usual = {name for name in match_names(candidates, ALLOWED) if not looks_secret(name)}
    return usual | match_names(candidates, patterns)


def read_shell(environ: Mapping[str, str], patterns: Sequence[str] = ()) -> dict[str, Any]:
    """Return the part of an environment that a client sends to the daemon, as fields of a Shell.

    Only variables that agents may see are sent with their values; of the others, only the names.
    """
    names = [name for name in environ if _NAME.fullmatch(name) and "\0" not in environ[name]]
    visible = select_allowed(names, patterns)
    rest = set(names) - visible - match_names(names, _OF_SHELLS)
    return {
        # Values that are not valid UTF-8 cannot be sent as JSON.
        "variables": {name: make_storable(environ[name]) for name in sorted(visible)},
        "dropped": sorted(rest)[:_MOST_NAMES],
    }
