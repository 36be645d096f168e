"""Worktrees with a container each: set-up, checks and the agent's own commands run in it."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kapelle.engine.processes.container import find_left_marks, script_of
from kapelle.home import Home
from kapelle.settings import Settings
from tests.e2e.support.ensembles import play
from tests.e2e.support.instance import Instance
from tests.e2e.support.repositories import git
from tests.e2e.support.staging import until

# An engine without a registry and without rights that a test machine may lack.
_SETTINGS = """
[containers]
default_ulimits = ["nofile=1000:1000", "nproc=1000:1000"]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
_STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{0}/graph"\nrunroot = "{0}/run"\n'
_PROGRAMS = ("sh", "cat", "grep", "test", "sleep", "touch", "true")
_IMAGE = "localhost/kapelle-test:latest"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A program like podman with an image of its own, made of busybox; skipped where none runs."""
    podman, busybox = shutil.which("podman"), shutil.which("busybox")
    if podman is None or busybox is None:
        pytest.skip("no podman and busybox-static here (apt-get install podman busybox-static)")
    place = tmp_path_factory.mktemp("engine")
    (place / "containers.conf").write_text(_SETTINGS)
    (place / "storage.conf").write_text(_STORAGE.format(place))
    runtime = "--runtime runc" if shutil.which("runc") else ""
    program = place / "podman"
    program.write_text(
        f"""#!/bin/sh
export CONTAINERS_CONF={place}/containers.conf CONTAINERS_STORAGE_CONF={place}/storage.conf
if [ "$1" = compose ]; then shift; exec podman-compose --podman-path "$0" "$@"; fi
exec {podman} {runtime} "$@"
"""
    )
    program.chmod(0o755)
    root = place / "root"
    (root / "bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "etc" / "inside").write_text("inside\n")
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in _PROGRAMS:
        (root / "bin" / name).symlink_to("busybox")
    archive = place / "image.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    try:
        for argv in (["import", str(archive), _IMAGE], ["run", "--rm", _IMAGE, "/bin/true"]):
            done = subprocess.run([program, *argv], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no container runs here: {done.stderr.strip()[-300:]}")
        yield program
    finally:
        subprocess.run([program, "rm", "-a", "-f"], capture_output=True, check=False)
        shutil.rmtree(place, ignore_errors=True)


def _containers(engine: Path) -> list[str]:
    found = subprocess.run(
        [engine, "ps", "-a", "--format", "{{.Names}}"], capture_output=True, text=True, check=True
    )
    return found.stdout.split()


def _configure(repository: Path, text: str) -> None:
    (repository / ".kapelle").mkdir()
    (repository / ".kapelle" / "config.toml").write_text(text, encoding="utf-8")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "A container for each worktree")


def test_setup_checks_and_the_agents_commands_run_in_the_workspaces_container(
    kapelle: Instance, repository: Path, engine: Path, tmp_path: Path
) -> None:
    _configure(
        repository,
        f"""
