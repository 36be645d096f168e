from hypothesis import given
from hypothesis import strategies as st

from kapelle.cli.logs import last_raw_lines


@given(st.lists(st.binary(max_size=20)), st.integers(0, 4))
def test_thelast_raw_lines_however_they_were_cut(chunks: list[bytes], count: int) -> None:
    lines = [line + b"\n" for line in b"".join(chunks).split(b"\n")]
    lines[-1] = lines[-1][:-1]
    if not lines[-1]:
        lines.pop()
    expected = b"".join(lines[-count:]) if count else b""
    assert last_raw_lines(iter(chunks), count) == expected
