"""What tokens cost: the user's own prices first, then the built-in table, else nobody knows."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from kapelle.domain.task import Usage
from kapelle.settings.models import Price

# A snapshot's date (-20250929, -2025-09-29, @20250929), or a mark such as [1m].
_SUFFIX = re.compile(r"(?:-20\d{2}-?[01]\d-?[0-3]\d|@[\w.-]+|\[\w+\])$")


def price_of(model: str, overrides: Mapping[str, Price]) -> Price | None:
    """The price of exactly this model, whichever way it is spelled; never that of another."""
    names = list(dict.fromkeys(_names(model)))
    for table in (overrides, built_in()):
        for name in names:
            if name in table:
                return table[name]
    return None


def cost_usd(usage: Usage, price: Price) -> float:
    """What a usage comes to; its cached tokens are among its input tokens."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    per_cached = price.input if price.cached is None else price.cached
    dollars = (usage.input_tokens - cached) * price.input + cached * per_cached
    return (dollars + usage.output_tokens * price.output) / 1e6


@cache
def built_in() -> Mapping[str, Price]:
    text = files("kapelle.agents").joinpath("prices.toml").read_text(encoding="utf-8")
    return {name: Price(**price) for name, price in tomllib.loads(text)["models"].items()}


def _names(model: str) -> Iterator[str]:
    """Its name, then without the provider before it, then without the date or marks after it."""
    yield model
    bare = model.rpartition("/")[2]
    yield bare
    while shorter := _SUFFIX.sub("", bare):
        if shorter == bare:
            return
        yield shorter
        bare = shorter
