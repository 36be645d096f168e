"""Find out which rung of confinement works on this machine, by trying each; standard library only.

`python -I -S probe.py DIRECTORY` prints a JSON object: for each rung null if it holds, else why it
does not. A version number would prove little: under AppArmor, for example, namespaces can be made
but nothing can be mounted in them.
"""

import importlib
import json
import os
import shutil
import sys
import tempfile

RUNGS = ("namespaces", "bubblewrap", "landlock")


def probe(directory: str) -> dict[str, str | None]:
    """Try every rung in a process of its own below a directory; return the reasons against it."""
    place = tempfile.mkdtemp(prefix="probe.", dir=directory)
    try:
        for name in ("secret", "work", "tmp"):
            os.mkdir(os.path.join(place, name))
        with open(os.path.join(place, "secret", "key"), "w", encoding="ascii") as file:
            file.write("key")
        return {rung: _try(rung, place) for rung in RUNGS}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _try(rung: str, place: str) -> str | None:
    """Confine a child and have it try to get out; return what went wrong, None if nothing did."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 2)
        try:
            problem = _confine_and_attack(rung, place)
        except BaseException as error:
            problem = f"{error.strerror or error}" if isinstance(error, OSError) else str(error)
        os.write(2, (problem or "").encode()[:1000])
        os._exit(bool(problem))
    os.close(writer)
    with open(reader, encoding="utf-8", errors="replace") as stream:
        problem = stream.read()
    status = os.waitpid(pid, 0)[1]
    if problem.strip():
        return problem.strip()
    if status != 0:
        return f"the confined process ended with status {os.waitstatus_to_exitcode(status)}"
    # Seen from outside, for a file may also have been written to a place that only looks the same.
    if os.path.exists(os.path.join(place, "outside")):
        return "a confined process could write outside of its workspace"
    if not os.path.exists(os.path.join(place, "work", "inside")):
        return "a confined process could not write into its workspace"
    os.unlink(os.path.join(place, "work", "inside"))
    return None


def _confine_and_attack(rung: str, place: str) -> str | None:
    package = os.path.basename(os.path.dirname(os.path.abspath(__file__)))
    confinement = importlib.import_module(f"{package}.confinement")
    request = importlib.import_module(f"{package}.request")
    fields = {
        "rung": rung,
        "hidden": (os.path.join(place, "secret"),),
        "writable": (os.path.join(place, "work"),),
        "tmp": os.path.join(place, "tmp"),
        "devices": ("/dev/null",),
    }
    prefix = confinement.apply(request.Confinement(fields), place)
    if prefix:
        # As text: this file may lie where the confined process sees nothing.
        with open(__file__, encoding="utf-8") as file:
            program = file.read()
        words = [sys.executable, "-I", "-S", "-c", program, "--attack", place]
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execv(prefix[0], [*prefix, *map(os.fsencode, words)])
    return attack(place)


def attack(place: str) -> str | None:
    """Try to reach what is outside; return what could be read that should not be."""
    _succeeds(os.path.join(place, "outside"), "w")
    _succeeds(os.path.join(place, "work", "inside"), "w")
    if _succeeds(os.path.join(place, "secret", "key"), "r"):
        return "a confined process could read a hidden file"
    return None


def _succeeds(path: str, mode: str) -> bool:
    try:
        with open(path, mode, encoding="ascii") as file:
            return bool(file.write("x") if mode == "w" else file.read())
    except OSError:
        return False


if __name__ == "__main__":
    if sys.argv[1] == "--attack":
        sys.exit(attack(sys.argv[2]))
    here = os.path.dirname(os.path.abspath(__file__))
    # Make this directory a package, as the spawner does.
    sys.path.insert(0, os.path.dirname(here))
    print(json.dumps(probe(sys.argv[1])))
