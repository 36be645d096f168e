"""What tokens cost: which price counts, and what it comes to."""

import tomllib
from datetime import date
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kapelle.agents.summary import built_in, cost_usd, price_of
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
        assert price_of(spelling, {}) == Price(input=3, output=15, cached=0.3)

    @pytest.mark.parametrize(
        "model",
        ["", "/", "[1m]", "-20250929", "claude", "claude-sonnet", "claude-sonnet-4", "gpt-5.4-pro",
         "gpt-5-", "my-gpt-5", "gpt-5-mini-high", "gpt-5:free", "GPT-5", "qwen2.5-coder:7b"],
    )  # fmt: skip
    def test_never_takes_another_model_for_it(self, model: str) -> None:
        assert price_of(model, {}) is None

    def test_the_users_own_price_comes_first_however_it_is_spelled(self) -> None:
        assert price_of("gpt-5", {"gpt-5": OWN}) == OWN
        assert price_of("openai/gpt-5-2025-08-07", {"gpt-5": OWN}) == OWN
        assert price_of("local/my-model", {"my-model": OWN}) == OWN
        assert price_of("gpt-5-mini", {"gpt-5": OWN}) == built_in()["gpt-5-mini"]

    def test_the_nearest_spelling_of_the_users_own_counts(self) -> None:
        near = Price(input=1, output=1)
        own = {"gpt-5": OWN, "azure/gpt-5": near}
        assert price_of("azure/gpt-5", own) == near
        assert price_of("other/gpt-5", own) == OWN

    @given(st.text())
    def test_any_name_is_accepted(self, model: str) -> None:
        price_of(model, {})


class TestCostUsd:
    def test_cached_tokens_have_a_price_of_their_own(self) -> None:
        usage = Usage(input_tokens=1_000_000, cached_tokens=400_000, output_tokens=100_000)
        price = Price(input=3, output=15, cached=0.3)
        assert cost_usd(usage, price) == pytest.approx(0.6 * 3 + 0.4 * 0.3 + 0.1 * 15)

    def test_without_one_they_cost_as_other_input(self) -> None:
        usage = Usage(input_tokens=1_000_000, cached_tokens=400_000)
        assert cost_usd(usage, Price(input=3, output=15)) == pytest.approx(3)

    def test_they_may_be_free(self) -> None:
        usage = Usage(input_tokens=1_000_000, cached_tokens=1_000_000)
        assert cost_usd(usage, Price(input=3, output=15, cached=0)) == 0

    @given(usages, prices)
    def test_is_never_negative(self, usage: Usage, price: Price) -> None:
        assert cost_usd(usage, price) >= 0

    @given(usages, prices, tokens)
    def test_grows_with_what_is_used(self, usage: Usage, price: Price, more: int) -> None:
        before = cost_usd(usage, price)
        for name in ("input_tokens", "output_tokens"):
            grown = usage.model_copy(update={name: getattr(usage, name) + more})
            # Sums of floats may differ in the last digit.
            assert cost_usd(grown, price) >= before * (1 - 1e-12)


class TestBuiltInTable:
    def test_says_of_when_it_is(self) -> None:
        text = files("kapelle.agents").joinpath("prices.toml").read_text(encoding="utf-8")
        assert isinstance(tomllib.loads(text)["as_of"], date)

    def test_every_price_makes_sense(self) -> None:
        for model, price in built_in().items():
            assert price_of(model, {}) is price, model
            assert price.cached is not None, model
            assert 0 < price.cached < price.input < price.output, model
