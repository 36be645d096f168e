"""What the steps and the functions of a pattern are called in its picture."""

import ast
import re

from kapelle.patterns.picture.flow import Kind, Step
from kapelle.patterns.picture.scope import Code, Method, Scope, node_of
from kapelle.patterns.picture.wording import label

# Calls that are not here tell, look or tidy up: a picture is clearer without them.
KINDS: dict[str, Kind] = {
    "task": "agent",
    "query": "agent",
    "run": "run",
    "check": "command",
    "score": "command",
    "ask": "person",
    "sleep": "wait",
    "commit": "git",
    "revert": "git",
    "merge": "git",
    "take_in": "git",
}
_SAID = {
    "check": "check {}",
    "score": "measure {}",
    "commit": "commit “{}”",
    "revert": "back to {}",
    "merge": "merge {}",
    "take_in": "bring the run's branch into {}",
}


def step(method: str, call: ast.Call, scope: Scope) -> Step | None:
    """The box of a call on the context, None for one that is left out."""
    if method not in KINDS:
        return None
    named = {item.arg: item.value for item in call.keywords}
    if "title" in named:
        text = label(named["title"], scope)
    else:
        first = call.args[0] if call.args else next(iter(named.values()), None)
        others = call.args[1:] if method == "check" else []
        text = ", ".join(label(item, scope) for item in (first, *others) if item is not None)
    return Step(KINDS[method], _SAID.get(method, "{}").format(text or method))


def note_of(code: Code) -> str:
    """What a function says it is for: the first sentence of its docstring, or of its class's."""
    node = node_of(code)
    text = ast.get_docstring(node) or ""
    if isinstance(code, Method) and not node.name.startswith("_"):
        made_from = code.instance.made_from
        text = text if made_from.__name__.startswith("_") else made_from.__doc__ or text
    return first_sentence(text)


def first_sentence(text: str) -> str:
    joined = " ".join(text.split())
    return re.split(r"(?<=[.!?])\s|; ", joined, maxsplit=1)[0].rstrip(".")
