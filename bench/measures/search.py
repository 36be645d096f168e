"""Search: among 10,000 learnings and over a gigabyte of output, with the index's size."""

import json
import random
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.daemon import Client, running
from bench.report import Row, Run

_LEARNINGS = 10_000
_TARGET_S = 0.1
_TARGET_INDEX = 0.5


def measure(run: Run) -> list[Row]:
    megabytes = 64 if run.quick else 1024
    words = _vocabulary()
    command = ["cat", str(_output(run.directory / "output", words, megabytes << 20))]
    with running(run, {"much": command}) as daemon, closing(Client(daemon.home.socket)) as client:
        page = "".join(_section(words, number) for number in range(_LEARNINGS))
        body = {"markdown": page, "directory": str(run.directory)}
        begun = time.monotonic()
        client.post("/learnings/markdown", body)
        import_s = time.monotonic() - begun
        task_id = client.post("/tasks", daemon.spec("much"))["id"]
        while client.get(f"/tasks/{task_id}")["status"] in {"queued", "running"}:
            time.sleep(0.2)
        begun = time.monotonic()
        while not client.get("/search?query=nothing")["complete"]:
            time.sleep(0.2)
        index_s = time.monotonic() - begun
        typed = [f"{words[900]}%20{words[1900]}", words[40], "finalword", f"%22{words[5]}%20a%22"]
        over = _median(client, run, [f"/search?kind=output&query={one}" for one in typed])
        among = _median(client, run, [f"/learnings?query={words[n]}" for n in (10, 500, 1500)])
        size = sum(path.stat().st_size for path in daemon.home.root.glob("search.db*"))
    share = size / (megabytes << 20)
    about = f"{megabytes} MiB indexed in {index_s:.0f} s"
    return [
        Row(f"search among {_LEARNINGS:,} learnings", among, "s", _TARGET_S,
            beside=f"imported in {import_s:.0f} s"),
        Row(f"search over {megabytes} MiB of output", over, "s", _TARGET_S, beside=about),
        Row("size of the index", share, "of the output", _TARGET_INDEX,
            beside=f"{size / 1e6:.0f} MB"),
    ]  # fmt: skip


def _vocabulary() -> list[str]:
    """20,000 words, the same every time."""
    dice = random.Random(1)
    return ["".join(dice.choices("abcdefgilmnorst", k=dice.randint(3, 9))) for _ in range(20_000)]


def _line(dice: random.Random, words: list[str], count: int) -> str:
    # Few words are common and most are rare, as in any language.
    return " ".join(words[int(20_000 * dice.random() ** 3)] for _ in range(count))


def _section(words: list[str], number: int) -> str:
    dice = random.Random(number)
    return f"## {_line(dice, words, 5)}\n\n{_line(dice, words, 60)}\n\n"


def _output(path: Path, words: list[str], size: int) -> Path:
    """Lines as agents print them: events in JSON."""
    dice, written = random.Random(2), 0
    block = b"".join(_event(_line(dice, words, 40)) for _ in range(20_000))
    with path.open("wb") as file:
        while written < size:
            marked = _event(f"block {written} {_line(dice, words, 200)}")
            written += file.write(marked + block)
        file.write(_event("finalword"))
    return path


def _event(text: str) -> bytes:
    event: dict[str, Any] = {"kind": "text", "text": text}
    return json.dumps(event).encode() + b"\n"


def _median(client: Client, run: Run, targets: list[str]) -> float:
    taken = []
    for _ in range(run.samples(20)):
        for target in targets:
            begun = time.perf_counter()
            client.get(target)
            taken.append(time.perf_counter() - begun)
    return sorted(taken)[len(taken) // 2]
