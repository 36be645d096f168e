"""The agent of the chaos test: what it writes and how it ends follow from its number alone.

Called as `agent.py NUMBER SECONDS LEDGER`; appends its attempt to the ledger when it starts.
"""

import hashlib
import os
import sys
import time


def expected_output(number: int) -> bytes:
    """Some bytes of every value, in blocks of uneven length."""
    blocks = []
    for index in range(number % 9 + 1):
        digest = hashlib.sha256(b"%d:%d" % (number, index)).digest()
        blocks.append(digest * (1 + digest[0] * 4) + b"\n")
    return b"".join(blocks)


def expected_code(number: int) -> int:
    return (0, 0, 0, 1, 0, 0, 7, 0)[number % 8]


def leave_a_grandchild() -> None:
    """A process of its own session that holds the output open for long."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)


def main() -> None:
    number, seconds, ledger = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    with open(ledger, "a", encoding="ascii") as file:
        file.write(os.environ["KAPELLE_ATTEMPT_ID"] + "\n")
    if number % 7 == 0:
        leave_a_grandchild()
    output = expected_output(number)
    pieces = 5
    size = len(output) // pieces + 1
    for index in range(pieces):
        os.write(1, output[index * size : (index + 1) * size])
        time.sleep(seconds / pieces)
    os.write(2, b"end of %d\n" % number)
    sys.exit(expected_code(number))


if __name__ == "__main__":
    main()