[workspace]
setup = "touch /etc/was-set-up; cat /etc/inside > setup.txt"
[workspace.docker]
engine = {json.dumps(str(engine))}
image = "{_IMAGE}"
workdir = "/work"
""",
    )
    go = tmp_path / "go"
    work = play(
        {"run": f"test ! -e /etc/was-set-up; until test -e {go}; do sleep 0.1; done"},
        {"run": "mkdir sub; cd sub; in-container cat /etc/inside > ../seen.txt"},
    )
    checks = [
        "cat setup.txt seen.txt | grep -c inside",
        "test -e /etc/was-set-up -a -e /work/sub/..",
    ]
    task_id = kapelle.submit(work, repository, agent="rehearsal", checks=checks)
    kapelle.wait_for_status(task_id, "running")
    prompt = kapelle.home.attempts / kapelle.task(task_id)["attempts"][0]["id"] / "prompt"
    # The daemon dies, and the container is found again, as it was set up.
    kapelle.kill()
    kapelle.start()
    go.touch()
    task = kapelle.wait(task_id, timeout_s=180)
    said = kapelle.output(task_id, "err").decode()
    assert task["status"] == "completed", f"{task['reason']} {said}"
    assert [check["output"].strip() for check in task["checks"]] == ["2", ""]
    assert "in-container COMMAND" in prompt.read_text(encoding="utf-8")
    (name,) = _containers(engine)
    assert task_id.replace("_", "-") in name
    assert not Path("/etc/was-set-up").exists()
    kapelle.post(f"/tasks/{task_id}/merge")
    # What its worktree was is gone, and so is what ran in it.
    kapelle.kill()
    kapelle.start()
    until(lambda: not _containers(engine), "the container is removed")
    until(lambda: not any(kapelle.home.containers.iterdir()), "nothing is known of it")


def test_a_command_that_is_killed_with_its_script_is_ended_in_the_container_too(
    kapelle: Instance, repository: Path, engine: Path, tmp_path: Path
) -> None:
    docker = f'engine = {json.dumps(str(engine))}\nimage = "{_IMAGE}"\n'
    _configure(repository, f"[workspace.docker]\n{docker}")
    go = tmp_path / "go"
    work = play({"run": f"in-container true; until test -e {go}; do sleep 0.1; done"})
    task_id = kapelle.submit(work, repository, agent="rehearsal")
    until(lambda: [*kapelle.home.containers.glob("*/in-container")], "its container has begun")
    (script,) = kapelle.home.containers.glob("*/in-container")
    (name,) = until(lambda: _containers(engine), "it is there")

    def runs(command: str) -> bool:
        """Whether a command runs in the container, asked of the engine."""
        look = f"grep -q '[{command[0]}]{command[1:]}' /proc/[0-9]*/cmdline"
        asked = [engine, "exec", name, "/bin/sh", "-c", look]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    # Both are as in the tree of an agent that is killed at once: one goes on, one does not.
    killed, going = (
        subprocess.Popen([script, "/bin/sleep", number], start_new_session=True)
        for number in ("4242", "2424")
    )
    until(lambda: runs("4242") and runs("2424"), "both run there")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert runs("4242"), "what is executed belongs to the engine, and outlives its client"
    go.touch()
    assert kapelle.wait(task_id, timeout_s=180)["status"] == "completed"
    assert not runs("4242")
    assert runs("2424")
    assert len([*script.parent.glob("marks/*")]) == 1
    os.killpg(going.pid, signal.SIGTERM)
    going.wait()
    assert not runs("2424")
    assert not [*script.parent.glob("marks/*")]
    # Nothing runs in a container that was stopped: what was left in it is forgotten.
    mark = script.parent / "marks" / "1.abcdefghij"
    mark.touch()
    subprocess.run([engine, "stop", "-t", "0", name], capture_output=True, check=True)
    subprocess.run([script.parent / "end", mark.name], check=True)
    assert not mark.exists()
    subprocess.run([engine, "rm", "-f", name], capture_output=True, check=True)


# As Docker does it: what is executed belongs to another process, and outlives its client.
_REMOTE = """#!/bin/sh
shift
while :; do
  case "$1" in -e) export "$2"; shift 2 ;; -w) shift 2 ;; *) break ;; esac
