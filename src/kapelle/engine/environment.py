"""The environment that a process is given, and the files beside it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kapelle.agents.base import Agent, AgentRequest, Command
from kapelle.engine.output import remember_side_log
from kapelle.settings import Settings

_ALWAYS = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "TMPDIR", "LANG", "LANGUAGE", "LC_*",
    "XDG_*", "SSH_AUTH_SOCK", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy",
    "https_proxy", "no_proxy", "all_proxy",
)  # fmt: skip


def passed(environ: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """The variables of the daemon's environment that may be passed on."""
    return {name: environ[name] for name in fitting(environ, [*_ALWAYS, *wanted])}


def fitting(environ: Iterable[str], wanted: Sequence[str]) -> set[str]:
    """Those of the names that are wanted, by themselves or by a PREFIX*."""
    exact = {name for name in wanted if not name.endswith("*")}
    prefixes = tuple(name[:-1] for name in wanted if name.endswith("*"))
    return {name for name in environ if name in exact or (prefixes and name.startswith(prefixes))}


def agent_environment(
    environ: Mapping[str, str], settings: Settings, agent: Agent, own: Mapping[str, str]
) -> dict[str, str]:
    """What an agent's process sees, before the variables of its task."""
    env = passed(environ, [*settings.environment.pass_, *agent.passes])
    dropped = fitting(env, agent.drops) - set(agent.passes)
    env = {name: value for name, value in env.items() if name not in dropped}
    return env | settings.environment.set | agent.settings.env | dict(own)


def place(process_dir: Path, files: Mapping[str, str]) -> None:
    """Write them, readable by their owner only, before the process is started."""
    process_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in files.items():
        path = process_dir / name
        path.touch(mode=0o600)
        path.write_text(content, encoding="utf-8", errors="replace")


def agent_command(agent: Agent, request: AgentRequest) -> Command:
    """The command of an agent; all that it reads is written beside its prompt."""
    process_dir = request.prompt_file.parent
    place(process_dir, {request.prompt_file.name: request.prompt})
    command = agent.command(request)
    place(process_dir, command.files)
    resumed = None if request.fork else request.session_id
    remember_side_log(process_dir, command.side_log, resumed)
    return command
