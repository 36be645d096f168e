"""What an examination of `kapelle doctor` found."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "broken"]


@dataclass(frozen=True)
class Finding:
    name: str
    state: State
    text: str
    hint: str | None = None
