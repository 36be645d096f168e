"""Makes a flow as simple as it can be said: no empty boxes, no boxes around a single box."""

from dataclasses import replace

from kapelle.patterns.picture.flow import (
    OTHERWISE,
    Block,
    Body,
    Choice,
    Loop,
    Node,
    Step,
    Together,
    Way,
)


def tidied(body: Body) -> Body:
    """The same flow, simpler."""
    found: list[Node] = []
    for node in body:
        found += _tidied(node)
    return tuple(found)


def _tidied(node: Node) -> Body:
    match node:
        case Step():
            return (node,)
        case Block():
            return _block(node)
        case Loop():
            inner, note = _unwrapped(tidied(node.body), node.note)
            return (replace(node, body=inner, note=note),) if inner else ()
        case Together():
            return _together(node)
        case Choice():
            return _choice(node)


def _block(block: Block) -> Body:
    """A function's steps; with a single one, what the function is for is said there."""
    inner = tidied(block.body)
    if not block.note or not inner:
        return inner
    if len(inner) > 1:
        return (replace(block, body=inner),)
    only = inner[0]
    return (only if only.note else replace(only, note=block.note),)


def _unwrapped(body: Body, note: str) -> tuple[Body, str]:
    """The body of a box without a second box that fills it."""
    match body:
        case (Block(body=inner, note=said),) if not note:
            return inner, said
    return body, note


def _together(node: Together) -> Body:
    branches = tuple(branch for branch in map(tidied, node.branches) if branch)
    if not branches:
        return ()
    if len(branches) == 1:
        inner, note = _unwrapped(branches[0], node.note)
        return (replace(node, branches=(inner,), note=note),) if node.each else inner
    return (replace(node, branches=branches),)


def _choice(choice: Choice) -> Body:
    ways: list[Way] = []
    for way in choice.ways:
        inner = tidied(way.body)
        match inner:
            case (Choice(ways=(Way() as only,), note=""),) if way.condition != OTHERWISE:
                ways.append(Way(f"{way.condition} and {only.condition}", only.body))
            case (Choice(ways=deeper),) if way.condition == OTHERWISE:
                ways += deeper
            case _ if inner:
                ways.append(Way(way.condition, inner))
    if not ways:
        return ()
    is_whole = ways[-1].condition == OTHERWISE
    if is_whole and len({_bare(way.body) for way in ways}) == 1:
        return _bare(ways[0].body)
    match ways:
        # Put back what there is, if there is something: the step says so itself.
        case [Way(said, (Step("git", label),))] if label.endswith(
            f"«{said.removeprefix('there is a ')}»"
        ):
            return ways[0].body
        case [Way(said, body)]:
            inner, note = _unwrapped(body, choice.note)
            return (Choice((Way(said, inner),), note),)
    return (replace(choice, ways=tuple(ways)),)


def _bare(body: Body) -> Body:
    """A body without its notes, to see whether two do the same."""
    return tuple(replace(node, note="") if isinstance(node, Step) else node for node in body)
