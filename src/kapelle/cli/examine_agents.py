"""What `kapelle doctor` finds about agents: programs, versions, logins, the default."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kapelle.cli.agent_words import login_words
from kapelle.cli.finding import Finding
from kapelle.cli.repository import current
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import KapelleError
from kapelle.home import Home

if TYPE_CHECKING:
    from kapelle.agents.registry import AgentInfo
    from kapelle.settings import Settings

_VERSION_S = 20.0


def agents(home: Home) -> Iterator[Finding]:
    from kapelle.agents.registry import REHEARSAL, available
    from kapelle.settings import load

    try:
        settings = load(home, current(), os.environ).settings
    except KapelleError:
        return  # the examination of the configuration reports it
    known = available(settings)
    real = [info for info in known if info.name != REHEARSAL]
    installed = [info for info in real if info.installed]
    yield from _not_usable(real, settings)
    yield from _installed(home, installed, settings)
    if not installed:
        hint = "Install one, such as claude, codex or gemini; `kapelle init` chooses it."
        yield Finding("agents", "warning", "none is installed", hint)
    yield _default_agent(settings.default_agent, known)


def _not_usable(real: "list[AgentInfo]", settings: "Settings") -> Iterator[Finding]:
    """Agents without an adapter, and those set up by a person whose program is missing."""
    for info in real:
        if info.agent is None:
            yield Finding("agents", "broken", f"{info.name}: {info.problem}", info.hint)
        elif info.installed is None and info.name in settings.agents:
            yield Finding("agents", "warning", f"{info.name}: {info.problem}", info.hint)


def _installed(home: Home, installed: "list[AgentInfo]", settings: "Settings") -> Iterator[Finding]:
    told = _as_the_daemon_sees_them()
    with ThreadPoolExecutor() as threads:
        versions = list(threads.map(_version, installed))
    for info, version in zip(installed, versions, strict=True):
        name = f"agent {info.name}"
        if info.problem:
            yield Finding(name, "warning", info.problem, info.hint)
            continue
        login = told.get(info.name) or _as_seen_here(home, info, settings)
        yield from _findings(name, info, version, login)


def _findings(
    name: str, info: "AgentInfo", version: str | None, login: dict[str, Any]
) -> Iterator[Finding]:
    from kapelle.agents.version import compared, remark

    tested = info.agent.tested if info.agent else None
    parts = [remark(version, tested)] if tested else [str(info.installed)]
    words = login_words(login)
    if words:
        verified = "verified" if login["verified_at"] else "not verified"
        parts.append(f"login: {words}" + ("" if login["source"] == "none" else f", {verified}"))
    hint = None
    if login["source"] == "none" and login["needed"]:
        hint = f"Log in with its own program, or: kapelle agents config set {info.name} api_key"
    elif version and tested and compared(version, tested) == "older":
        hint = f"Update it: {getattr(info.agent, 'package', 'as it was installed')}"
    yield Finding(name, "warning" if hint else "ok", "; ".join(parts), hint)


def _version(info: "AgentInfo") -> str | None:
    """What the program says; only programs that an adapter was tried with are asked."""
    from kapelle.agents.version import version_in
    from kapelle.runner.asking import printed

    if info.agent is None or info.agent.tested is None or info.installed is None:
        return None
    env = {**os.environ, **info.agent.settings.env}
    try:
        said = printed([info.installed, "--version"], env, Path("/"), _VERSION_S)
    except OSError:
        return None
    return version_in(said or "")


def _as_the_daemon_sees_them() -> dict[str, dict[str, Any]]:
    """The logins that agents get, from the daemon that starts them; empty when it is not there."""
    client = Client(autostart=False)
    try:
        known = client.get("/agents", {"directory": str(current())}, timeout=30)
    except KapelleError:
        return {}
    return {agent["name"]: agent["login"] for agent in known}


def _as_seen_here(home: Home, info: "AgentInfo", settings: "Settings") -> dict[str, Any]:
    """The login that a daemon started here would find."""
    from kapelle.vault import Vault

    assert info.agent is not None
    access, own = info.agent.access, info.agent.settings.env
    found = {"source": "none", "variable": None, "needed": access.needed, "verified_at": None}
    for source, place in (
        ("settings", own),
        ("settings", settings.environment.set),
        ("environment", os.environ),
    ):
        for variable in access.variables:
            if place.get(variable):
                return {**found, "source": source, "variable": variable}
    if Vault(home).get(info.name):
        return {**found, "source": "stored"}
    if any(os.path.exists(os.path.expanduser(path)) for path in access.login_files):
        return {**found, "source": "login"}
    return found


def _default_agent(name: str | None, known: "list[AgentInfo]") -> Finding:
    if name is None:
        return Finding("default agent", "warning", "not set", "`kapelle init` chooses one.")
    info = next((info for info in known if info.name == name), None)
    if info is None or info.installed is None or info.problem:
        other = "or choose another with `kapelle config set default_agent NAME`."
        text = info.problem if info and info.problem else f"There is no agent {name!r}."
        hint = f"{info.hint if info and info.hint else 'Set it up'}, {other}"
        return Finding("default agent", "broken", f"{name}: {text}", hint)
    return Finding("default agent", "ok", name)