done
shift
setsid "$@" &
wait $!
"""


def test_a_command_is_ended_in_its_container_with_its_script(tmp_path: Path) -> None:
    engine, pid = tmp_path / "docker", tmp_path / "pid"
    engine.write_text(_REMOTE)
    engine.chmod(0o755)
    docker = {"engine": str(engine), "image": "any"}
    settings = Settings.model_validate({"workspace": {"docker": docker}})
    script = script_of(Home(tmp_path / "home"), settings, tmp_path)
    assert script is not None
    inner = f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600"
    began = subprocess.Popen([script, "/bin/sh", "-c", inner], start_new_session=True)
    until(pid.exists, "it has begun")
    os.killpg(began.pid, signal.SIGTERM)
    assert began.wait() == 143
    until(lambda: not _sleeps(int(pid.read_text())), "it is ended too")
    assert subprocess.run([script, "/bin/sh", "-c", "exit 7"], check=False).returncode == 7


@pytest.mark.parametrize("service", [None, "app"])
@pytest.mark.parametrize(
    ("listed", "is_kept"), [("echo 1234", True), ("exit 125", True), ("true", False)]
)
def test_a_mark_is_kept_only_while_something_may_run_by_it(
    tmp_path: Path, service: str | None, listed: str, is_kept: bool
) -> None:
    """The container runs but cannot be entered, the engine is away, the container was stopped."""
    engine = tmp_path / "docker"
    engine.write_text(f'#!/bin/sh\n[ "$1" = ps ] || exit 1\n{listed}\n')
    engine.chmod(0o755)
    docker = {"engine": str(engine), **({"service": service} if service else {"image": "any"})}
    settings = Settings.model_validate({"workspace": {"docker": docker}})
    script = script_of(Home(tmp_path / "home"), settings, tmp_path)
    assert script is not None
    mark = script.parent / "marks" / "1.abcdefghij"
    mark.touch()
    done = subprocess.run([script.parent / "end", mark.name], check=False)
    assert (done.returncode != 0, mark.exists()) == (is_kept, is_kept)


def test_a_script_that_has_its_mark_and_not_its_command_yet_is_not_taken_for_killed(
    tmp_path: Path,
) -> None:
    marks = tmp_path / "any" / "marks"
    marks.mkdir(parents=True)
    script = tmp_path / "in-container"
    script.write_text("#!/bin/sh\nread never\n")
    script.chmod(0o755)
    began = subprocess.Popen([script], stdin=subprocess.PIPE)
    mark = marks / f"{began.pid}.abcdefghij"
    mark.touch()
    until(lambda: b"in-container" in Path(f"/proc/{began.pid}/cmdline").read_bytes(), "it runs")
    assert find_left_marks(tmp_path) == []
    began.kill()
    began.communicate()
    assert find_left_marks(tmp_path) == [mark]


def _sleeps(pid: int) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


_COMPOSE = """
services:
  laravel.test:
    build: {context: ./vendor/laravel/sail/runtimes/8.4, dockerfile: Dockerfile}
    image: localhost/sail-8.4/app
    command: ["/bin/sh", "-c", "while :; do sleep 3600; done"]
    working_dir: /var/www/html
    environment: {LARAVEL_SAIL: 1, SEEN_PORT: "${APP_PORT:-80}"}
    volumes: [".:/var/www/html"]
"""


def test_a_service_of_a_compose_file_is_the_workspaces_container(
    kapelle: Instance, repository: Path, engine: Path
) -> None:
    """As Laravel's Sail has it: the image is built from vendor, which git ignores, and the worktree
    is mounted by the compose file itself."""
    if shutil.which("podman-compose") is None:
        pytest.skip("no podman-compose here (apt-get install podman-compose)")
    runtime = repository / "vendor" / "laravel" / "sail" / "runtimes" / "8.4"
    runtime.mkdir(parents=True)
    (runtime / "Dockerfile").write_text(f"FROM {_IMAGE}\nENV BUILT=here\n", encoding="utf-8")
    sail = repository / "vendor" / "bin" / "sail"
    sail.parent.mkdir()
    sail.write_text('#!/bin/sh\nexec in-container "$@"\n', encoding="utf-8")
    sail.chmod(0o755)
    (repository / ".gitignore").write_text("/vendor\n", encoding="utf-8")
    (repository / "compose.yaml").write_text(_COMPOSE, encoding="utf-8")
    _configure(
        repository,
        f"""
[environment.set]
APP_PORT = "0"
[workspace]
copy = ["vendor"]
[workspace.docker]
engine = {json.dumps(str(engine))}
service = "laravel.test"
workdir = "/var/www/html"
""",
    )
    work = play({"run": "vendor/bin/sail cat /etc/inside > seen.txt"})
    checks = [
        "grep inside /var/www/html/seen.txt /etc/inside",
        'test "$LARAVEL_SAIL $BUILT $SEEN_PORT" = "1 here 0"',
    ]
    task_id = kapelle.submit(work, repository, agent="rehearsal", checks=checks)
    task = kapelle.wait(task_id, timeout_s=180)
    said = kapelle.output(task_id, "err").decode()
    if "netavark" in said or "network" in (task["reason"] or ""):
        pytest.skip(f"no network of containers here: {task['reason']}")
    assert task["status"] == "completed", f"{task['reason']} {said}"
    assert len(_containers(engine)) == 1
    kapelle.post(f"/tasks/{task_id}/archive")
    kapelle.kill()
    kapelle.start()
    until(lambda: not _containers(engine), "the container is removed")
