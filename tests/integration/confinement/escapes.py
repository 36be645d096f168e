"""A program that tries to get out of its confinement; it runs inside, with the system's Python.

It prints a line of JSON for each attempt: its name, and whether it seemed to work. The scene
outside looks whether it really did. Standard library only.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable

SCENE = json.loads(os.environ["SCENE"])
HOME, KAPELLE, WORK, VICTIM = (SCENE[name] for name in ("home", "kapelle", "work", "victim"))
OTHER_REPOSITORY = SCENE["other_repository"]
OBJECTS = SCENE["objects"]
MARK = "PLANTED"

libc = ctypes.CDLL(None, use_errno=True)
is_arm = platform.machine() == "aarch64"
# System calls: x86_64, aarch64.
NUMBERS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "pidfd_getfd": (438, 438),
    "setns": (308, 268), "prlimit64": (302, 261), "keyctl": (250, 219), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442),
    "io_uring_setup": (425, 425), "userfaultfd": (323, 282), "bpf": (321, 280),
    "perf_event_open": (298, 241), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "process_vm_writev": (311, 271), "pivot_root": (155, 41), "add_key": (248, 217),
    "init_module": (175, 105), "kexec_load": (246, 104),
}  # fmt: skip

CONTROLS: dict[str, Callable[[], object]] = {}
ESCAPES: dict[str, Callable[[], object]] = {}
# Attempts after which others could not be made any more.
LAST: dict[str, Callable[[], object]] = {}


def call(name: str, *arguments: object) -> int:
    result = libc.syscall(NUMBERS[name][is_arm], *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def mount(source: str | None, target: str, flags: int, kind: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    if libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), "mount")


def unmount(*paths: str) -> None:
    for path in paths:
        libc.umount2(path.encode(), 2)


def write(path: str, text: str = MARK, mode: str = "w") -> None:
    with open(path, mode) as file:
        file.write(text)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(64)
    if not data:
        raise OSError(errno.ENODATA, "it is empty")
    return data


def read_all(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def refuse_unless(condition: object) -> None:
    if not condition:
        raise OSError(errno.EPERM, "it had no effect")


def git(*arguments: str, cwd: str = WORK) -> str:
    command = ["git", "-C", cwd, "-c", "user.name=a", "-c", "user.email=a@a", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(errno.EPERM, done.stderr.strip()[-200:])
    return done.stdout


def connect(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(2)
        client.connect(address)
        refuse_unless(client.recv(5) == b"HELLO")


def link_to(path: str, name: str) -> str:
    link = os.path.join(WORK, name)
    if not os.path.lexists(link):
        os.symlink(path, link)
    return link


# --- what must work --------------------------------------------------------------------------


def commit() -> None:
    write(f"{WORK}/commit.txt", os.urandom(4).hex())
    git("add", "commit.txt")
    git("commit", "-qm", "by the agent")
    git("status")


def use_multiprocessing() -> None:
    program = (
        "import multiprocessing as m; q = m.Queue(); l = m.Lock();"
        "p = m.Process(target=q.put, args=(1,)); p.start(); assert q.get(timeout=9) == 1; p.join()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def use_own_socket() -> None:
    path = f"{os.environ['TMPDIR']}/own.sock"
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)
    os.unlink(path)


def use_loopback() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        socket.create_connection(server.getsockname(), 2).close()


def replace_state() -> None:
    write(f"{HOME}/.claude/state.tmp")
    os.rename(f"{HOME}/.claude/state.tmp", f"{HOME}/.claude/state.json")


CONTROLS |= {
    "write into the workspace": lambda: write(f"{WORK}/written.txt"),
    "write into a cache": lambda: write(f"{HOME}/.cache/written"),
    "write a temporary file": lambda: write(f"{os.environ['TMPDIR']}/written"),
    "commit with git": commit,
    "open a terminal": os.openpty,
    "write to /dev/null": lambda: write("/dev/null"),
    "use multiprocessing": use_multiprocessing,
    "write the state of the agent": lambda: write(f"{HOME}/.claude/projects/session.jsonl"),
    "replace a file of that state": replace_state,
    "list the home directory": lambda: os.listdir(HOME),
    "execute a program": lambda: subprocess.run(["git", "--version"], check=True),
    "use a Unix socket of one's own": use_own_socket,
    "make a named pipe": lambda: os.mkfifo(f"{os.environ['TMPDIR']}/pipe"),
    "listen on the loopback device": use_loopback,
}

# --- writing -----------------------------------------------------------------------------------

OUTSIDE = {
    "a file in the home directory": f"{HOME}/planted",
    "a program on PATH": f"{HOME}/bin/git",
    "authorized_keys": f"{HOME}/.ssh/authorized_keys",
    "an autostart entry": f"{HOME}/.config/autostart/x.desktop",
    "a systemd unit": f"{HOME}/.config/systemd/user/x.service",
    "a crontab": "/var/spool/cron/crontabs/x",
    "an at job": "/var/spool/cron/atjobs/x",
    "a file in /etc": "/etc/kapelle-planted",
    "another repository": f"{OTHER_REPOSITORY}/README",
    "a hook of another repository": f"{OTHER_REPOSITORY}/.git/hooks/post-checkout",
    "the workspace of another task": f"{KAPELLE}/work/t2/planted",
    "the shared /tmp": SCENE["shared_tmp_file"],
    "settings of the agent with a hook": f"{HOME}/.claude/settings.json",
    "a command of the agent": f"{HOME}/.claude/commands/x.md",
    "the settings of Kapelle": f"{HOME}/.config/kapelle/config.toml",
    "the exit record of an attempt": f"{KAPELLE}/attempts/a1/exit.json",
    "the user's configuration of git": f"{HOME}/.gitconfig",
    "the objects of the user's repository": f"{OBJECTS}/info/planted",
    "a startup file of Python": f"{HOME}/.local/lib/python3/site-packages/x.pth",
    "a configuration of npm": f"{HOME}/.npmrc",
}
for _name, _path in OUTSIDE.items():
    ESCAPES[f"write {_name}"] = lambda path=_path: write(path)  # type: ignore[misc]


def delete_pack() -> None:
    pack = f"{OBJECTS}/pack"
    for name in os.listdir(pack):
        os.rename(f"{pack}/{name}", f"{pack}/z{name}")


def write_renamed() -> None:
    write(f"{WORK}/renamed")
    os.rename(f"{WORK}/renamed", f"{HOME}/planted2")


def write_linked() -> None:
    write(f"{WORK}/linked")
    os.link(f"{WORK}/linked", f"{HOME}/planted3")


def race_symlinks() -> None:
    """Exchange a directory and a link while another thread writes through it."""
    os.makedirs(f"{WORK}/race", exist_ok=True)
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for target in (f"{WORK}/race", HOME):
                try:
                    os.symlink(target, f"{WORK}/swap.new")
                    os.rename(f"{WORK}/swap.new", f"{WORK}/swap")
                except OSError:
                    pass

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                write(f"{WORK}/swap/planted-race")
    finally:
        stop.set()
        thread.join()


def read_by_cache() -> None:
    link = f"{HOME}/.cache/keys"
    if not os.path.lexists(link):
        os.symlink(f"{HOME}/.ssh", link)
    read(f"{link}/id_ed25519")


ESCAPES |= {
    "append to .bashrc": lambda: write(f"{HOME}/.bashrc", MARK, "a"),
    "append to the state of the agent with servers": lambda: write(
        f"{HOME}/.claude.json", MARK, "a"
    ),
    "delete an object of the user's repository": lambda: os.unlink(SCENE["loose_object"]),
    "rename packs of the user's repository": delete_pack,
    "rename a file out": write_renamed,
    "hard link a file out": write_linked,
    "write through a symbolic link": lambda: write(link_to(f"{HOME}/.bashrc", "bashrc"), MARK, "a"),
    "write through /proc/self/root": lambda: write(f"/proc/self/root{HOME}/planted4"),
    "write through /proc/PID/root": lambda: write(f"/proc/{VICTIM}/root{HOME}/planted5"),
    "write through /proc/PID/cwd": lambda: write(f"/proc/{VICTIM}/cwd/planted6"),
    "truncate .profile": lambda: os.truncate(f"{HOME}/.profile", 0),
    "change the mode of .ssh": lambda: os.chmod(f"{HOME}/.ssh", 0o755),
    "change the mode of .bashrc": lambda: os.chmod(f"{HOME}/.bashrc", 0o777),
    "change the time of .bashrc": lambda: os.utime(f"{HOME}/.bashrc", (1, 1)),
    "set an extended attribute": lambda: os.setxattr(f"{HOME}/.bashrc", "user.planted", b"x"),
    "swap a link during a write": race_symlinks,
    "write by a shared mapping": lambda: mmap.mmap(
        os.open(f"{HOME}/.bashrc", os.O_RDWR), 0
    ).__setitem__(0, 88),
    "poison the objects by an alternate": lambda: write(f"{OBJECTS}/info/alternates", WORK),
    "replace the settings of the agent by a rename": lambda: os.rename(
        f"{HOME}/.claude/projects/session.jsonl", f"{HOME}/.claude/settings.json"
    ),
    "move the directory of commands of the agent": lambda: os.rename(
        f"{HOME}/.claude/commands", f"{HOME}/.claude/commands-old"
    ),
    "make a link in a cache to .ssh, and read it": read_by_cache,
}

# --- reading -----------------------------------------------------------------------------------

SECRETS = {
    "the token of the daemon": f"{KAPELLE}/token",
    "the database": f"{KAPELLE}/kapelle.db",
    "a key of SSH": f"{HOME}/.ssh/id_ed25519",
    "credentials of AWS": f"{HOME}/.aws/credentials",
    "the token of gh": f"{HOME}/.config/gh/hosts.yml",
    ".netrc": f"{HOME}/.netrc",
    "cookies of a browser": f"{HOME}/.mozilla/cookies.sqlite",
    "the workspace of another task": f"{KAPELLE}/work/t2/README",
    "a key through /proc/self/root": f"/proc/self/root{HOME}/.ssh/id_ed25519",
    "the token through /proc/PID/root": f"/proc/{VICTIM}/root{KAPELLE}/token",
    "an open file of another process": f"/proc/{VICTIM}/fd/{SCENE['victim_file']}",
    "the environment of another process": f"/proc/{VICTIM}/environ",
    "the memory map of another process": f"/proc/{VICTIM}/maps",
    "shared memory of another process": SCENE["shared_memory_file"],
    "an inherited file": "/proc/self/fd/77",
    "a key through a symbolic link": "LINK",
    "a history of a shell": f"{HOME}/.bash_history",
    "an argument file below /run": SCENE["run_file"],
}
for _name, _path in SECRETS.items():
    if _path == "LINK":
        ESCAPES[f"read {_name}"] = lambda: read(link_to(f"{HOME}/.ssh/id_ed25519", "key"))
    else:
        ESCAPES[f"read {_name}"] = lambda path=_path: read(path)  # type: ignore[misc]


def read_hard_link() -> None:
    os.link(f"{HOME}/.ssh/id_ed25519", f"{WORK}/hard")
    read(f"{WORK}/hard")


def open_by_handle() -> None:
    handle = ctypes.create_string_buffer(struct.pack("II", 128, 0) + bytes(128))
    mount_id = ctypes.c_int()
    call("name_to_handle_at", -100, f"{HOME}/.bashrc".encode(), handle, ctypes.byref(mount_id), 0)
    call("open_by_handle_at", os.open(HOME, os.O_RDONLY), handle, os.O_RDONLY)


ESCAPES |= {
    "read a key through a hard link": read_hard_link,
    "read the disk": lambda: read(SCENE["disk"]),
    "list the home of Kapelle": lambda: refuse_unless("token" in os.listdir(KAPELLE)),
    "open a file by its handle": open_by_handle,
    "list the user's temporary files": lambda: refuse_unless(
        os.path.basename(SCENE["tmp_secret"]) in os.listdir("/tmp")
    ),
    "read the kernel's memory": lambda: read("/proc/kcore"),
    "read messages of the kernel": lambda: os.read(os.open("/dev/kmsg", os.O_RDONLY), 8192),
}

# --- processes ---------------------------------------------------------------------------------


def attach_debugger() -> None:
    call("ptrace", 16, VICTIM, 0, 0)
    os.waitpid(VICTIM, 0x40000000)
    call("ptrace", 17, VICTIM, 0, 0)


def vector(address: int, length: int) -> bytes:
    return struct.pack("PN", address, length)


def read_memory() -> None:
    buffer = ctypes.create_string_buffer(8)
    local = vector(ctypes.addressof(buffer), 8)
    remote = vector(SCENE["victim_address"], 8)
    call("process_vm_readv", VICTIM, local, 1, remote, 1, ctypes.c_long(0))


def write_memory() -> None:
    buffer = ctypes.create_string_buffer(b"12345678")
    local = vector(ctypes.addressof(buffer), 8)
    remote = vector(SCENE["victim_address"], 8)
    call("process_vm_writev", VICTIM, local, 1, remote, 1, ctypes.c_long(0))


def enter_namespace() -> None:
    call("setns", os.open(f"/proc/{VICTIM}/ns/mnt", os.O_RDONLY), 0x20000)
    read(f"{KAPELLE}/token")


def enter_user_namespace() -> None:
    call("setns", os.open(f"/proc/{VICTIM}/ns/user", os.O_RDONLY), 0x10000000)


def gain_privileges() -> None:
    with open("/proc/self/status", encoding="ascii") as file:
        refuse_unless("NoNewPrivs:\t0" in file.read())


def find_shared_memory() -> None:
    if libc.shmget(SCENE["shared_memory_key"], 16, 0) < 0:
        raise OSError(ctypes.get_errno(), "no segment")


ESCAPES |= {
    "signal another process": lambda: os.kill(VICTIM, signal.SIGURG),
    "see whether another process can be signalled": lambda: os.kill(VICTIM, 0),
    "signal another process by a descriptor": lambda: signal.pidfd_send_signal(
        os.pidfd_open(VICTIM), signal.SIGURG
    ),
    "debug another process": attach_debugger,
    "open the memory of another process": lambda: os.open(f"/proc/{VICTIM}/mem", os.O_RDWR),
    "read the memory of another process": read_memory,
    "write the memory of another process": write_memory,
    "take a file of another process": lambda: call(
        "pidfd_getfd", os.pidfd_open(VICTIM), SCENE["victim_file"], 0
    ),
    "enter the mounts of another process": enter_namespace,
    "enter the user namespace of another process": enter_user_namespace,
    "limit another process": lambda: call(
        "prlimit64", VICTIM, 7, None, ctypes.create_string_buffer(16)
    ),
    "change the priority of another process": lambda: os.setpriority(os.PRIO_PROCESS, VICTIM, 5),
    "change the memory score of another process": lambda: write(
        f"/proc/{VICTIM}/oom_score_adj", "900"
    ),
    "gain privileges by a set-user-id program": gain_privileges,
    "use shared memory of System V": find_shared_memory,
    "use the keyring of the kernel": lambda: call("keyctl", 0, -3, 0),
    "add a key to the kernel": lambda: call("add_key", b"user", b"x", b"x", 1, -4),
}

# --- sockets -----------------------------------------------------------------------------------

for _name, _path in SCENE["sockets"].items():
    ESCAPES[f"connect to {_name}"] = lambda path=_path: connect(path.replace("@", "\0", 1))  # type: ignore[misc]


def send_datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(1)
        client.connect(("127.0.0.1", SCENE["udp_port"]))
        client.send(b"hello")
        client.recv(16)


NETWORK = {
    "connect to the loopback device": lambda: socket.create_connection(
        ("127.0.0.1", SCENE["tcp_port"]), 2
    ),
    "send a datagram to the loopback device": send_datagram,
}
ESCAPES |= NETWORK

# --- terminals, mounts, kernel -----------------------------------------------------------------


def type_into_terminal() -> None:
    terminal = os.open(SCENE["terminal"], os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(terminal, 0x5412, b"x")


def type_into_own_terminal() -> None:
    """Push input into a terminal that this process controls: a filter has to refuse it."""
    _, terminal = os.openpty()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            fcntl.ioctl(terminal, 0x540E, 0)
            fcntl.ioctl(terminal, 0x5412, b"x")
            os._exit(0)
        except OSError:
            os._exit(1)
    refuse_unless(os.waitpid(pid, 0)[1] == 0)


def unmount_masks() -> None:
    unmount(KAPELLE, f"{HOME}/.ssh", "/run", "/tmp")
    read(f"{KAPELLE}/token")


def make_disk() -> None:
    os.mknod(f"{WORK}/disk", 0o600 | stat.S_IFBLK, os.stat("/").st_dev)
    read(f"{WORK}/disk")


def as_user_zero(escape: Callable[[], object]) -> Callable[[], None]:
    """Return the attempt as user 0 of a nested user namespace with mounts of its own."""

    def run() -> None:
        user, group = os.getuid(), os.getgid()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                if libc.unshare(0x10020000):
                    raise OSError(ctypes.get_errno(), "unshare")
                write("/proc/self/setgroups", "deny")
                write("/proc/self/uid_map", f"0 {user} 1")
                write("/proc/self/gid_map", f"0 {group} 1")
                escape()
                os.write(writer, b"done")
            except BaseException as error:
                os.write(writer, str(error)[:90].encode() or b"?")
            os._exit(0)
        os.waitpid(pid, 0)
        answer = os.read(reader, 200)
        if answer != b"done":
            raise OSError(errno.EPERM, answer.decode())

    return run


def unmount_key() -> None:
    unmount(KAPELLE, f"{HOME}/.ssh")
    read(f"{HOME}/.ssh/id_ed25519")


def bind_home() -> None:
    os.makedirs(f"{WORK}/bound", exist_ok=True)
    mount(HOME, f"{WORK}/bound", 4096)
    read(f"{WORK}/bound/.ssh/id_ed25519")


def remount_writable() -> None:
    mount(None, "/", 32 | 4096)
    write(f"{HOME}/planted7")


def set_writable() -> None:
    attributes = struct.pack("=4Q", 0, 1, 0, 0)
    call("mount_setattr", -100, b"/", 0x8000, attributes, ctypes.c_size_t(32))
    write(f"{HOME}/planted8")


def move_mask() -> None:
    os.makedirs(f"{WORK}/moved", exist_ok=True)
    mount(f"{HOME}/.ssh", f"{WORK}/moved", 8192)
    read(f"{HOME}/.ssh/id_ed25519")


def copy_mounts() -> None:
    tree = call("open_tree", -100, HOME.encode(), 1)
    read(f"/proc/self/fd/{tree}/.ssh/id_ed25519")


def overlay_home() -> None:
    for name in ("over", "upper", "workdir"):
        os.makedirs(f"{WORK}/{name}", exist_ok=True)
    options = f"lowerdir={HOME}/.ssh,upperdir={WORK}/upper,workdir={WORK}/workdir,userxattr"
    if libc.mount(
        b"overlay", f"{WORK}/over".encode(), b"overlay", ctypes.c_ulong(0), options.encode()
    ):
        raise OSError(ctypes.get_errno(), "mount")
    read(f"{WORK}/over/id_ed25519")


def mount_proc_and_look() -> None:
    os.makedirs(f"{WORK}/proc", exist_ok=True)
    mount("proc", f"{WORK}/proc", 0, "proc")
    read(f"{WORK}/proc/{VICTIM}/root{KAPELLE}/token")


def change_root() -> None:
    os.makedirs(f"{WORK}/root", exist_ok=True)
    mount("tmpfs", f"{WORK}/root", 0, "tmpfs")
    os.makedirs(f"{WORK}/root/old")
    call("pivot_root", f"{WORK}/root".encode(), f"{WORK}/root/old".encode())
    unmount(f"/old{HOME}/.ssh")
    read(f"/old{HOME}/.ssh/id_ed25519")


def open_core_pattern() -> None:
    os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)


NESTED = {
    "unmount a mask": unmount_key,
    "bind a directory below a mask": bind_home,
    "remount everything writable": remount_writable,
    "set the attributes of all mounts": set_writable,
    "move a mask": move_mask,
    "copy the mounts": copy_mounts,
    "mount an overlay over a hidden directory": overlay_home,
    "mount /proc again": mount_proc_and_look,
    "change the root": change_root,
    "write the settings of the kernel": open_core_pattern,
}
for _name, _escape in NESTED.items():
    ESCAPES[f"as user 0 of a nested namespace, {_name}"] = as_user_zero(_escape)


def start_in_cgroup() -> None:
    os.open(SCENE["cgroup"], os.O_WRONLY)


def use_user_fault() -> None:
    call("userfaultfd", 0)


def use_ring() -> None:
    """Open a hidden file by io_uring, past any filter on system calls."""
    read(f"{KAPELLE}/token")


def load_program() -> None:
    attributes = struct.pack("IIII", 1, 4, 4, 1) + bytes(104)
    call("bpf", 0, attributes, len(attributes))


def count_events() -> None:
    attributes = struct.pack("II", 1, 112) + bytes(104)
    call("perf_event_open", attributes, VICTIM, -1, -1, 0)


ESCAPES |= {
    "write to the user's terminal": lambda: os.write(
        os.open(SCENE["terminal"], os.O_WRONLY | os.O_NOCTTY), b"PLANTED"
    ),
    "type into the user's terminal": type_into_terminal,
    "type into a terminal": type_into_own_terminal,
    "unmount the masks": unmount_masks,
    "change the core pattern": open_core_pattern,
    "move a process to another cgroup": start_in_cgroup,
    "make a device of the disk": make_disk,
    "handle page faults of the kernel": use_user_fault,
    "load a program into the kernel": load_program,
    "watch another process by performance events": count_events,
    "load a module": lambda: call("init_module", b"", 0, b""),
    "raise a hard limit": lambda: (
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if SCENE["has_low_core_limit"]
        else refuse_unless(False)
    ),
}

# --- git: what runs when the user works on afterwards --------------------------------------------


def plant_git_directory() -> None:
    """Replace the workspace's .git by one whose configuration runs a command."""
    evil = f"{WORK}/evil"
    subprocess.run(["git", "init", "-q", "--bare", evil], check=True, capture_output=True)
    write(
        f"{evil}/config",
        f"[core]\n\trepositoryformatversion=0\n\tbare=false\n\tfsmonitor=touch {HOME}/RAN;\n",
    )
    os.rename(f"{WORK}/.git", f"{WORK}/.git-old")
    write(f"{WORK}/.git", "gitdir: evil\n")


LAST["replace .git, for the next command of the user"] = plant_git_directory


def main() -> None:
    only = os.environ.get("ONLY", "")
    for kind, attempts in (("control", CONTROLS), ("escape", ESCAPES), ("escape", LAST)):
        for name, attempt in attempts.items():
            if only not in name:
                continue
            print(json.dumps({"kind": kind, "name": name, **try_out(attempt)}), flush=True)


def try_out(attempt: Callable[[], object]) -> dict[str, object]:
    try:
        attempt()
    except BaseException as error:
        return {"worked": False, "error": f"{type(error).__name__}: {error}"[:200]}
    return {"worked": True, "error": ""}


main()
