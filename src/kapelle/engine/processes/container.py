"""Run the commands of a workspace in a container, and remove the container afterwards.

Everything about a container is written into a directory of the home before the container starts, so
that a new daemon finds it. The container is removed once its worktree is gone.
"""

import asyncio
import hashlib
import logging
import os
import re
import shlex
import shutil
from pathlib import Path

import psutil

from kapelle.domain.errors import WorkspaceError
from kapelle.engine.parts import Parts
from kapelle.engine.processes.environment import select_variables
from kapelle.home import Home, read_own
from kapelle.runner.command import Command, CommandResult, RunningCommand
from kapelle.settings.models import DockerSettings, Settings
from kapelle.workspaces import checkouts_around

SCRIPT = "in-container"
INSTRUCTIONS = (
    "Run the commands of this project (tests, package managers, its programs) in its container: "
    f"`{SCRIPT} COMMAND ARGUMENT…`. The container shows the files of your working directory."
)
_log = logging.getLogger("kapelle.container")
_BEGIN_S = 1200.0
_END_S = 30.0
_REMOVE_S = 120.0
_MOST_OUTPUT = 100_000
_NAMES = ("KAPELLE_TASK_ID", "KAPELLE_RUN_ID")
_HEAD = """\
#!/bin/sh
{set}top={top} base={base} name={name} engine={engine} marks={marks}
"""
_EXEC = """\
# Run a command in the container of this workspace; end it there when this script is ended.
here=$(pwd -P)
case "$here/" in "$top"/*) inside=${{here#"$top"}} ;; *) inside= ;; esac
# While the mark exists, the command may still run in the container.
mark=$(mktemp "$marks/$$.XXXXXXXXXX") || mark=$$.$(date +%s)
mark=${{mark##*/}}
end() {{
  trap '' TERM INT HUP
  "${{marks%/*}}/end" "$mark"
  exit 143
}}
trap end TERM INT HUP
{enter}
enter "$@" &
wait $!
code=$?
rm -f "$marks/$mark"
exit $code
"""
_END = """\
# End the commands with a mark. Without a running container there are none.
inside= mark=
{enter}
enter /bin/sh -c 'for one in /proc/[0-9]*; do
  grep -q "KAPELLE_INSIDE=$0" "$one/environ" && kill -9 "${{one#/proc/}}"
done; :' "$1" >/dev/null 2>&1 || {{
  running=$("$engine" ps -q --filter {by}"$name" {only}) && [ -z "$running" ] || exit 1
}}
rm -f "$marks/$1"
"""
_IN_IMAGE = """\
enter() {{
  "$engine" exec -e KAPELLE_INSIDE="$mark" {names}-w {workdir}"$inside" "$name" "$@"
}}"""
_IN_SERVICE = """\
cd "$base" || exit 125
enter() {{
  "$engine" compose -p "$name" {files}exec -T -e KAPELLE_INSIDE="$mark" \
    {names}{where}{service} "$@"
}}"""
_BEGIN_IMAGE = """\
"$engine" exec "$name" /bin/sh -c : >/dev/null 2>&1 && exit
"$engine" restart -t 0 "$name" >/dev/null 2>&1 && exit
exec "$engine" run -d --name "$name" -v "$top":{workdir} {user}{options} \
  --entrypoint /bin/sh {image} -c 'while :; do sleep 3600; done'
"""
_BEGIN_SERVICE = 'cd "$base" && exec "$engine" compose -p "$name" {files}up -d {service}\n'
# A missing engine is a failure: it has removed nothing.
_REMOVE = """\
left=$("$engine" ps -aq --filter {by}"$name") || exit
[ -z "$left" ] || "$engine" rm -f -v $left || exit
for kind in network volume; do
  left=$("$engine" $kind ls -q --filter {by}"$name")
  [ -z "$left" ] || "$engine" $kind rm $left
done
"""


async def begin_container(parts: Parts, settings: Settings, worktree: Path | None) -> Path | None:
    """Start the container of a worktree, if the settings ask for one, and return its script.

    The daemon starts it, because everything that a command starts is ended with the command. Raises
    WorkspaceError if the container cannot be started.
    """
    if worktree is None or not settings.workspace.docker.is_configured:
        return None
    script = await asyncio.to_thread(_write_scripts, parts.home, settings, worktree)
    await end_left_commands(parts)
    result = await _run(parts, script.parent, "begin", _BEGIN_S)
    if result.code:
        message = (result.stderr or result.stdout).decode("utf-8", "replace").strip()[-500:]
        if result.timed_out:
            how = "did not start in time"
        else:
            how = f"could not be started: {message}"
        engine = settings.workspace.docker.engine
        raise WorkspaceError(
            f"The container of the workspace {how}.", hint=f"Does `{engine} ps` work?"
        )
    return script


async def end_left_commands(parts: Parts) -> None:
    """End commands in containers whose scripts were killed.

    Such a script could not end its command: the engine owns what runs in a container.
    """
    for mark in await asyncio.to_thread(find_left_marks, parts.home.containers):
        await _run(parts, mark.parents[1], "end", _END_S, mark.name)


