"""Which variables of a person's shell agents and commands may see; light, for every command."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kapelle.domain.text import make_storable

# Of the person and the machine, of the network, and what build tools go by.
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
# Names that every shell has and no check asks for.
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
    """Whether a variable of this name likely holds a secret."""
    return _SECRET.search(name) is not None


def match_names(names: Iterable[str], wanted: Sequence[str]) -> set[str]:
    """Those of the names that are wanted, by themselves or by a PREFIX*."""
    exact = {*wanted}
    prefixes = tuple(name[:-1] for name in wanted if name.endswith("*"))
    return {name for name in names if name in exact or name.startswith(prefixes)}


def select_allowed(names: Iterable[str], wanted: Sequence[str] = ()) -> set[str]:
    """The names that may be passed on: the usual ones unless they look secret, and the wanted."""
    known = list(names)
    usual = {name for name in match_names(known, ALLOWED) if not looks_secret(name)}
    return usual | match_names(known, wanted)


def read_shell(environ: Mapping[str, str], wanted: Sequence[str] = ()) -> dict[str, Any]:
    """What a client tells of its environment: what may be passed on, of all else only the names."""
    named = [name for name in environ if _NAME.fullmatch(name) and "\0" not in environ[name]]
    kept = select_allowed(named, wanted)
    rest = set(named) - kept - match_names(named, _OF_SHELLS)
    return {
        # What is not UTF-8 cannot be sent as JSON.
        "variables": {name: make_storable(environ[name]) for name in sorted(kept)},
        "dropped": sorted(rest)[:_MOST_NAMES],
    }
