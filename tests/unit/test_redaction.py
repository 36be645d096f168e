"""Secrets are found in every spelling, wherever the stream is cut."""

import base64
import html
import json
import quopri
import shlex
import time
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kapelle.runner.redaction import redact, spell_secrets
from kapelle.runner.shim.redactor import Redactor

SECRET = "pa ss/w+örd$\"'<&>~"
RAW = SECRET.encode()
SPELLINGS = {
    "raw": RAW,
    "json": json.dumps(SECRET).encode(),
    "json in utf-8": json.dumps(SECRET, ensure_ascii=False).encode(),
    "url": quote(SECRET, safe="").encode(),
    "url in lower case": quote(SECRET, safe="").replace("%C3%B6", "%c3%b6").lower().encode(),
    "form": quote_plus(SECRET).encode(),
    "base64": base64.b64encode(RAW),
    "base64 after one byte": base64.b64encode(b"x" + RAW + b"tail"),
    "base64 after two bytes": base64.b64encode(b"xy" + RAW + b"tail"),
    "base64 for urls": base64.urlsafe_b64encode(b">>>" + RAW),
    "hex": RAW.hex().encode(),
    "HEX": RAW.hex().upper().encode(),
    "html": html.escape(SECRET).encode(),
    "repr": repr(SECRET).encode(),
    "shell": shlex.quote(SECRET).encode(),
    "json with escaped slashes": json.dumps(SECRET).replace("/", "\\/").encode(),
    "json for html": json.dumps(SECRET).replace("<", "\\u003c").replace(">", "\\u003e")
    .replace("&", "\\u0026").encode(),
    "every byte in percent": "".join(f"%{byte:02X}" for byte in RAW).encode(),
    "every byte after \\x": "".join(f"\\x{byte:02x}" for byte in RAW).encode(),
    "every character after \\u": "".join(f"\\u{ord(char):04X}" for char in SECRET).encode(),
    "every byte in html": "".join(f"&#x{byte:x};" for byte in RAW).encode(),
    "url as Go has a path": quote(SECRET, safe="$&+:=@").encode(),
    "encodeURIComponent": quote(SECRET, safe="!'()*").encode(),
    "encodeURI": quote(SECRET, safe=";,/?:@&=+$!'()*#").encode(),
    "decimal entities": "".join(c if c.isalnum() else f"&#{ord(c)};" for c in SECRET).encode(),
    "named entities": SECRET.replace("&", "&amp;").replace("/", "&sol;").replace("+", "&plus;")
    .replace("$", "&dollar;").replace('"', "&quot;").replace("'", "&apos;").replace("<", "&lt;")
    .replace(">", "&gt;").encode(),
    "quoted-printable": quopri.encodestring(RAW).replace(b"=\n", b""),
    "upper case": SECRET.upper().encode(),
    "hex with colons": RAW.hex(":").encode(),
    "HEX with spaces": RAW.hex(" ").upper().encode(),
    "hex in pairs": RAW.hex(" ", 2).encode(),
    "hex in pairs, from the second on": RAW.hex(" ", -2).encode(),
    "hex in C": ", ".join(f"0x{byte:02x}" for byte in RAW).encode(),
    "hex in lines of an indented text": b":\n    ".join(
        RAW[n : n + 4].hex(":").encode() for n in range(0, len(RAW), 4)
    ),
    "a colour code in the middle": RAW[:7] + b"\x1b[01;31m\x1b[K" + RAW[7:],
    "colours all over": b"\x1b[0m".join(bytes([byte]) for byte in RAW),
    "wrapped lines": RAW[:8] + b"\n" + RAW[8:11] + b"\r\n" + RAW[11:],
    "wrapped and indented lines": RAW[:8] + b"\n    " + RAW[8:11] + b"\r\n\t\t" + RAW[11:],
    "indented in colour": RAW[:9] + b"\n\x1b[0m  \x1b[01m" + RAW[9:],
    "wrapped and indented base64": base64.encodebytes(b"x" * 48 + RAW).replace(b"\n", b"\n      "),
    "wrapped base64": base64.encodebytes(b"x" * 48 + RAW),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_spelling_at_every_cut(spelling: bytes) -> None:
    found = spell_secrets([SECRET])
    text = b"before " + spelling + b" after"
    clean = redact(text, found)
    assert b"[redacted]" in clean
    # Of base64, up to two characters at each end depend on what is beside the secret.
    assert len(clean) <= len(b"before [redacted] after") + (80 if b"eHh4" in spelling else 12)
    for cut in range(len(text) + 1):
        assert _stream([text[:cut], text[cut:]], found) == clean
    assert _stream([bytes([byte]) for byte in text], found) == clean


def test_the_longest_is_first_and_short_secrets_are_left_alone() -> None:
    found = spell_secrets(["short", "secret-1", "secret-1", "another secret"])
    assert list(found) == sorted(found, key=lambda p: (-len(p), p))
    assert len(set(found)) == len(found)
    assert b"short" not in found
    assert spell_secrets([]) == ()


def test_nothing_is_held_back_without_need() -> None:
    redactor = Redactor((b"secret", b"other"))
    assert redactor.feed(b"some words") == b"some word"
    assert redactor.feed(b" and sec") == b"s and "
    assert redactor.feed(b"tion") == b"section"
    assert redactor.feed(b"!") == b"!"
    assert Redactor(()).feed(b"anything") == b"anything"


LETTERS = st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=40).map(b"".join)


