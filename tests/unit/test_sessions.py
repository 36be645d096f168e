"""A login code works once and soon dies; a session ends by itself."""

import pytest

from kapelle.domain.errors import Unauthorized
from kapelle.service.sessions import SessionService


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_code_works_once() -> None:
    logins = SessionService()
    code = logins.new_code().code
    session = logins.log_in(code)
    assert logins.knows(session)
    assert not logins.knows(session + "x")
    with pytest.raises(Unauthorized):
        logins.log_in(code)


def test_a_code_dies_after_a_minute() -> None:
    clock = Clock()
    logins = SessionService(clock)
    first, second = logins.new_code().code, logins.new_code().code
    clock.now += 59
    logins.log_in(first)
    clock.now += 2
    with pytest.raises(Unauthorized, match="over a minute old"):
        logins.log_in(second)


def test_a_session_ends_after_a_week_or_when_asked_to() -> None:
    clock = Clock()
    logins = SessionService(clock)
    short, long = (logins.log_in(logins.new_code().code) for _ in range(2))
    logins.log_out(short)
    assert not logins.knows(short)
    assert logins.knows(long)
    clock.now += 8 * 86_400
    assert not logins.knows(long)


def test_there_are_never_more_than_a_hundred_sessions() -> None:
    logins = SessionService()
    sessions = [logins.log_in(logins.new_code().code) for _ in range(101)]
    assert not logins.knows(sessions[0])
    assert all(logins.knows(session) for session in sessions[1:])
