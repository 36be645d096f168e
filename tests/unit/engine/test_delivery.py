"""What a pull request says of work, and when CI is believed."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from kapelle.domain.specs import CheckSpec
from kapelle.engine import delivery
from kapelle.engine.merge import get_work
from kapelle.workspaces.forge import CiVerdict, Login, Site
from kapelle.workspaces.forge.github import GitHub

_SECRET = "s3cr3t-value"


def _clean(text: str) -> str:
    return text.replace(_SECRET, "***")


def test_a_secret_is_taken_out_before_a_text_is_cut() -> None:
    spent = SimpleNamespace(cost_usd=None, agent_calls=1)
    work: Any = SimpleNamespace(
        id="run_1", title="t", status="completed", reason=None, spent=spent,
        spec={"prompt": "x" * (delivery._MOST_TEXT - 4) + _SECRET},
    )  # fmt: skip
    assert "s3cr" not in delivery.describe_work(work, [], _clean)


async def test_half_a_secret_is_not_left_at_the_cut_of_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forge = GitHub(Site("x", "o/r", "https://x", Login("t")))
    forge.clean = _clean

    async def answer(*_: Any) -> Any:
        return SimpleNamespace(text=_SECRET + "x" * 19_996)

    monkeypatch.setattr(forge, "_answer", answer)
    assert "alue" not in await forge.log_of("job", "log")


@pytest.mark.parametrize(
    ("poll_s", "said", "passed"),
    [(0.0, ["passed"], True), (3600.0, ["passed", "failed"], False)],
)
async def test_ci_has_passed_once_it_stays_so(
    poll_s: float, said: list[Any], passed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = SimpleNamespace(id="task_1", directory="/", workspace=SimpleNamespace(branch="b"))
    begun = {"ci": {"begun_at": datetime.now(UTC)}}
    left = iter(said)

    async def verdict(_: str) -> CiVerdict:
        return CiVerdict(next(left))

    async def nothing(*_: Any, **__: Any) -> dict[str, str]:
        return {}

    async def read(what: Any, *_: Any) -> Any:
        return work if what is get_work else begun

    async def open_forge(*_: Any) -> Any:
        return SimpleNamespace(branches=nothing), SimpleNamespace(login=Login(""), verdict=verdict)

    async def make_redactor(*_: Any) -> Any:
        return _clean

    async def pause(_: float) -> bool:
        return True

    settings = SimpleNamespace(forge=SimpleNamespace(poll_s=poll_s))
    parts: Any = SimpleNamespace(db=SimpleNamespace(read=read), settings=lambda: settings)
    replacements = {
        "open_forge": open_forge,
        "make_redactor": make_redactor,
        "push": nothing,
        "require_no_secret": nothing,
    }
    for name, stand_in in replacements.items():
        monkeypatch.setattr(delivery, name, stand_in)
    check = CheckSpec(command="ci")
    result = await delivery.await_ci(parts, "task_1", "1", check, ("att_1", "ci"), pause)
    assert result.passed is passed
    assert next(left, None) is None
