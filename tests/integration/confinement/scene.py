"""A home with secrets, processes and sockets; then a confined process that attacks them.

`python3 scene.py DIRECTORY RUNG` prints the scene as a line of JSON, reads the confinement
as a line of JSON (null for none), runs `escapes.py` in it, and prints what got through, seen from
outside. It runs with the system's Python, as any user. Standard library only.
"""

import ctypes
import glob
import importlib
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = "/usr/bin/python3"
SHARED_MEMORY_KEY = 0x6B000000 + os.getpid()
SHARED_MEMORY_FILE = Path(f"/dev/shm/kapelle-escape-{os.getpid()}")
MARK = "PLANTED"
SECRET_FILES = (
    ".ssh/id_ed25519", ".aws/credentials", ".config/gh/hosts.yml", ".netrc", ".bash_history",
    ".mozilla/cookies.sqlite", ".bashrc", ".profile", "bin/tool", ".claude/projects/p",
    ".claude/settings.json", ".claude.json", ".cache/a", ".config/autostart/a", ".npm/_cacache/a",
    ".config/systemd/user/a", ".config/kapelle/config.toml", ".gitconfig", ".npmrc",
    ".local/lib/python3/site-packages/a",
)  # fmt: skip
VICTIM = """
import ctypes, signal, sys, time
signal.signal(signal.SIGURG, lambda *_: None)
secret = open(sys.argv[1])
buffer = ctypes.create_string_buffer(8)
print(secret.fileno(), ctypes.addressof(buffer), flush=True)
while True:
    time.sleep(9)
"""


