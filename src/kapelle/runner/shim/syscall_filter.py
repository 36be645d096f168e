"""A seccomp filter: system calls that a confined process is refused; standard library only.

The filter is a program of the classic Berkeley packet filter over the number, the architecture and
the arguments of a system call.
"""

import ctypes
import errno
import platform
import struct

from .mounts import check

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
_KILL = 0x80000000
_LOAD = 0x20
_JUMP_IF_EQUAL = 0x15
_JUMP_IF_AT_LEAST = 0x35
_RETURN = 0x06
# Offsets of struct seccomp_data.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENTS = 16
# System calls of the x32 interface of x86_64 begin here.
_X32_BIT = 0x40000000

_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_AF_UNIX = 1
_AF_INET = 2
_AF_INET6 = 10
_AF_PACKET = 17

_X86_64 = {
    "ioctl": 16, "socket": 41, "keyctl": 250, "add_key": 248, "request_key": 249,
    "prlimit64": 302, "setpriority": 141, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
    "io_uring_setup": 425, "kexec_load": 246, "open_by_handle_at": 304, "init_module": 175,
    "finit_module": 313,
}  # fmt: skip
_AARCH64 = {
    "ioctl": 29, "socket": 198, "keyctl": 219, "add_key": 217, "request_key": 218,
    "prlimit64": 261, "setpriority": 140, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
    "io_uring_setup": 425, "kexec_load": 104, "open_by_handle_at": 265, "init_module": 105,
    "finit_module": 273,
}  # fmt: skip
_MACHINES = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}

# Refused whatever their arguments are. Programs take ENOSYS as "not in this kernel" and go on.
_REFUSED = {
    "keyctl": errno.ENOSYS, "add_key": errno.ENOSYS, "request_key": errno.ENOSYS,
    "bpf": errno.EPERM, "perf_event_open": errno.EPERM, "userfaultfd": errno.EPERM,
    "kexec_load": errno.EPERM, "open_by_handle_at": errno.EPERM, "init_module": errno.EPERM,
    "finit_module": errno.EPERM,
}  # fmt: skip
# Refused for other processes: the argument with the process id must be 0, which means the caller.
_OWN_PROCESS_ONLY = {"prlimit64": 0, "setpriority": 1}

Instruction = tuple[int, int, int, int]


def install(*, unix_sockets: bool = True, internet: bool = True) -> None:
    """Filter the system calls of this process and its descendants from now on.

    The process must have no_new_privs set.
    """
    code = encode(unix_sockets=unix_sockets, internet=internet)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    mode = ctypes.c_ulong(_SECCOMP_MODE_FILTER)
    check(libc.prctl(_PR_SET_SECCOMP, mode, program, 0, 0), "install the filter")


def encode(*, unix_sockets: bool, internet: bool) -> bytes:
    """Return the program of the filter as the kernel reads it."""
    program = build(unix_sockets, internet)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def build(unix_sockets: bool, internet: bool) -> list[Instruction]:
    """Return the program of the filter for this machine."""
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no filter is known for {machine}")
    architecture, numbers = _MACHINES[machine]
    program = _check_architecture(architecture)
    refused = dict(_REFUSED)
    if not (unix_sockets and internet):
        # io_uring can open sockets without the system call `socket`.
        refused["io_uring_setup"] = errno.ENOSYS
    for name, error in refused.items():
        program += [(_JUMP_IF_EQUAL, 0, 1, numbers[name]), (_RETURN, 0, 0, _REFUSE | error)]
    for name, argument in _OWN_PROCESS_ONLY.items():
        program += _check_argument(numbers[name], argument, allowed=[0])
    program += _check_argument(numbers["ioctl"], 1, refused=[_TIOCSTI, _TIOCLINUX])
    families = []
    if not unix_sockets:
        families.append(_AF_UNIX)
    if not internet:
        families += [_AF_INET, _AF_INET6, _AF_PACKET]
    if families:
        program += _check_argument(numbers["socket"], 0, refused=families)
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _check_architecture(architecture: int) -> list[Instruction]:
    """Kill programs of another architecture, whose system calls have other numbers."""
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_AT_LEAST, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _REFUSE | errno.ENOSYS),
    ]


def _check_argument(
    number: int,
    position: int,
    *,
    allowed: list[int] | None = None,
    refused: list[int] | None = None,
) -> list[Instruction]:
    """Decide a system call by the lower half of one argument: allow some values, or refuse some."""
    if allowed is not None:
        values = allowed
        match = (_RETURN, 0, 0, _ALLOW)
        otherwise = (_RETURN, 0, 0, _REFUSE | errno.EPERM)
    else:
        values = refused or []
        match = (_RETURN, 0, 0, _REFUSE | errno.EPERM)
        otherwise = (_RETURN, 0, 0, _ALLOW)
    body: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * position)]
    for value in values:
        body += [(_JUMP_IF_EQUAL, 0, 1, value), match]
    body.append(otherwise)
    return [(_JUMP_IF_EQUAL, 0, len(body), number), *body]
