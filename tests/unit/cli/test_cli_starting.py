import pytest

from kapelle.cli.commands import load
from kapelle.cli.start import Order, begin, collecting
from kapelle.client.http import Connection


class _NoClient(Connection):
    """Whatever is asked of it is asked too much."""

    def __init__(self) -> None:
        return


def test_an_order_is_taken_and_the_command_goes_no_further() -> None:
    with collecting() as orders:
        begin(_NoClient(), "/runs", {"pattern": "loop"})
        raise AssertionError("unreachable")
    assert orders == [Order("/runs", {"pattern": "loop"})]


@pytest.mark.parametrize(
    ("command", "arguments", "pattern"),
    [
        ("loop", ["x", "--until", "true", "-f"], "loop"),
        ("pipeline", ["x", "y", "--json"], "pipeline"),
        ("best-of", ["x"], "best-of"),
        ("team", ["x", "--progress"], "team"),
    ],
)
def test_every_command_of_a_pattern_can_be_kept_for_later(
    command: str, arguments: list[str], pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with collecting() as orders:
        load(command).main(arguments, standalone_mode=False)
    [order] = orders
    assert order.path == "/runs"
    assert order.body["pattern"] == pattern
    assert order.body["spec"]["directory"].startswith("/")
    assert capsys.readouterr().out == ""


def test_another_error_inside_is_not_swallowed() -> None:
    with pytest.raises(ValueError, match="other"), collecting():
        raise ValueError("other")


def test_nothing_is_kept_outside() -> None:
    with collecting():
        pass
    with pytest.raises(AttributeError):
        begin(_NoClient(), "/runs", {})
