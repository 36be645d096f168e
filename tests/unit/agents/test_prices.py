"""What tokens cost: which price counts, and what it comes to."""

import tomllib
from datetime import date
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.agents.summary import built_in_prices, compute_cost, find_price
from kapelle.domain.task import Usage
from kapelle.settings.models import Price

OWN = Price(input=7, output=9)
money = st.floats(min_value=0, max_value=1e4, allow_nan=False)
tokens = st.integers(min_value=0, max_value=10**9)
prices = st.builds(Price, input=money, output=money, cached=st.none() | money)
usages = st.builds(Usage, input_tokens=tokens, output_tokens=tokens, cached_tokens=tokens)


class TestPriceOf:
    @pytest.mark.parametrize(
        "spelling",
        [
            "claude-sonnet-4-5",
            "anthropic/claude-sonnet-4-5",
            "openrouter/anthropic/claude-sonnet-4-5",
            "claude-sonnet-4-5-20250929",
            "claude-sonnet-4-5@20250929",
            "claude-sonnet-4-5[1m]",
            "claude-sonnet-4-5-20250929[1m]",
            "anthropic/claude-sonnet-4-5-2025-09-29",
        ],
    )
    def test_knows_a_model_by_each_of_its_spellings(self, spelling: str) -> None:
        assert find_price(spelling, {}) == Price(input=3, output=15, cached=0.3)

    @pytest.mark.parametrize(
        "model",
        ["", "/", "[1m]", "-20250929", "claude", "claude-sonnet", "claude-sonnet-4", "gpt-5.4-pro",
         "gpt-5-", "my-gpt-5", "gpt-5-mini-high", "gpt-5:free", "GPT-5", "qwen2.5-coder:7b"],
    )  # fmt: skip
    def test_never_takes_another_model_for_it(self, model: str) -> None:
        assert find_price(model, {}) is None

    def test_the_users_own_price_comes_first_however_it_is_spelled(self) -> None:
        assert find_price("gpt-5", {"gpt-5": OWN}) == OWN
        assert find_price("openai/gpt-5-2025-08-07", {"gpt-5": OWN}) == OWN
        assert find_price("local/my-model", {"my-model": OWN}) == OWN
        assert find_price("gpt-5-mini", {"gpt-5": OWN}) == built_in_prices()["gpt-5-mini"]

    def test_the_nearest_spelling_of_the_users_own_counts(self) -> None:
        near = Price(input=1, output=1)
        own = {"gpt-5": OWN, "azure/gpt-5": near}
        assert find_price("azure/gpt-5", own) == near
        assert find_price("other/gpt-5", own) == OWN

    @given(st.text())
    def test_any_name_is_accepted(self, model: str) -> None:
        find_price(model, {})


class TestCostUsd:
    def test_cached_tokens_have_a_price_of_their_own(self) -> None:
        usage = Usage(input_tokens=1_000_000, cached_tokens=400_000, output_tokens=100_000)
        price = Price(input=3, output=15, cached=0.3)
        assert compute_cost(usage, price) == pytest.approx(0.6 * 3 + 0.4 * 0.3 + 0.1 * 15)

    def test_without_one_they_cost_as_other_input(self) -> None:
        usage = Usage(input_tokens=1_000_000, cached_tokens=400_000)
        assert compute_cost(usage, Price(input=3, output=15)) == pytest.approx(3)

    def test_they_may_be_free(self) -> None:
        usage = Usage(input_tokens=1_000_000, cached_tokens=1_000_000)
        assert compute_cost(usage, Price(input=3, output=15, cached=0)) == 0

    @given(usages, prices)
    def test_is_never_negative(self, usage: Usage, price: Price) -> None:
        assert compute_cost(usage, price) >= 0

    @given(usages, prices, tokens)
    def test_grows_with_what_is_used(self, usage: Usage, price: Price, more: int) -> None:
        before = compute_cost(usage, price)
        for name in ("input_tokens", "output_tokens"):
            grown = usage.model_copy(update={name: getattr(usage, name) + more})
            # Sums of floats may differ in the last digit.
            assert compute_cost(grown, price) >= before * (1 - 1e-12)


class TestBuiltInTable:
    def test_says_of_when_it_is(self) -> None:
        text = files("kapelle.agents").joinpath("prices.toml").read_text(encoding="utf-8")
        assert isinstance(tomllib.loads(text)["as_of"], date)

    def test_every_price_makes_sense(self) -> None:
        for model, price in built_in_prices().items():
            assert find_price(model, {}) is price, model
            assert price.cached is not None, model
            assert 0 < price.cached < price.input < price.output, model
