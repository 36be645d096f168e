"""`kapelle team --resume TOKEN --answer TEXT`: answers what a run asked, so that it goes on."""

from kapelle.cli.follow import history
from kapelle.cli.ids import run_path
from kapelle.cli.outcome import Run
from kapelle.cli.patterns.spec import Options
from kapelle.cli.values import not_empty
from kapelle.client.http import Connection as Client
from kapelle.domain.errors import Conflict, InvalidInput

_EXAMPLE = 'Write `kapelle team --resume TOKEN --answer "…"`.'
# What may stand beside --resume; everything else is settled when a run is started.
_BESIDE = frozenset({"resume", "answer", "progress", "detach", "as_json", "non_interactive", "ask"})


def answered(client: Client, options: Options) -> tuple[Run, int]:
    """The run whose questions were answered, and the number of its last event before that."""
    tokens = [not_empty(text.strip(), "--resume") for text in options["resume"] or ()]
    answers = list(options["answer"] or ())
    _require_pairs(options, tokens, answers)
    run_id = tokens[0].partition(":")[0]
    if any(token.partition(":")[0] != run_id for token in tokens):
        raise InvalidInput("The tokens belong to different runs.", hint="Go on with one at a time.")
    run: Run = client.get(run_path(run_id))
    seen = max((event["seq"] for event in history(client, run["id"])), default=0)
    for token, answer in _matched(run, tokens, answers):
        run = client.post(run_path(run_id, "answer"), {"answer": answer, "token": token})
    return run, seen


def _require_pairs(options: Options, tokens: list[str], answers: list[str]) -> None:
    if not tokens:
        raise InvalidInput("--answer needs to know which question.", hint=_EXAMPLE)
    if not answers:
        raise InvalidInput("--resume needs an answer.", hint=_EXAMPLE)
    others = [name for name, value in options.items() if value and name not in _BESIDE]
    if others:
        raise InvalidInput(
            f"{_shown(others[0])} cannot be changed when a run goes on.",
            hint="Leave out everything but --resume, --answer and how it is shown.",
        )
    if len(tokens) > len(answers):
        raise InvalidInput(
            f"There are {len(tokens)} tokens and {len(answers)} answers.",
            hint="Write an --answer for every --resume.",
        )


def _shown(name: str) -> str:
    return "The goal" if name == "goal" else f"--{name.replace('_', '-')}"


def _matched(run: Run, tokens: list[str], answers: list[str]) -> list[tuple[str, str]]:
    """Which question each answer is for: those of the tokens first, then the others in order."""
    named = [token for token in tokens if ":" in token]
    others = [question["token"] for question in run["questions"]]
    order = [*named, *(token for token in others if token not in named)]
    if len(answers) > len(order):
        asked = len(run["questions"])
        many = f"{asked} of these, not {len(answers)}" if asked else "nothing"
        raise Conflict(
            f"{run['id']} is {run['status']} and asks {many}.",
            hint=f"`kapelle runs status {run['id']}` shows what it asks.",
        )
    return list(zip(order, answers, strict=False))
