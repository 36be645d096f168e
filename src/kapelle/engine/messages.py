"""Deliver messages of people to running agents, and find out which were read.

The row is the message. A signed file delivers it to the agent, whose hook or bridge renames the
file after reading. Other files in the folder were written by somebody else and are never believed.
"""

import hmac
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kapelle.agents.bridges.hook import READ, SUFFIX, sign_message
from kapelle.engine.parts import Parts
from kapelle.runner.shim import files
from kapelle.store import attempts, events, messages
from kapelle.store.database import Connection

# Limits of the names that are read from a folder, and of the foreign ones in a warning.
_MOST_NAMES = 10_000
_MOST_FOREIGN = 5
_LONGEST_NAME = 60
_UNFINISHED = ".tmp"


def folder_of(parts: Parts, attempt_id: str) -> Path:
    """Return the folder through which messages reach the agent of an attempt."""
    return parts.home.said / attempt_id


def key_of(parts: Parts, attempt_id: str) -> str:
    """Return the key that the messages for an attempt are signed with."""
    return hmac.digest(parts.secret.encode(), f"messages {attempt_id}".encode(), "sha256").hex()


def deliver(parts: Parts, attempt_id: str, message_id: str, text: str) -> bool:
    """Write the file of a message, and return whether that succeeded. Blocks.

    Otherwise the next attempt gets the message.
    """
    folder = folder_of(parts, attempt_id)
    name = f"{message_id}{SUFFIX}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = sign_message(key_of(parts, attempt_id), name, text.encode("utf-8", "replace"))
        files.replace(str(folder / name), content, durable=True)
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class MessageDelivery:
    """The names in the folder of an attempt whose agent has ended."""

    names: frozenset[str]

    @classmethod
    def of(cls, folder: Path) -> "MessageDelivery":
        """Read the folder. Blocks."""
        try:
            with os.scandir(folder) as entries:
                first = itertools.islice(entries, _MOST_NAMES)
                return cls(frozenset(entry.name for entry in first))
        except OSError:
            return cls(frozenset())

    def was_read(self, message_id: str) -> bool:
        return f"{message_id}{SUFFIX}{READ}" in self.names

    def foreign(self, message_ids: Sequence[str]) -> list[str]:
        """Return the names that belong to none of these messages."""
        own = {f"{message_id}{SUFFIX}" for message_id in message_ids}
        own |= {f"{name}{READ}" for name in own}
        return sorted(name for name in self.names - own if not name.endswith(_UNFINISHED))


def settle_messages(
    connection: Connection, task_id: str, attempt_id: str, delivery: MessageDelivery
) -> str | None:
    """Store which messages the agent of an ended attempt has read, and warn of forged ones.

    Returns the text of the unread messages; they wait for the next attempt.
    """
    rows = messages.list_of_attempt(connection, attempt_id)
    waiting = [row for row in rows if row["state"] == "waiting"]
    read = [row["id"] for row in waiting if delivery.was_read(row["id"])]
    messages.mark_delivered(connection, read)
    # Unread messages no longer belong to this attempt.
    messages.give_back(connection, attempt_id)
    if foreign := delivery.foreign([row["id"] for row in rows]):
        _warn(connection, task_id, attempt_id, foreign)
    return "\n\n".join(row["text"] for row in waiting if row["id"] not in read) or None


def _warn(connection: Connection, task_id: str, attempt_id: str, foreign: list[str]) -> None:
    names = ", ".join(name[:_LONGEST_NAME] for name in foreign[:_MOST_FOREIGN])
    if len(foreign) > _MOST_FOREIGN:
        names += " and others"
    text = f"Forged messages were ignored: no person wrote {names}."
    if attempts.add_warning(connection, attempt_id, "messages", text):
        about = {"what": "messages", "text": text}
        events.append(connection, "attempt.warning", task_id, attempt_id, **about)
