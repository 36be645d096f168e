"""The many spellings in which a secret may turn up in output."""

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

from kapelle.runner.shim.streams import Redactor

MIN_CHARACTERS = 6
_ESCAPED_MARKUP = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "<>&"})
_ESCAPED_BYTE = re.compile(r"%[0-9A-F]{2}")
# What percent encodings leave as it is: all or nothing but slashes, a path's segment in Go,
# encodeURIComponent and encodeURI.
_UNESCAPED = ("", "/", "$&+:=@", "!'()*", ";,/?:@&=+$!'()*#")
# HTML names of characters that html.escape leaves alone.
_ENTITIES = {mark: f"&{name}" for name, mark in html.entities.html5.items() if name.endswith(";")}


def patterns(secrets: Iterable[str]) -> tuple[bytes, ...]:
    """Every spelling of every secret of at least 6 characters, the longest first."""
    found: set[bytes] = set()
    for secret in secrets:
        if len(secret) >= MIN_CHARACTERS:
            found |= _spellings(secret)
    return tuple(sorted(found, key=lambda pattern: (-len(pattern), pattern)))


def redact(data: bytes, patterns: tuple[bytes, ...]) -> bytes:
    """The data without the secrets, all at once."""
    return Redactor(patterns).whole(data)


# The same few secrets are in every process's environment, and they are in memory anyway.
@lru_cache(maxsize=256)
def _spellings(secret: str) -> set[bytes]:
    raw = secret.encode("utf-8", "surrogatepass")
    texts = {
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        repr(secret)[1:-1],
        ascii(secret)[1:-1],
        html.escape(secret),
        html.escape(secret, quote=False),
        shlex.quote(secret).removeprefix("'").removesuffix("'"),
        # Found in upper case and with anything usual between the digits: 73:6B, \\x73, %73 …
        raw.hex(),
        "".join(f"0{byte:02x}" for byte in raw),  # 0x73
        secret.encode("utf-16-be", "surrogatepass").hex(),  # \\u0073
    }
    for text in (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        texts |= {text.replace("/", "\\/"), text.translate(_ESCAPED_MARKUP)}
    for quoted in (*(quote(raw, safe=safe) for safe in _UNESCAPED), quote_plus(raw)):
        texts |= {quoted, _ESCAPED_BYTE.sub(lambda match: match[0].lower(), quoted)}
    texts |= {secret.upper(), secret.lower(), *_marks_escaped(secret)}
    encoded = {text.encode("utf-8", "surrogatepass") for text in texts}
    return {raw} | encoded | _base64_spellings(raw)


def _marks_escaped(secret: str) -> set[str]:
    """HTML, where all characters but letters and digits are entities, and quoted-printable."""
    return {
        _replace_marks(secret, lambda mark: f"&#{ord(mark)};"),
        _replace_marks(secret, lambda mark: f"&#x{ord(mark):x};"),
        _replace_marks(secret, lambda mark: f"&#x{ord(mark):X};"),
        _replace_marks(secret, lambda mark: _ENTITIES.get(mark, mark)),
        quopri.encodestring(secret.encode("utf-8", "surrogatepass")).decode().replace("=\n", ""),
    }


def _replace_marks(secret: str, replacement: Callable[[str], str]) -> str:
    return "".join(mark if mark.isalnum() else replacement(mark) for mark in secret)


def _base64_spellings(raw: bytes) -> set[bytes]:
    """Base64 at each alignment: what is fixed whatever surrounds it, and what ends a text."""
    found = set()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            text = encode(bytes(before) + raw)
            begin = -(-8 * before // 6)
            found.add(text[begin : 8 * (before + len(raw)) // 6])
            found.add(text[begin:].rstrip(b"="))
    return found
