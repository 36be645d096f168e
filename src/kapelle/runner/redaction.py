"""Compute the encodings in which a secret may appear in output, and remove them."""

import base64
import html
import html.entities
import json
import quopri
import re
import shlex
from collections.abc import Callable, Iterable
from functools import lru_cache
from urllib.parse import quote, quote_plus

from kapelle.runner.shim.redactor import Redactor

MIN_CHARACTERS = 6
_ESCAPED_MARKUP = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "<>&"})
_ESCAPED_BYTE = re.compile(r"%[0-9A-F]{2}")
# Characters that common percent encodings leave unescaped: none, slashes, a path segment in Go,
# encodeURIComponent and encodeURI.
_UNESCAPED = ("", "/", "$&+:=@", "!'()*", ";,/?:@&=+$!'()*#")
# HTML names of characters that html.escape leaves alone.
_ENTITIES = {mark: f"&{name}" for name, mark in html.entities.html5.items() if name.endswith(";")}


def spell_secrets(secrets: Iterable[str]) -> tuple[bytes, ...]:
    """Return every encoding of every secret of at least 6 characters, the longest first."""
    spellings: set[bytes] = set()
    for secret in secrets:
        if len(secret) >= MIN_CHARACTERS:
            spellings |= _spell(secret)
    return tuple(sorted(spellings, key=lambda pattern: (-len(pattern), pattern)))


def redact(data: bytes, patterns: tuple[bytes, ...]) -> bytes:
    """Return the data with every secret replaced."""
    return Redactor(patterns).whole(data)


# Cached, because every process has the same few secrets; they are in memory anyway.
@lru_cache(maxsize=256)
def _spell(secret: str) -> set[bytes]:
    raw = secret.encode("utf-8", "surrogatepass")
    texts = {
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        ascii(secret)[1:-1],
        html.escape(secret),
        html.escape(secret, quote=False),
        shlex.quote(secret).removeprefix("'").removesuffix("'"),
        # The redactor matches hexadecimal digits in upper case too, and with separators between
        # them: 73:6B, \\x73, %73.
        raw.hex(),
        "".join(f"0{byte:02x}" for byte in raw),  # 0x73
        secret.encode("utf-16-be", "surrogatepass").hex(),  # \\u0073
    }
    for text in (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        texts |= {text.replace("/", "\\/"), text.translate(_ESCAPED_MARKUP)}
    for percent_encoding in (*(quote(raw, safe=safe) for safe in _UNESCAPED), quote_plus(raw)):
        texts |= {
            percent_encoding,
            _ESCAPED_BYTE.sub(lambda match: match[0].lower(), percent_encoding),
        }
    texts |= {secret.upper(), secret.lower(), *_escape_marks(secret)}
    spellings = {text.encode("utf-8", "surrogatepass") for text in texts}
    return {raw} | spellings | _spell_base64(raw)


def _escape_marks(secret: str) -> set[str]:
    """Return encodings as HTML entities and quoted-printable.

    Every character except letters and digits is replaced.
    """
    return {
        _replace_marks(secret, lambda mark: f"&#{ord(mark)};"),
        _replace_marks(secret, lambda mark: f"&#x{ord(mark):x};"),
        _replace_marks(secret, lambda mark: f"&#x{ord(mark):X};"),
        _replace_marks(secret, lambda mark: _ENTITIES.get(mark, mark)),
        quopri.encodestring(secret.encode("utf-8", "surrogatepass")).decode().replace("=\n", ""),
    }


def _replace_marks(secret: str, replacement: Callable[[str], str]) -> str:
    return "".join(mark if mark.isalnum() else replacement(mark) for mark in secret)


def _spell_base64(raw: bytes) -> set[bytes]:
    """Return the fixed part of the Base64 text at each of the three alignments.

    The first and last characters depend on the bytes around the secret, unless the secret is the
    end.
    """
    spellings = set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            text = encode(bytes(before) + raw)
            begin = -(-8 * before // 6)
            spellings.add(text[begin : 8 * (before + len(raw)) // 6])
            spellings.add(text[begin:].rstrip(b"="))
    return spellings
