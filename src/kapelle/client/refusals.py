"""What the daemon refused, or that it went away, as the error it is."""

import json

from kapelle.client.address import Address
from kapelle.domain.errors import KapelleError, Unauthorized, Unavailable, class_of


class ConnectionLost(Unavailable):
    """The daemon went away before it answered."""

    code = "connection_lost"


def refusal(address: Address, status: int, reason: str, body: bytes) -> KapelleError:
    """The error in an answer; its code says which class it has."""
    try:
        told = json.loads(body)["error"]
        code, message, hint = str(told["code"]), str(told["message"]), told.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError):
        said = f"The daemon answered {status} {reason}."
        # Its web server breaks off what is still open when the daemon is stopped.
        return ConnectionLost(said) if status >= 500 else KapelleError(said)
    error = class_of(code)(message, hint=hint)
    error.code = code
    if address.url is not None and isinstance(error, Unauthorized):
        return _wrong_token(address)
    return error


def no_answer(address: Address, timeout_s: float) -> Unavailable:
    """Somebody is there, but says nothing."""
    return Unavailable(
        f"The daemon at {address} did not answer within {timeout_s:.0f} s.",
        hint="`kapelle doctor` looks for the cause.",
    )


def nobody_there(address: Address, why: object, hint: str) -> Unavailable:
    """Nobody listens; the hint is for a daemon of this machine."""
    if address.url:
        return Unavailable(
            f"Nothing answers at {address.url_origin} {address} ({why}).",
            hint=f"Check the address, or unset {address.url_origin} to use the local daemon.",
        )
    return Unavailable("No daemon is running.", hint=hint)


def _wrong_token(address: Address) -> Unauthorized:
    return Unauthorized(
        f"{address} did not accept the token from {address.token_origin}.",
        hint="Set KAPELLE_TOKEN to that daemon's own, which is in the file `token` of its home,"
        " or unset KAPELLE_URL to use the local daemon.",
    )
