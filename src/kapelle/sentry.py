"""Report internal errors of the daemon to a Sentry server, if a person configured one."""

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from kapelle import __version__
from kapelle.domain.errors import KapelleError
from kapelle.runner.redaction import redact

_log = logging.getLogger("kapelle.sentry")
_MOST_WAITING = 20
# An error is reported once in this time, however often it is logged.
_PAUSE_S = 60.0
_CLOSE_S = 2.0
Patterns = Callable[[], tuple[bytes, ...]]


class ErrorReports(logging.Handler):
    """Sends logged exceptions of the daemon to a Sentry server, from a thread of its own.

    The optional package sentry-sdk is imported when an address is configured. Its integrations stay
    off: it patches nothing, and sends neither variables nor source lines.
    """

    def __init__(self, client: Any) -> None:
        super().__init__(logging.ERROR)
        self._client = client
        self._patterns: Patterns | None = None
        self._reported: dict[tuple[str, int, str], float] = {}
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._send_all, name="error-reports", daemon=True)

    @classmethod
    def start(cls, dsn: str | None, environ: Mapping[str, str]) -> Self | None:
        """Return the started handler; None without an address or without the package."""
        address = dsn or environ.get("SENTRY_DSN")
        if not address:
            return None
        try:
            import sentry_sdk
            from sentry_sdk.utils import BadDsn, Dsn
        except ImportError:
            if dsn:
                _log.warning("log.sentry_dsn needs the extra: pip install 'kapelle[sentry]'")
            return None
        try:
            host = Dsn(address).host
        except BadDsn as error:
            _log.error("errors are not reported: the DSN of Sentry is invalid: %s", error)
            return None
        client = sentry_sdk.Client(
            dsn=address, release=f"kapelle@{__version__}", server_name="", environment="daemon",
            default_integrations=False, auto_enabling_integrations=False, send_default_pii=False,
            include_local_variables=False, include_source_context=False, max_breadcrumbs=0,
            auto_session_tracking=False, send_client_reports=False, shutdown_timeout=_CLOSE_S,
        )  # fmt: skip
        handler = cls(client)
        handler._thread.start()
        logging.getLogger("kapelle").addHandler(handler)
        _log.info("internal errors of this daemon are reported to %s", host)
        return handler

    def redact_by(self, patterns: Patterns) -> None:
        """Set the secrets to remove from every report; nothing is sent before that."""
        self._patterns = patterns

    def emit(self, record: logging.LogRecord) -> None:
        """Queue an unexpected exception; a KapelleError is not an internal error."""
        if record.exc_info:
            error = record.exc_info[1]
        else:
            error = None
        if error is None or isinstance(error, KapelleError) or hasattr(record, "not_internal"):
            return
        key = (record.name, record.lineno, type(error).__name__)
        if record.created - self._reported.get(key, 0.0) < _PAUSE_S:
            return
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            return
        self._reported[key] = record.created

    def close(self) -> None:
        """Send the queued reports, within two seconds."""
        logging.getLogger("kapelle").removeHandler(self)
        try:
            self._waiting.put(None, timeout=_CLOSE_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_S)
        self._client.close(timeout=_CLOSE_S)
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send_all(self) -> None:
        while (record := self._waiting.get()) is not None:
            try:
                self._send(record)
            except Exception as error:  # a failed report must not cause another report
                _log.warning("an error could not be reported: %r", error)

    def _send(self, record: logging.LogRecord) -> None:
        from sentry_sdk.utils import event_from_exception

        if self._patterns is None or record.exc_info is None or record.exc_info[1] is None:
            return
        event, _ = event_from_exception(record.exc_info[1], self._client.options)
        event["logger"] = record.name
        event["level"] = "error"
        event["logentry"] = {"formatted": record.getMessage()}
        event["timestamp"] = datetime.fromtimestamp(record.created, UTC)
        self._client.capture_event(_redact_event(event, self._patterns()))


def _redact_event(value: Any, patterns: tuple[bytes, ...]) -> Any:
    """Return an event without secrets and without paths of this machine."""
    if isinstance(value, str):
        return redact(value.encode("utf-8", "replace"), patterns).decode("utf-8", "replace")
    if isinstance(value, Mapping):
        fields: dict[Any, Any] = {}
        for key, one in value.items():
            if key not in {"abs_path", "vars"}:
                fields[key] = _redact_event(one, patterns)
        return fields
    if isinstance(value, list | tuple):
        return [_redact_event(one, patterns) for one in value]
    return value
