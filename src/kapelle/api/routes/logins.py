"""Logins of browsers: a session cookie instead of a token."""

from starlette.requests import Request
from starlette.responses import Response

from kapelle.api.security import cookie_name
from kapelle.domain.specs import Spec, Text
from kapelle.service import Service
from kapelle.service.sessions import SESSION_LIFE_S


class LoginBody(Spec):
    code: Text


class Logins:
    def __init__(self, services: Service) -> None:
        self._services = services

    async def log_in(self, body: LoginBody, request: Request) -> Response:
        """Exchange a login code for a session cookie."""
        session = self._services.sessions.log_in(body.code)
        response = Response(status_code=204)
        response.set_cookie(
            cookie_name(request),
            session,
            int(SESSION_LIFE_S),
            # Scripts cannot read the cookie, and other sites cannot make a browser send it.
            httponly=True,
            samesite="strict",
            path="/",
        )
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session of the cookie, and the terminals that the session has open."""
        name = cookie_name(request)
        self._services.sessions.log_out(request.cookies.get(name, ""))
        response = Response(status_code=204)
        response.delete_cookie(name, path="/")
        return response
