"""The shell commands of a page, run in order as a new user types them."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
_FENCE = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "-- end of block"


@dataclass(frozen=True, slots=True)
class Block:
    """Commands, and the lines that the page shows of their output; … stands for anything."""

    commands: str
    lines: tuple[str, ...] = ()


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page that are marked as sh, each with the text block behind it."""
    blocks: list[Block] = []
    for language, content in _FENCE.findall((ROOT / page).read_text(encoding="utf-8")):
        if language == "sh":
            blocks.append(Block(content))
        else:
            blocks[-1] = Block(blocks[-1].commands, tuple(content.splitlines()))
    return blocks


def run_blocks(blocks: list[Block], directory: Path, env: Mapping[str, str]) -> None:
    """Run the blocks in one shell, which ends at the first command that fails."""
    marked = [f"{block.commands}echo '{_MARK}'\n" for block in blocks]
    script = directory / "commands.sh"
    script.write_text("set -eo pipefail\n" + "".join(marked), encoding="utf-8")
    done = subprocess.run(
        ["bash", str(script)], cwd=directory, env=dict(env), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    outputs = done.stdout.split(f"{_MARK}\n")
    for block, output in zip(blocks, outputs, strict=False):
        missing = list(_missing_lines(block, output))
        assert not missing, f"{missing} is not what this prints:\n{block.commands}\n{output}"


def _missing_lines(block: Block, output: str) -> Iterator[str]:
    """Find the lines of a block in their order."""
    rest = iter(output.splitlines())
    for line in block.lines:
        pattern = re.compile(".*".join(map(re.escape, line.strip().split("…"))))
        if not any(pattern.search(printed) for printed in rest):
            yield line