@given(
    st.lists(LETTERS.filter(bool).map(lambda p: p[:6]), min_size=1, max_size=6),
    st.lists(LETTERS, max_size=8),
)
def test_any_cut_gives_what_one_replacement_gives(found: list[bytes], chunks: list[bytes]) -> None:
    assert _stream(chunks, tuple(found)) == redact(b"".join(chunks), tuple(found))


@given(st.text(min_size=6, max_size=20), st.binary(max_size=20), st.binary(max_size=20))
def test_any_secret_is_found(secret: str, before: bytes, after: bytes) -> None:
    found = spell_secrets([secret])
    raw = secret.encode("utf-8", "surrogatepass")
    # What could be mistaken for a part of the replacement proves nothing.
    assume(not {*b"[]"} & {*raw} and raw not in b"redacted")
    # Ends of lines do not count, so there is nothing in them to be found.
    assume(raw.translate(None, b"\r\n"))
    assert raw not in _stream([before + raw[:3], raw[3:] + after], found)


def _stream(chunks: list[bytes], found: tuple[bytes, ...]) -> bytes:
    redactor = Redactor(found)
    return b"".join([*(redactor.feed(chunk) for chunk in chunks), redactor.flush()])


def test_a_line_is_not_held_back_for_its_last_characters() -> None:
    """Whoever follows an agent sees a line when it is there, though a secret may begin so."""
    redactor = Redactor(spell_secrets(["hunter2-hunter2"]))
    for line in (b"Which branch\n", b"type hu\n", b"0x68\n", b"6\n"):
        assert redactor.feed(line) == line
    assert redactor.feed(b"it is hunter\n") == b"it is "
    assert redactor.feed(b"2-hunter2\n") == b"[redacted]\n"


@pytest.mark.parametrize("first", range(1, 10))
@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_secret_goes_on_behind_the_line_that_was_not_held_back(first: int, size: int) -> None:
    secret = b"sk-live-0123456789"
    redactor = Redactor(spell_secrets([secret.decode()]))
    shown = redactor.feed(b"key " + secret[:first] + b"\n")
    rest = secret[first:] + b" end\n"
    later = [redactor.feed(rest[n : n + size]) for n in range(0, len(rest), size)]
    clean = b"".join([shown, *later, redactor.flush()])
    passed = secret[:first] + b"\n" if first < 6 else b""
    assert clean == b"key " + passed + b"[redacted] end\n"


def test_deep_indentation_is_looked_through_in_linear_time() -> None:
    found = spell_secrets(["sk-live-0123456789abcdef", "hunter2-hunter2-hunter2"])
    text = (b"sk-live-0123" + b"\n" + b" " * 64) * 4000

    def took(data: bytes) -> float:
        began = time.perf_counter()
        _stream([data[n : n + 4096] for n in range(0, len(data), 4096)], found)
        return time.perf_counter() - began

    took(text[: len(text) // 4])
    quarter = min(took(text[: len(text) // 4]) for _ in range(3))
    assert took(text) < 4 * 4 * quarter + 0.2


def test_much_text_without_a_secret_stays_as_it_is() -> None:
    found = spell_secrets([SECRET, "0123456789abcdef0123", "another secret"])
    line = b"\x1b[32mok\x1b[0m 12:34:56 0x00ff a-b_c%20d \\u0041 {1, 2}\r\n"
    text = line * 4000
    assert _stream([text[n : n + 1000] for n in range(0, len(text), 1000)], found) == text