class Scene:
    """Everything that a confined process must not reach, and how to see that it did not."""

    def __init__(self, directory: Path, rung: str) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.kapelle = self.home / ".local/state/kapelle"
        self.repository = self.home / "project"
        self.other = self.home / "other"
        self.workspace = self.kapelle / "work/t1"
        # Only mounts can put the workspace at the path of the repository.
        self.work = self.workspace if rung in ("none", "landlock") else self.repository
        self._servers: list[socket.socket] = []

    def build(self) -> dict[str, object]:
        for name in SECRET_FILES:
            put(self.home / name, f"# secret {name}\n")
        for name in ("token", "kapelle.db", "attempts/a1/prompt", "work/t2/README"):
            put(self.kapelle / name, f"secret {name}\n")
        (self.home / ".ssh").chmod(0o700)
        (self.kapelle / "tmp/a1").mkdir(parents=True)
        self._make_repositories()
        self.tmp_secret = Path(f"/tmp/kapelle-escape-secret-{os.getpid()}")
        put(self.tmp_secret, "secret\n")
        put(SHARED_MEMORY_FILE, "secret\n")
        ctypes.CDLL(None).shmget(SHARED_MEMORY_KEY, 16, 0o1600)
        self._victim = subprocess.Popen(
            [PYTHON, "-c", VICTIM, str(self.kapelle / "token")],
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.home,
            env={"VICTIM_SECRET": "secret"},
        )
        assert self._victim.stdout is not None
        file, address = map(int, self._victim.stdout.readline().split())
        self._master, terminal = pty.openpty()
        os.set_blocking(self._master, False)
        sockets = self._listen()
        core_limit = subprocess.run(["sh", "-c", "ulimit -Hc"], capture_output=True, text=True)
        self.facts = {
            "home": str(self.home),
            "kapelle": str(self.kapelle),
            "work": str(self.work),
            "workspace": str(self.workspace),
            "objects": str(self.kapelle / "objects/project"),
            "real_objects": str(self.repository / ".git/objects"),
            "other_repository": str(
                self.other if self.work == self.repository else self.repository
            ),
            "loose_object": str(self._loose_object()),
            "victim": self._victim.pid,
            "victim_file": file,
            "victim_address": address,
            "shared_memory_key": SHARED_MEMORY_KEY,
            "shared_memory_file": str(SHARED_MEMORY_FILE),
            "shared_tmp_file": f"/tmp/kapelle-planted-{os.getpid()}",
            "tmp_secret": str(self.tmp_secret),
            "run_file": self._run_file(),
            "sockets": sockets,
            "tcp_port": self._serve_tcp(),
            "udp_port": self._serve_udp(),
            "terminal": os.ttyname(terminal),
            "disk": next(iter(sorted(glob.glob("/dev/[vsn][dv][ame]*"))), "/dev/sda"),
            "cgroup": glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[0],
            "has_low_core_limit": core_limit.stdout.strip() != "unlimited",
        }
        return self.facts

    def _make_repositories(self) -> None:
        for place in (self.repository, self.other):
            put(place / "README", "one\n")
            git(place, "init", "-q", "-b", "main")
            git(place, "add", ".")
            git(place, "commit", "-qm", "one")
            git(place, "repack", "-adq")
        # The neutral path of the repository's objects.
        (self.kapelle / "objects").mkdir()
        os.symlink(self.repository / ".git/objects", self.kapelle / "objects/project")
        self.workspace.parent.mkdir(exist_ok=True)
        git(self.repository, "clone", "-q", "--shared", ".", str(self.workspace))
        alternates = self.workspace / ".git/objects/info/alternates"
        alternates.write_text(f"{self.kapelle}/objects/project\n")

    def _loose_object(self) -> Path:
        blob = git(self.repository, "hash-object", "-w", "--stdin", text="loose").strip()
        path = self.repository / ".git/objects" / blob[:2] / blob[2:]
        self._loose = path
        return self.kapelle / "objects/project" / blob[:2] / blob[2:]

    def _run_file(self) -> str:
        path = Path(f"/run/kapelle-escape-{os.getpid()}")
        try:
            put(path, "secret\n")
        except OSError:
            return "/run/kapelle-escape-absent"
        return str(path)

    def _listen(self) -> dict[str, str]:
        places = {
            "the daemon": str(self.kapelle / "daemon.sock"),
            "Docker": str(self.home / ".docker/run/docker.sock"),
            "an agent of SSH in /tmp": f"/tmp/ssh-kapelle-{os.getpid()}/agent.1",
            "a server in a project": str(self.other / "app.sock"),
            "a server in a cache": str(self.home / ".cache/server.sock"),
            "an abstract socket": f"@kapelle-escape-{os.getpid()}",
        }
        bus = Path(f"/run/user/{os.getuid()}")
        if not bus.exists() and os.getuid() == 0:
            bus.mkdir(parents=True)
        if os.access(bus, os.W_OK):
            places["the bus of the user"] = str(bus / f"bus-kapelle-{os.getpid()}")
        for place in places.values():
            self._serve(place.replace("@", "\0", 1))
        return places

    def _serve(self, address: str) -> None:
        if not address.startswith("\0"):
            Path(address).parent.mkdir(parents=True, exist_ok=True)
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        server.listen(50)
        self._servers.append(server)
        threading.Thread(target=_greet, args=(server,), daemon=True).start()

    def _serve_tcp(self) -> int:
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen(50)
        self._servers.append(server)
        return int(server.getsockname()[1])

    def _serve_udp(self) -> int:
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 0))
        self._servers.append(server)

        def echo() -> None:
            while True:
                data, address = server.recvfrom(16)
                server.sendto(data, address)

        threading.Thread(target=echo, daemon=True).start()
        return int(server.getsockname()[1])

    def attack(self, confinement: dict[str, object] | None) -> dict[str, object]:
        """Run the attempts in a confined process; return what it said and what got through."""
        before = self._state()
        token = os.open(self.kapelle / "token", os.O_RDONLY)
        os.dup2(token, 77, inheritable=True)
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "TMPDIR": "/tmp",
            "SCENE": json.dumps(self.facts),
            "ONLY": os.environ.get("ONLY", ""),
        }
        if confinement is not None and confinement["rung"] == "landlock":
            environment["TMPDIR"] = str(confinement["tmp"])
        reader, writer = os.pipe()
        errors, errors_writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _execute(confinement, str(self.work), environment, writer, errors_writer)
        os.close(writer)
        os.close(errors_writer)
        said = _read_to_end(reader)
        problem = _read_to_end(errors)
        status = os.waitpid(pid, 0)[1]
        attempts = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        return {
            "attempts": attempts,
            "effects": self._effects(before),
            "status": os.waitstatus_to_exitcode(status),
            "errors": problem,
        }

    def _state(self) -> dict[str, object]:
        packs = self.repository / ".git/objects/pack"
        return {
            "packs": sorted(os.listdir(packs)),
            "loose object": self._loose.exists(),
            "mode of .ssh": (self.home / ".ssh").stat().st_mode,
            "mode of .bashrc": (self.home / ".bashrc").stat().st_mode,
            "time of .bashrc": (self.home / ".bashrc").stat().st_mtime_ns,
            ".profile": (self.home / ".profile").read_text(encoding="utf-8"),
            ".bashrc": (self.home / ".bashrc").read_text(encoding="utf-8"),
            "commands of the agent": sorted(os.listdir(self.home / ".claude")) != []
            and (self.home / ".claude/commands").is_dir(),
            "memory score": self._memory_score(),
            "objects": sorted(os.listdir(self.repository / ".git/objects/info")),
        }

    def _memory_score(self) -> str:
        return Path(f"/proc/{self._victim.pid}/oom_score_adj").read_text(encoding="ascii")

    def _effects(self, before: dict[str, object]) -> list[str]:
        """Return everything outside that is not as it was."""
        # A command of the user in the workspace after the attempt.
        environment = {**os.environ, "HOME": str(self.home)}
        subprocess.run(["git", "status"], cwd=self.workspace, env=environment, capture_output=True)
        after = self._state()
        effects = [name for name in before if before[name] != after[name]]
        if (self.home / "RAN").exists():
            effects.append("a planted command of git ran")
        own = (
            self.workspace,
            self.kapelle / "tmp/a1",
            self.home / ".cache",
            self.home / ".claude/projects",
            self.home / ".claude/state.json",
        )
        for top in (self.home, Path("/etc"), Path("/var/spool/cron")):
            for path in top.rglob("*") if top == self.home else top.glob("*planted*"):
                if path.is_file() and not any(path.is_relative_to(place) for place in own):
                    try:
                        text = path.read_text(errors="replace")
                    except OSError:
                        continue
                    if MARK in text and "escapes" not in path.name:
                        effects.append(f"written: {path.relative_to(top)}")
        if Path(str(self.facts["shared_tmp_file"])).exists():
            effects.append("written: a file in the shared /tmp")
        try:
            if MARK.encode() in os.read(self._master, 4096):
                effects.append("written: the user's terminal")
        except OSError:
            pass
        return effects

    def close(self) -> None:
        self._victim.send_signal(signal.SIGKILL)
        self._victim.wait()
        for server in self._servers:
            server.close()
        libc = ctypes.CDLL(None)
        libc.shmctl(libc.shmget(SHARED_MEMORY_KEY, 16, 0), 0, None)
        for path in (
            self.tmp_secret,
            SHARED_MEMORY_FILE,
            Path(str(self.facts["run_file"])),
            Path(str(self.facts["shared_tmp_file"])),
            Path("/etc/kapelle-planted"),
            Path("/var/spool/cron/crontabs/x"),
            Path("/var/spool/cron/atjobs/x"),
        ):
            path.unlink(missing_ok=True)
        shutil.rmtree(f"/tmp/ssh-kapelle-{os.getpid()}", ignore_errors=True)
        bus = self.facts["sockets"].get("the bus of the user")  # type: ignore[attr-defined]
        if bus:
            Path(bus).unlink(missing_ok=True)


