"""What the pieces come to when nobody disturbs them: the measure for all that are disturbed."""

import time
from pathlib import Path
from typing import Any

from tests.chaos.failpoint_run import answer_if_asked, start_once
from tests.chaos.pieces import PIECES, hand_out_parts, make_place, request_body
from tests.chaos.record import record
from tests.e2e.support.instance import Instance


def play_undisturbed(directory: Path) -> dict[str, Any]:
    """The records of all pieces, played at once by one daemon that lives through it all."""
    instance = Instance(directory / "home")
    hand_out_parts(instance)
    instance.start()
    try:
        places = {name: make_place(directory / name) for name in PIECES}
        ids = {
            name: start_once(instance, request_body(piece, places[name]), name)
            for name, piece in PIECES.items()
        }
        deadline = time.monotonic() + 100
        while not all(
            [answer_if_asked(instance, run_id) == "completed" for run_id in ids.values()]
        ):
            assert time.monotonic() < deadline, instance.log_tail()
            time.sleep(0.1)
        return {name: record(instance, places[name], ids[name]) for name in PIECES}
    finally:
        instance.destroy()
