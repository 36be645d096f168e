"""Whatever is in a file, its values and their lines are found, and nothing breaks the reading."""

from typing import Any

import tomlkit
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.files.pipelines import read

from kapelle.cli.files.toml_tree import toml_tree
from kapelle.cli.files.tree import Node
from kapelle.cli.files.yaml_tree import yaml_tree
from kapelle.domain.errors import InvalidInput


def leaves(node: Node) -> list[Node]:
    if isinstance(node.value, dict):
        return [leaf for part in node.value.values() for leaf in leaves(part)]
    if isinstance(node.value, list):
        return [leaf for part in node.value for leaf in leaves(part)]
    return [node]


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(part) for key, part in node.value.items()}
    if isinstance(node.value, list):
        return [plain(part) for part in node.value]
    return node.value


WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)

TREES = st.dictionaries(
    WORDS,
    st.recursive(
        st.integers(10_000, 99_999).map(lambda number: f"<{number}>"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
        max_leaves=12,
    ),
    max_size=5,
)


@given(TREES, st.sampled_from([True, False, None]))
def test_lines_of_any_yaml_are_right(tree: dict[str, Any], flow: bool | None) -> None:
    text = yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=True, width=30)
    read_back = yaml_tree(text)
    assert plain(read_back) == tree
    lines = text.split("\n")
    for leaf in leaves(read_back):
        if isinstance(leaf.value, str):
            assert leaf.value in "".join(lines[leaf.line - 1 : leaf.last])


@given(TREES)
def test_lines_of_any_toml_are_right(tree: dict[str, Any]) -> None:
    text = tomlkit.dumps(tree)
    read_back = toml_tree(text)
    assert plain(read_back) == tree
    lines = text.split("\n")
    for leaf in leaves(read_back):
        if isinstance(leaf.value, str):
            assert leaf.value in lines[leaf.line - 1]


@given(
    st.text(alphabet="-:[]{}&*!|>'\"#%@ \t\n,?a1~<\\", max_size=60),
    st.sampled_from(["yaml", "toml"]),
)
def test_no_text_breaks_the_reading(text: str, suffix: str) -> None:
    try:
        read(text, f"any.{suffix}")
    except InvalidInput as error:
        message = error.message
    else:
        message = "any."
    assert message.startswith("any.")
