"""The container of a workspace: a script that runs commands in it, and its removal.

All that is known of a container lies in a directory of the home that is written before it is begun,
so that a new daemon finds it; it goes when its worktree is gone.
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
from kapelle.engine.environment import passed
from kapelle.engine.parts import Parts
from kapelle.home import Home, read_own
from kapelle.runner.command import Command, CommandResult, RunningCommand
from kapelle.settings.models import DockerSettings, Settings
from kapelle.workspaces import checkouts_around

SCRIPT = "in-container"
TOLD = (
    "The commands of this project (tests, package managers, its programs) run in a container: "
    f"write `{SCRIPT} COMMAND ARGUMENT…`. The files in it are those of your working directory."
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
# Runs a command in the container of this workspace, and ends it there when this is ended.
here=$(pwd -P)
case "$here/" in "$top"/*) inside=${{here#"$top"}} ;; *) inside= ;; esac
# As long as its mark is there, it may be that it still runs there.
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
# Ends what runs in the container by a mark; where no container runs, nothing does.
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
# An engine that is not there has removed nothing.
_REMOVE = """\
left=$("$engine" ps -aq --filter {by}"$name") || exit
[ -z "$left" ] || "$engine" rm -f -v $left || exit
for kind in network volume; do
  left=$("$engine" $kind ls -q --filter {by}"$name")
  [ -z "$left" ] || "$engine" $kind rm $left
done
"""


async def begin_container(parts: Parts, settings: Settings, worktree: Path | None) -> Path | None:
    """Have the container of a worktree run, if it is to have one, and give its script.

    It is the daemon that begins it, for all that a command begins is ended with the command.
    """
    if worktree is None or not settings.workspace.docker.is_configured:
        return None
    script = await asyncio.to_thread(_written, parts.home, settings, worktree)
    await end_left(parts)
    ended = await _run(parts, script.parent, "begin", _BEGIN_S)
    if ended.code:
        told = (ended.stderr or ended.stdout).decode("utf-8", "replace").strip()[-500:]
        if ended.timed_out:
            how = "was not there in time"
        else:
            how = f"could not be begun: {told}"
        engine = settings.workspace.docker.engine
        raise WorkspaceError(
            f"The container of the workspace {how}.", hint=f"Does `{engine} ps` work?"
        )
    return script


async def end_left(parts: Parts) -> None:
    """End what runs in containers though its command here was killed, and could not end it: what
    an engine executes belongs to the engine."""
    for mark in await asyncio.to_thread(left_marks, parts.home.containers):
        await _run(parts, mark.parents[1], "end", _END_S, mark.name)


def left_marks(containers: Path) -> list[Path]:
    """The marks of commands whose scripts are gone."""
    marks = [*containers.glob("*/marks/*")]
    if marks:
        every = [*psutil.process_iter(["cmdline"])]
    else:
        every = []
    going = {f"{one.pid}": "\0".join(one.info["cmdline"] or ()) for one in every}
    here = "\0".join(going.values())
    # A script that has its mark, which begins with its pid, may not have come to its command yet.
    begun = {mark for mark in marks if SCRIPT in going.get(mark.name.partition(".")[0], "")}
    return [mark for mark in marks if mark not in begun and mark.name not in here]


async def _run(
    parts: Parts, place: Path, script: str, timeout_s: float, *arguments: str
) -> CommandResult:
    env = passed(parts.environ, parts.settings().environment.pass_)
    command = Command([str(place / script), *arguments], env, place, timeout_s, _MOST_OUTPUT)
    return await asyncio.to_thread(RunningCommand(command).run)


def script_of(home: Home, settings: Settings, worktree: Path | None) -> Path | None:
    """The script that runs its arguments in the container of a worktree; None without one."""
    wanted = settings.workspace.docker.is_configured
    if wanted and worktree:
        return _written(home, settings, worktree)
    return None


def _written(home: Home, settings: Settings, worktree: Path) -> Path:
    docker = settings.workspace.docker
    top = os.path.realpath(worktree)
    digest = hashlib.sha256(top.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    name = f"kapelle-{re.sub('[^a-z0-9]+', '-', worktree.name.lower()).strip('-')[:40]}-{digest}"
    place = home.containers / name
    (place / "marks").mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = {
        "top": shlex.quote(top), "base": shlex.quote(_base(settings, top)), "name": name,
        "engine": shlex.quote(docker.engine),
        "marks": shlex.quote(str(place / "marks")),
        # A compose file may use them.
        "set": "".join(
            f"export {one}={shlex.quote(value)}\n"
            for one, value in settings.environment.set.items()
        ),
        "names": "".join(
            f'-e {one}="${{{one}-}}" ' for one in (*_NAMES, *settings.environment.set)
        ),
        **(_service(docker) if docker.service else _image(docker)),
    }  # fmt: skip
    enter, begin = (_IN_SERVICE, _BEGIN_SERVICE) if docker.service else (_IN_IMAGE, _BEGIN_IMAGE)
    scripts = {SCRIPT: _EXEC, "end": _END, "begin": begin, "remove": _REMOVE}
    bodies = {file: body.replace("{enter}", enter) for file, body in scripts.items()}
    texts = {file: (_HEAD + body).format_map(facts) for file, body in bodies.items()}
    for file, text in {"worktree": top, **texts}.items():
        path = place / file
        if not _holds(path, text):
            fresh = place / f".{file}.{os.getpid()}"
            fresh.write_text(text, encoding="utf-8")
            fresh.chmod(0o700)
            fresh.replace(path)
    return place / SCRIPT


def _base(settings: Settings, top: str) -> str:
    """Return where compose files are looked for: where the configuration with the service lies."""
    place = settings.place_of("workspace.docker.service")
    if place:
        checkouts = checkouts_around(place)
    else:
        checkouts = ()
    if place is None or not checkouts:
        return top
    return os.path.normpath(os.path.join(top, os.path.relpath(place, checkouts[0])))


def _image(docker: DockerSettings) -> dict[str, str]:
    # What is written in it belongs to whoever runs the daemon.
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
    """Whether the worktree of a container is gone, as far as its file tells."""
    try:
        return not Path(os.fsdecode(read_own(place / "worktree"))).is_dir()
    except OSError:
        return False


async def remove_containers(parts: Parts) -> None:
    """Remove the containers whose worktrees are gone; one that cannot be is tried again later."""

    def orphans() -> list[Path]:
        found = [*parts.home.containers.glob("*/remove")]
        return [one.parent for one in found if _lacks_worktree(one.parent)]

    for place in await asyncio.to_thread(orphans):
        if (await _run(parts, place, "remove", _REMOVE_S)).code:
            _log.warning("the container %s could not be removed yet", place.name)
        else:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
