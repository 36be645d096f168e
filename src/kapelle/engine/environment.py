"""The environment that a process is given, and the secrets that must not come back out of it."""

from collections.abc import Iterable, Mapping

from kapelle.settings import looks_secret

_ALWAYS = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "TMPDIR", "LANG", "LANGUAGE", "LC_*",
    "XDG_*", "SSH_AUTH_SOCK", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy",
    "https_proxy", "no_proxy", "all_proxy",
)  # fmt: skip
_SHORTEST_SECRET = 8


def passed(environ: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """The variables of the daemon's environment that may be passed on."""
    names = {*_ALWAYS, *wanted}
    exact = {name for name in names if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    return {
        name: value
        for name, value in environ.items()
        if name in exact or (prefixes and name.startswith(prefixes))
    }


def secrets_in(*environments: Mapping[str, str]) -> list[str]:
    """The values that look like secrets by their names; paths are none."""
    return [
        value
        for environment in environments
        for name, value in environment.items()
        if looks_secret(name)
        and len(value) >= _SHORTEST_SECRET
        and not value.startswith(("/", "~"))
    ]
