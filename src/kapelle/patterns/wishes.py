"""What a pattern asks for when it has a task done."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kapelle.domain.specs import CheckSpec, Priority

Place = Literal["run", "own"]


@dataclass(frozen=True)
class TaskWish:
    """The arguments of ctx.task, as every kind of Context is given them."""

    prompt: str
    title: str | None = None
    agent: str | None = None
    model: str | None = None
    workspace: Place = "run"
    directory: str | None = None
    checks: Sequence[CheckSpec | str] = ()
    continue_from: str | None = None
    keep_session: bool = False
    system_prompt: str | None = None
    priority: Priority | None = None
    timeout_s: float | None = None
    max_attempts: int = 1
    context: dict[str, str] = field(default_factory=dict)
    afresh: bool = False
    disposable: bool = False

    @property
    def is_own(self) -> bool:
        return self.workspace == "own"

    @property
    def label(self) -> str:
        return self.title or self.prompt.strip()[:80]
