"""`kapelle prompts`: what the roles of patterns are told, and a repository's own words for it."""

import os
from typing import Annotated

from kapelle.cli.command import Report, argument, flag
from kapelle.cli.config import config_file, current
from kapelle.cli.format import table
from kapelle.cli.output import data, say
from kapelle.domain.errors import Conflict, NotFound
from kapelle.home import Home


def prompts(
    name: Annotated[str | None, argument("[PATTERN[/ROLE]]", "Whose; by default all.")] = None,
    copy: Annotated[
        bool, flag("Copy it to .kapelle/prompts, where it can be changed.", "--copy")
    ] = False,
) -> Report:
    """Show what the roles of patterns are told, and copy it to change it.

    A file .kapelle/prompts/PATTERN/ROLE.md of a trusted repository stands instead of the built-in
    text.
    """
    from kapelle.patterns import registry
    from kapelle.settings.trust import executable, standing

    built_in = {f"{one.name}/{role}": text for one in registry.built_in()
                for role, text in one.prompts.items()}  # fmt: skip
    asked = {key: text for key, text in built_in.items() if name in {None, key, key.split("/")[0]}}
    found = executable(Home.default(), current())
    own, trusted = found.prompts, standing(Home.default(), found, os.environ) == "trusted"
    if not asked:
        raise NotFound(f"There is no prompt {name!r}.", hint="kapelle prompts lists them.")
    if copy:
        place = config_file(current()).parent / "prompts"
        for key, text in asked.items():
            path = place / f"{key}.md"
            if path.exists():
                raise Conflict(f"{path} is there already.", hint="Change it, or delete it first.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="utf-8")
            say(f"{path} is yours to change; then: kapelle trust")
        yield [str(place / f"{key}.md") for key in asked]
        return
    told = [
        {
            "name": key,
            "text": own.get(key, text) if trusted else text,
            "own": trusted and key in own,
        }
        for key, text in asked.items()
    ]
    unknown = sorted(set(own) - set(built_in)) if name is None else []
    yield {"prompts": told, "unknown": unknown}
    if name in built_in:
        data(str(told[0]["text"]).rstrip())
    else:
        rows = [(str(one["name"]), ".kapelle" if one["own"] else "built in") for one in told]
        yield from table(["PROMPT", "FROM"], rows)
        if own and not trusted:
            say(f"Not used, for it is not trusted: {', '.join(sorted(own))}. `kapelle trust`")
        for key in unknown:
            say(f".kapelle/prompts/{key}.md is for no role of a pattern that Kapelle has.")