def _greet(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        connection.send(b"HELLO")
        connection.close()


def _read_to_end(file: int) -> str:
    with open(file, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def _execute(
    fields: dict[str, object] | None,
    directory: str,
    environment: dict[str, str],
    output: int,
    errors: int,
) -> None:
    """Become the confined process, as the shim's child does."""
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(errors, 2)
        words: list[bytes] = []
        if fields is not None:
            os.closerange(3, 100)
            sys.path.insert(0, str(HERE))
            confinement = importlib.import_module("shim.confinement")
            request = importlib.import_module("shim.request")

            words = confinement.apply(request.Confinement(_with_tuples(fields)), directory)
        if not words:
            os.chdir(directory)
        script = (HERE / "escapes.py").read_text() if fields is None else None
        argv = [PYTHON, str(HERE / "escapes.py")] if script is None else [PYTHON, "-c", script]
        words += map(os.fsencode, argv)
        os.execve(words[0], words, environment)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(126)


def _with_tuples(fields: dict[str, object]) -> dict[str, object]:
    def convert(value: object) -> object:
        return tuple(convert(item) for item in value) if isinstance(value, list) else value

    return {name: convert(value) for name, value in fields.items()}


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def git(place: Path, *arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=u", "-c", "user.email=u@u", *arguments],
        cwd=place,
        check=True,
        capture_output=True,
        text=True,
        input=text,
    )
    return done.stdout


def main() -> None:
    scene = Scene(Path(sys.argv[1]), sys.argv[2])
    facts = scene.build()
    try:
        print(json.dumps(facts), flush=True)
        confinement = json.loads(sys.stdin.readline())
        print(json.dumps(scene.attack(confinement)), flush=True)
    finally:
        scene.close()


if __name__ == "__main__":
    main()