def find_left_marks(containers: Path) -> list[Path]:
    """Return the marks of commands whose scripts are gone."""
    marks = [*containers.glob("*/marks/*")]
    if marks:
        processes = [*psutil.process_iter(["cmdline"])]
    else:
        processes = []
    command_lines = {f"{one.pid}": "\0".join(one.info["cmdline"] or ()) for one in processes}
    all_lines = "\0".join(command_lines.values())
    # A mark begins with the pid of its script, which may not have started its command yet.
    active = {
        mark for mark in marks if SCRIPT in command_lines.get(mark.name.partition(".")[0], "")
    }
    return [mark for mark in marks if mark not in active and mark.name not in all_lines]


async def _run(
    parts: Parts, place: Path, script: str, timeout_s: float, *arguments: str
) -> CommandResult:
    env = select_variables(parts.environ, parts.settings().environment.pass_)
    command = Command([str(place / script), *arguments], env, place, timeout_s, _MOST_OUTPUT)
    return await asyncio.to_thread(RunningCommand(command).run)


def script_of(home: Home, settings: Settings, worktree: Path | None) -> Path | None:
    """Return the script that runs its arguments in the container of a worktree, if any."""
    if settings.workspace.docker.is_configured and worktree:
        return _write_scripts(home, settings, worktree)
    return None


def _write_scripts(home: Home, settings: Settings, worktree: Path) -> Path:
    """Write the scripts of a worktree's container where they differ, and return the first."""
    docker = settings.workspace.docker
    top = os.path.realpath(worktree)
    digest = hashlib.sha256(top.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    name = f"kapelle-{re.sub('[^a-z0-9]+', '-', worktree.name.lower()).strip('-')[:40]}-{digest}"
    place = home.containers / name
    (place / "marks").mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = {
        "top": shlex.quote(top),
        "base": shlex.quote(_base(settings, top)),
        "name": name,
        "engine": shlex.quote(docker.engine),
        "marks": shlex.quote(str(place / "marks")),
        # A compose file may refer to these variables.
        "set": "".join(
            f"export {one}={shlex.quote(value)}\n"
            for one, value in settings.environment.set.items()
        ),
        "names": "".join(
            f'-e {one}="${{{one}-}}" ' for one in (*_NAMES, *settings.environment.set)
        ),
        **(_service(docker) if docker.service else _image(docker)),
    }
    if docker.service:
        enter = _IN_SERVICE
        begin = _BEGIN_SERVICE
    else:
        enter = _IN_IMAGE
        begin = _BEGIN_IMAGE
    texts = {"worktree": top}
    for file, body in {SCRIPT: _EXEC, "end": _END, "begin": begin, "remove": _REMOVE}.items():
        # {enter} first, since it holds placeholders of its own.
        texts[file] = (_HEAD + body.replace("{enter}", enter)).format_map(facts)
    for file, text in texts.items():
        path = place / file
        # A command may be running the present script, so it is replaced as a whole.
        if not _holds(path, text):
            fresh = place / f".{file}.{os.getpid()}"
            fresh.write_text(text, encoding="utf-8")
            fresh.chmod(0o700)
            fresh.replace(path)
    return place / SCRIPT


def _base(settings: Settings, top: str) -> str:
    """Return the directory for compose files: that of the configuration with the service."""
    place = settings.place_of("workspace.docker.service")
    if place:
        checkouts = checkouts_around(place)
    else:
        checkouts = ()
    if place is None or not checkouts:
        return top
    return os.path.normpath(os.path.join(top, os.path.relpath(place, checkouts[0])))


def _image(docker: DockerSettings) -> dict[str, str]:
    # Files that the container writes belong to the user of the daemon.
    if "podman" in docker.engine:
        keep = "--userns=keep-id "
    else:
        keep = '--user "$(id -u):$(id -g)" '
    return {
        "workdir": shlex.quote(docker.workdir or "/workspace"),
        "user": keep if os.getuid() else "",
        "options": shlex.join(docker.options),
        "image": shlex.quote(docker.image or ""),
        "by": "name=",
        "only": "",
    }


def _service(docker: DockerSettings) -> dict[str, str]:
    return {
        "files": "".join(f"-f {shlex.quote(file)} " for file in docker.compose),
        "where": f'-w {shlex.quote(docker.workdir)}"$inside" ' if docker.workdir else "",
        "service": shlex.quote(docker.service or ""),
        "by": "label=com.docker.compose.project=",
        "only": f"--filter label=com.docker.compose.service={shlex.quote(docker.service or '')}",
    }


def _holds(path: Path, text: str) -> bool:
    try:
        return read_own(path) == text.encode()
    except OSError:
        return False


def _lacks_worktree(place: Path) -> bool:
    """Return whether the worktree of a container is gone, according to its file."""
    try:
        return not Path(os.fsdecode(read_own(place / "worktree"))).is_dir()
    except OSError:
        return False


async def remove_containers(parts: Parts) -> None:
    """Remove the containers whose worktrees are gone; retry a failed removal later."""

    def list_orphans() -> list[Path]:
        places = [script.parent for script in parts.home.containers.glob("*/remove")]
        return [place for place in places if _lacks_worktree(place)]

    for place in await asyncio.to_thread(list_orphans):
        if (await _run(parts, place, "remove", _REMOVE_S)).code:
            _log.warning("the container %s could not be removed yet", place.name)
        else:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
